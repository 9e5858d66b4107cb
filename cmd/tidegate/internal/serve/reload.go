package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

// refusals returns everything that the broker would reject of a configuration, so that it is found
// before anything is changed.
func refusals(c *config, b *broker.Broker) error {
	var bad faults
	for name, topic := range c.topics {
		before, err := b.TopicSettings(name)
		if err != nil {
			continue // a new one
		}
		if topic.Type != "" && topic.Type != before.Type {
			bad = append(bad, faultf(c.from[path("topics", name, "type")], "is %q, but the topic has the type %s, which cannot change; create another topic", topic.Type, before.Type))
		}
		if q := topic.Queues; q != 0 && q < before.Queues {
			bad = append(bad, faultf(c.from[path("topics", name, "queues")], "is %d, but the topic has %d queues and cannot have fewer, because their messages would be lost; give at least as many", q, before.Queues))
		}
	}
	for name, group := range c.groups {
		if err := b.CheckGroup(name, group); err != nil {
			bad = append(bad, faultf(c.from[path("groups", name)], "cannot be applied: %v", err))
		}
	}
	return bad.Err()
}

// put creates and changes the topics, groups and address settings of a configuration, and returns
// the names of those that it changed. Declaring an auto-created topic or group makes it permanent.
func put(ctx context.Context, c *config, b *broker.Broker) (changed []string, err error) {
	changed, err = putAll("topics.", c.topicsToPut(b), func(name string, topic settings.Topic) (before, after any, err error) {
		was, _ := b.Topic(name)
		is, err := b.PutTopic(ctx, name, topic)
		return []any{was.Name, was.AutoCreated, was.Topic}, []any{is.Name, is.AutoCreated, is.Topic}, err
	})
	groups, gerr := putAll("groups.", c.groups, func(name string, group settings.Group) (before, after any, err error) {
		was, _ := b.Group(name)
		is, err := b.PutGroup(ctx, name, group)
		return []any{was.Name, was.AutoCreated, was.Group}, []any{is.Name, is.AutoCreated, is.Group}, err
	})
	addresses, aerr := putAll("address_settings.", c.addresses, func(match string, s settings.Address) (before, after any, err error) {
		was, _ := b.AddressSettings(match)
		is, err := b.PutAddressSettings(ctx, match, s)
		return was, is, err
	})
	return slices.Concat(changed, groups, addresses), errors.Join(err, gerr, aerr)
}

// putAll calls put for all declarations, by name, and returns the names of those that it changed.
func putAll[T any](prefix string, all map[string]T, put func(name string, v T) (before, after any, err error)) (changed []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		before, after, perr := put(name, all[name])
		if perr != nil {
			err = errors.Join(err, fmt.Errorf("%s%s: %w", prefix, name, perr))
		} else if !reflect.DeepEqual(before, after) {
			changed = append(changed, prefix+name)
		}
	}
	return changed, err
}

// topicsToPut returns the topics that the file declares, and those of the setting topic that are
// neither declared nor in the broker.
func (c *config) topicsToPut(b *broker.Broker) map[string]settings.Topic {
	put := maps.Clone(c.topics)
	if put == nil {
		put = map[string]settings.Topic{}
	}
	for _, t := range c.settings.topics {
		name, kind, _ := strings.Cut(t, ":")
		topic, declared := c.topics[name]
		if _, err := b.TopicSettings(name); err == nil {
			continue
		}
		if topic.Type == "" || !declared {
			topic.Type = settings.TopicType(kind)
		}
		put[name] = topic
	}
	return put
}

// A reloader brings the file's changes to a running broker. It is used by one
// goroutine.
type reloader struct {
	file       string
	env, flags values
	broker     *broker.Broker
	logger     *slog.Logger
	level      *slog.LevelVar
	running    configuration
	declared   []string // the topics, groups and address settings of the file

	server       *server.Server
	certificates *server.Certificates // nil: self-signed
	access       server.AccessConfig
}

// reload applies the changes of settings that are possible at run time, and logs the others. A file
// with a fault changes nothing.
func (r *reloader) reload(ctx context.Context) {
	c, err := load(r.file, r.env, r.flags)
	next, applied, later := r.running, []string(nil), []string(nil)
	if err == nil {
		next, applied, later = change(r.running, *c.settings)
		err = refusals(c, r.broker)
	}
	var who server.AccessConfig
	if err == nil {
		if verr := next.validate(); verr != nil {
			err = faults{faultf(origin{}, "the settings are invalid: %v", verr)}
		}
	}
	if err == nil {
		// The running addresses stay in use, even if the file has others now.
		err = c.exposed(&next).Err()
	}
	if err == nil && r.access.On() && len(c.keys) == 0 {
		err = faults{faultf(origin{Name: "access.keys", File: r.file, Line: 1}, "are removed, and without keys every client has all permissions; "+
			"give at least one key, or restart the broker if that is intended")}
	}
	if err == nil {
		who, err = c.resolve(os.ReadFile, os.LookupEnv)
	}
	if err != nil {
		var lines []string
		if fs, ok := errors.AsType[faults](err); ok {
			lines = fs.Lines()
		}
		r.logger.Error("configuration not reloaded", "file", r.file, "faults", lines)
		return
	}
	err = errors.Join(setLevel(r.level, next.logLevel), r.broker.ConfigureLimits(ctx, next.limits()), r.broker.SetTransaction(next.broker.Transaction))
	r.running = next
	if !reflect.DeepEqual(who, r.access) {
		err = errors.Join(err, protect(next.broker.Dir, who.On(), next.noKeys))
		if aerr := r.server.SetAccess(who); aerr == nil {
			applied, r.access = append(applied, "access"), who
		} else {
			err = errors.Join(err, aerr)
		}
	}
	if r.certificates != nil {
		files, rerr := r.certificates.Reload()
		if err = errors.Join(err, rerr); files && rerr == nil {
			applied = append(applied, "tls.cert")
		}
	}
	changed, perr := put(ctx, c, r.broker)
	if err = errors.Join(err, perr); err != nil {
		r.logger.Error("configuration not applied completely", "file", r.file, "error", err)
	}
	if len(later) > 0 {
		r.logger.Warn("changed settings need a restart", "file", r.file, "keys", later)
	}
	if text := c.openToAll(&next); text != "" {
		r.logger.Warn(text)
	}
	before := r.declared
	r.declared = c.declared()
	gone := slices.DeleteFunc(before, func(name string) bool { return slices.Contains(r.declared, name) })
	if len(gone) > 0 {
		r.logger.Info("topics, groups and address settings removed from the file stay as they are", "file", r.file, "names", gone)
	}
	r.logger.Info("configuration reloaded", "file", r.file, "changed", append(applied, changed...))
}

// declared returns the topics, groups and address settings that the file declares.
func (c *config) declared() []string {
	var names []string
	for name := range c.topics {
		names = append(names, "topics."+name)
	}
	for name := range c.groups {
		names = append(names, "groups."+name)
	}
	for match := range c.addresses {
		names = append(names, "address_settings."+match)
	}
	slices.Sort(names)
	return names
}

func setLevel(level *slog.LevelVar, text string) error { return level.UnmarshalText([]byte(text)) }
