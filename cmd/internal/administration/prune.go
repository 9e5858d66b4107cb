package administration

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// A surplus is a topic, a group or address settings that the broker has and a file does not.
type surplus struct {
	kind, name, contents string
	remove               func(ctx context.Context, name string) error
}

// undeclared returns the subjects that a file does not declare, of the kinds of which the file
// declares at least one. Auto-created subjects are only in the list if automatic is true.
func undeclared(ctx context.Context, client *admin.Client, d declare.File, automatic bool) (all []surplus, err error) {
	add := func(declared map[string]declare.Subject, s surplus, created bool) {
		if _, ok := declared[s.name]; !ok && len(declared) > 0 && (automatic || !created) {
			all = append(all, s)
		}
	}
	groups, err := client.Groups(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		backlog := int64(0)
		for _, s := range g.Topics {
			backlog += s.Backlog.Messages
		}
		add(d.Groups, surplus{"group", g.Name, fmt.Sprintf("a backlog of %s", output.Count(backlog, "message")), client.DeleteGroup}, g.AutoCreated)
	}
	topics, err := client.Topics(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range topics {
		ofGroup := strings.HasPrefix(t.Name, "%") // dead letters and retries
		contents := output.Count(t.StoredMessages+t.DelayedMessages+t.HalfMessages, "message").String()
		add(d.Topics, surplus{"topic", t.Name, contents, client.DeleteTopic}, t.AutoCreated || ofGroup)
	}
	addresses, err := client.AllAddressSettings(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range addresses {
		add(d.Addresses, surplus{"address settings", s.Match, "no messages", client.DeleteAddressSettings}, false)
	}
	return all, nil
}

// agreed asks for the removal of subjects, if there are any.
func agreed(c *call.Call, all []surplus) error {
	if len(all) == 0 || c.DryRun {
		return nil
	}
	var names []string
	for _, s := range all {
		names = append(names, fmt.Sprintf("%s %s with %s", s.kind, output.Safe(s.name), s.contents))
	}
	return c.Confirm("remove "+strings.Join(names, ", ")+"?", c.Args[0])
}

// prune removes subjects until one fails. Those that another operator removed are no error.
func prune(ctx context.Context, c *call.Call, all []surplus) error {
	for _, s := range all {
		if _, err := fmt.Fprintf(c.Out, "%s %s: removed, with %s\n", s.kind, output.Safe(s.name), s.contents); err != nil {
			return err
		}
		if c.DryRun {
			continue
		}
		bounded, cancel := c.Bounded(ctx)
		err := s.remove(bounded, s.name)
		cancel()
		if err != nil && !errors.Is(err, tidegate.ErrNotFound) && !errors.Is(err, tidegate.ErrTopicNotFound) {
			return fmt.Errorf("%s %s: %w", s.kind, output.Safe(s.name), err)
		}
	}
	return nil
}
