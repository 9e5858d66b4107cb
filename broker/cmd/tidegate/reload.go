package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
)

// load reads, merges and checks a configuration. file may be empty: then
// there is none. The error is faults, all of them.
func load(file string, env, flags values) (config, error) {
	var doc document
	var bad faults
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return config{}, faults{faultf(origin{}, "the configuration file cannot be read: %v", err)}
		}
		doc, bad = parse(file, data)
	}
	c, more := merge(doc, env, flags)
	return c, append(bad, more...).err()
}

// refusals are what the broker would refuse of a configuration, so that it
// can be found before anything is changed.
func refusals(c config, b *broker.Broker) error {
	var bad faults
	for name, s := range c.topics {
		before, err := b.TopicSettings(name)
		if err != nil {
			continue // a new one
		}
		if s.value.Type != "" && s.value.Type != before.Type {
			bad = append(bad, faultf(s.from["type"], "is %q: the topic is %s, which cannot change; make another topic", s.value.Type, before.Type))
		}
		if q := s.value.Queues; q != 0 && q < before.Queues {
			bad = append(bad, faultf(s.from["queues"], "is %d: the topic has %d queues and cannot have fewer, their messages would be lost", q, before.Queues))
		}
	}
	for name, s := range c.groups {
		before, err := b.Group(name)
		if err == nil && before.FIFO != s.value.FIFO && len(before.Topics) > 0 {
			at, ok := s.from["fifo"]
			if !ok {
				at = origin{s.at.name + ".fifo", s.at.file, s.at.line}
			}
			bad = append(bad, faultf(at, "is %t: the group has received already with %t, so it cannot change; delete the group, or use another one",
				s.value.FIFO, before.FIFO))
		} else if err := b.CheckGroup(name, s.value); err != nil {
			bad = append(bad, faultf(s.at, "cannot be: %v", err))
		}
	}
	return bad.err()
}

// put makes and changes the topics, groups and address settings of a configuration, and
// returns the names of those that it changed. What was made by itself so far is changed
// if it is declared: it is somebody's now.
func put(ctx context.Context, c config, b *broker.Broker) (changed []string, err error) {
	there := func(name string) (broker.TopicConfig, bool) {
		before, err := b.TopicSettings(name)
		return before, err == nil
	}
	topics := c.topicsToPut(there)
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		before, exists := there(name)
		want := topics[name]
		if exists && want.Type == "" {
			want.Type = before.Type
		}
		if exists && want.Queues == 0 {
			want.Queues = before.Queues
		}
		if t, terr := b.Topic(name); terr == nil && !t.AutoCreated && len(differing(topicRules, before, want)) == 0 {
			continue
		}
		if _, perr := b.PutTopic(ctx, name, want); perr != nil {
			err = errors.Join(err, fmt.Errorf("topic %s: %w", name, perr))
			continue
		}
		changed = append(changed, "topics."+name)
	}
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		before, gerr := b.Group(name)
		if gerr == nil && !before.AutoCreated && len(differing(groupRules, before.GroupConfig, c.groups[name].value)) == 0 {
			continue
		}
		if _, perr := b.PutGroup(ctx, name, c.groups[name].value); perr != nil {
			err = errors.Join(err, fmt.Errorf("group %s: %w", name, perr))
			continue
		}
		changed = append(changed, "groups."+name)
	}
	for _, match := range slices.Sorted(maps.Keys(c.addresses)) {
		before, gerr := b.AddressSettings(match)
		if gerr == nil && len(differing(addressRules, before.AddressSettings, c.addresses[match].value)) == 0 {
			continue
		}
		if _, perr := b.PutAddressSettings(ctx, match, c.addresses[match].value); perr != nil {
			err = errors.Join(err, fmt.Errorf("address settings %s: %w", match, perr))
			continue
		}
		changed = append(changed, "address_settings."+match)
	}
	return changed, err
}

// A reloader brings the file's changes to a running broker. It is used by one
// goroutine.
type reloader struct {
	file       string
	env, flags values
	broker     *broker.Broker
	logger     *slog.Logger
	level      *slog.LevelVar
	running    settings
	declared   []string // the topics, groups and address settings of the file

	server       *server.Server
	certificates *server.Certificates // nil: self-signed
	access       server.AccessConfig
}

// reload applies what can change while running, and logs what cannot. A
// file with a fault changes nothing.
func (r *reloader) reload(ctx context.Context) {
	c, err := load(r.file, r.env, r.flags)
	next, applied, restart := change(r.running, c.settings.value)
	var who server.AccessConfig
	if err == nil {
		err = refusals(c, r.broker)
	}
	if err == nil {
		if verr := next.validate(); verr != nil {
			err = faults{faultf(origin{}, "the settings cannot be: %v", verr)}
		}
	}
	if err == nil {
		// The addresses in use are the running ones, whatever the file says now.
		err = exposed(section[settings]{value: next, from: c.settings.from}, c.access.on()).err()
	}
	if err == nil && r.access.On() && !c.access.on() {
		err = faults{faultf(origin{name: "access.keys", file: r.file, line: 1}, "are gone, and without keys everyone may do everything: "+
			"give at least one key, or restart the broker if that is meant")}
	}
	if err == nil {
		who, err = c.resolve(os.ReadFile, os.LookupEnv)
	}
	if err != nil {
		var lines []string
		if fs, ok := errors.AsType[faults](err); ok {
			lines = fs.lines()
		}
		r.logger.Error("the configuration was not reloaded, nothing has changed", "file", r.file, "faults", lines)
		return
	}
	err = errors.Join(setLevel(r.level, next.logLevel), r.broker.SetLimits(next.limits), r.broker.SetTransaction(next.transaction))
	r.running = next
	if !reflect.DeepEqual(who, r.access) {
		err = errors.Join(err, protect(next.data, who.On(), next.noKeys))
		if aerr := r.server.SetAccess(who); aerr == nil {
			applied, r.access = append(applied, "access"), who
		} else {
			err = errors.Join(err, aerr)
		}
	}
	if r.certificates != nil {
		err = errors.Join(err, r.certificates.Reload())
	}
	changed, perr := put(ctx, c, r.broker)
	if err = errors.Join(err, perr); err != nil {
		r.logger.Error("a part of the configuration could not be applied", "file", r.file, "error", err)
	}
	if len(restart) > 0 {
		r.logger.Warn("some settings changed that hold only after a restart", "file", r.file, "keys", restart)
	}
	before := r.declared
	r.declared = c.declared()
	gone := slices.DeleteFunc(before, func(name string) bool { return slices.Contains(r.declared, name) })
	if len(gone) > 0 {
		r.logger.Info("topics, groups and address settings that left the file are kept as they are", "file", r.file, "names", gone)
	}
	r.logger.Info("the configuration was reloaded", "file", r.file, "changed", append(applied, changed...))
}

// declared returns the topics, groups and address settings that the file declares.
func (c config) declared() []string {
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
