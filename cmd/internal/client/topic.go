package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

func (a *App) topics() *cobra.Command {
	c := parent(seeGroup, "topic", "Show, create, change and delete topics", "  tidegate topic list --sort -backlog",
		a.topicList(), a.topicShow(), a.topicPut("create"), a.topicPut("set"), a.topicDelete(), a.topicPurge())
	return c
}

func (a *App) topicList() *cobra.Command {
	var match string
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the topics with their backlog",
		Example: `  tidegate topic list
  tidegate topic list --match 'orders*' --sort -backlog --limit 10`,
		Annotations: map[string]string{mqadmin: "topicList"},
	}
	a.leaf(c, nil, func(ctx context.Context, c *call) error {
		client, err := c.admin(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := c.bounded(ctx)
		defer cancel()
		topics, err := client.Topics(ctx)
		if err != nil {
			return err
		}
		topics, err = matching(c, topics, match, func(t status.Topic) string { return t.Name })
		if err != nil {
			return err
		}
		return printList(c, output.List[status.Topic]{
			Rows:     topics,
			Columns:  view.TopicColumns,
			Name:     func(t status.Topic) string { return t.Name },
			Document: func(ts []status.Topic) any { return map[string]any{"topics": notNil(ts)} },
			Empty:    "no topics" + matchNote(match) + ": create one with 'tidegate topic create NAME'",
		})
	})
	matchFlag(c, &match)
	return c
}

func (a *App) topicShow() *cobra.Command {
	return a.leaf(&cobra.Command{
		Use:         "show",
		Short:       "Show a topic's settings, state and groups",
		Example:     "  tidegate topic show orders",
		Annotations: map[string]string{mqadmin: "topicStatus -t TOPIC"},
	}, []string{"TOPIC"}, func(ctx context.Context, c *call) error {
		client, err := c.admin(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := c.bounded(ctx)
		defer cancel()
		t, err := client.Topic(ctx, c.args[0])
		if err != nil {
			return c.unknownTopic(ctx, client, err)
		}
		return c.show(t, t.Name, view.TopicFields(t))
	})
}

func (a *App) topicPut(verb string) *cobra.Command {
	var file string
	var dryRun bool
	c := &cobra.Command{Use: verb, Annotations: map[string]string{mqadmin: "updateTopic -t TOPIC -n NAMESERVER -c CLUSTER"}}
	if verb == "create" {
		c.Short = "Create a topic"
		c.Example = "  tidegate topic create orders type=FIFO queues=8 max_backlog.messages=100000"
	} else {
		c.Short = "Change settings of a topic; the others stay"
		c.Example = "  tidegate topic set orders max_rate.messages_per_second=500 retention.time=24h"
	}
	c.Long = c.Short + ".\n\n" + output.Wrap("The settings are "+declare.Help[settings.Topic]()+".") + "\nDurations have units, as in 1h30m. type is NORMAL, FIFO, DELAY or TRANSACTION."
	a.leaf(c, []string{"TOPIC", "[KEY=VALUE...]"}, func(ctx context.Context, c *call) error {
		client, err := c.admin(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := c.bounded(ctx)
		defer cancel()
		name := c.args[0]
		before, err := client.Topic(ctx, name)
		switch missing := errors.Is(err, tidegate.ErrTopicNotFound); {
		case err != nil && (!missing || verb == "set"):
			return c.unknownTopic(ctx, client, err)
		case err == nil && verb == "create":
			return fmt.Errorf("topic %q exists; change it with 'tidegate topic set %s KEY=VALUE'", name, name)
		}
		wanted, _, err := changed(c, before.Topic, file, c.args[1:])
		if err != nil {
			return err
		}
		if err := fixed(before.Topic, wanted); err != nil && verb == "set" {
			return command.UsageError{Err: err, Command: c.command.CommandPath()}
		}
		if dryRun {
			return c.diff(name, before.Topic, wanted)
		}
		if verb == "set" { // wanted has all settings, those of other operators too
			client = client.IfRevision(before.Revision)
		}
		t, err := client.PutTopic(ctx, name, wanted)
		if err != nil {
			return err
		}
		return c.show(t, t.Name, view.TopicFields(t))
	})
	c.Flags().StringVarP(&file, "file", "f", "", "JSON `file` with settings; arguments go before it")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print the changes, and do nothing")
	return c
}

// fixed returns an error if a change is not possible in an existing topic.
func fixed(before, wanted settings.Topic) error {
	before, wanted = before.WithDefaults(), wanted.WithDefaults()
	switch {
	case before.Type != wanted.Type:
		return fmt.Errorf("type is %s and cannot change to %s; create another topic", before.Type, wanted.Type)
	case wanted.Queues < before.Queues:
		return fmt.Errorf("queues are %d and cannot shrink to %d", before.Queues, wanted.Queues)
	}
	return nil
}

// changed returns settings with the changes of a file and of arguments, and the changes alone.
func changed[T any](c *call, before T, file string, args []string) (wanted T, patch map[string]any, err error) {
	if patch, err = declare.Patch[T](file, args); err == nil {
		var text []byte
		if text, err = json.Marshal(patch); err == nil {
			wanted, err = declare.Merge(before, text)
		}
	}
	if v, ok := any(wanted).(interface{ Validate() error }); ok && err == nil {
		err = v.Validate()
	}
	if err != nil {
		return before, nil, command.UsageError{Err: err, Command: c.command.CommandPath()}
	}
	return wanted, patch, nil
}

func (a *App) topicDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete", Aliases: []string{"rm"},
		Short:       "Delete a topic and its messages",
		Example:     "  tidegate topic delete orders --yes",
		Annotations: map[string]string{mqadmin: "deleteTopic -t TOPIC -c CLUSTER"},
	}
	return a.removal(cmd, "TOPIC", func(ctx context.Context, c *call, client *admin.Client) (string, func(context.Context) (string, error), error) {
		t, err := client.Topic(ctx, c.args[0])
		if err != nil {
			return "", nil, c.unknownTopic(ctx, client, err)
		}
		what := fmt.Sprintf("topic %s with %s stored messages", t.Name, output.Number(t.StoredMessages))
		return what, func(ctx context.Context) (string, error) { return "deleted " + what, client.DeleteTopic(ctx, t.Name) }, nil
	})
}

func (a *App) topicPurge() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "purge",
		Short:   "Remove all messages of a topic, also those in flight and delayed ones",
		Example: "  tidegate topic purge orders --yes",
	}
	return a.removal(cmd, "TOPIC", func(ctx context.Context, c *call, client *admin.Client) (string, func(context.Context) (string, error), error) {
		t, err := client.Topic(ctx, c.args[0])
		if err != nil {
			return "", nil, c.unknownTopic(ctx, client, err)
		}
		what := fmt.Sprintf("%s messages of %s", output.Number(t.StoredMessages+t.DelayedMessages), t.Name)
		return what, func(ctx context.Context) (string, error) {
			b, err := client.PurgeTopic(ctx, t.Name)
			return fmt.Sprintf("removed %s messages, %v", output.Number(b.Messages), output.Bytes(b.Bytes)), err
		}, nil
	})
}

// A removing function looks what would be removed, and returns a text about it and the removal.
type removing func(ctx context.Context, c *call, client *admin.Client) (what string, do func(context.Context) (string, error), err error)

// removal completes a command that removes the subject of its argument.
func (a *App) removal(cmd *cobra.Command, arg string, look removing) *cobra.Command {
	return a.remote(cmd, []string{arg}, func(ctx context.Context, c *call) error {
		client, err := c.admin(ctx)
		if err != nil {
			return err
		}
		bounded, cancel := c.bounded(ctx)
		what, do, err := look(bounded, c, client)
		cancel()
		if err != nil {
			return err
		}
		if c.dryRun {
			c.note("would remove %s", what)
			return nil
		}
		if err := c.confirm(cmd.Name()+" "+what+"?", c.args[0]); err != nil {
			return err
		}
		ctx, cancel = c.bounded(ctx)
		defer cancel()
		done, err := do(ctx)
		if err == nil {
			c.note("%s", done)
		}
		return err
	}).destructive()
}

// unknownTopic adds the most similar topics to the error of a topic that does not exist.
func (c *call) unknownTopic(ctx context.Context, client *admin.Client, err error) error {
	if !errors.Is(err, tidegate.ErrTopicNotFound) {
		return err
	}
	topics, lerr := client.Topics(ctx)
	if lerr != nil {
		return err
	}
	var names []string
	for _, t := range topics {
		names = append(names, t.Name)
	}
	return unknown(err, c.args[len(c.args)-1], names, "tidegate topic list")
}

func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func matchFlag(c *cobra.Command, at *string) {
	c.Flags().StringVar(at, "match", "", "`pattern` of names, with * for any text")
}

func matchNote(pattern string) string {
	if pattern == "" {
		return ""
	}
	return " with a name like " + output.Safe(pattern)
}

// matching returns the subjects whose name matches a pattern; empty matches all.
func matching[T any](c *call, list []T, pattern string, name func(T) string) ([]T, error) {
	if pattern == "" {
		return list, nil
	}
	match, err := output.Glob(pattern)
	if err != nil {
		return nil, command.UsageError{Err: err, Command: c.command.CommandPath()}
	}
	return slices.DeleteFunc(slices.Clone(list), func(s T) bool { return !match(name(s)) }), nil
}
