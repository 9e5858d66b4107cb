package administration

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

func newTopics(a *call.App) *cobra.Command {
	c := call.Parent(call.SeeGroup, "topic", "Show, create, change and delete topics", "  tidegate topic list --sort -backlog",
		newTopicList(a), newTopicShow(a), newTopicPut(a, "create"), newTopicPut(a, "set"), newTopicDelete(a), newTopicPurge(a))
	return c
}

func newTopicList(a *call.App) *cobra.Command {
	var match string
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the topics with their backlog",
		Example: `  tidegate topic list
  tidegate topic list --match 'orders*' --sort -backlog --limit 10`,
		Annotations: map[string]string{call.MQAdmin: "topicList"},
	}
	a.Leaf(c, nil, func(ctx context.Context, c *call.Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := c.Bounded(ctx)
		defer cancel()
		topics, err := client.Topics(ctx)
		if err != nil {
			return err
		}
		topics, err = call.Matching(c, topics, match, func(t status.Topic) string { return t.Name })
		if err != nil {
			return err
		}
		return call.PrintList(c, output.List[status.Topic]{
			Rows:     topics,
			Columns:  view.TopicColumns,
			Name:     func(t status.Topic) string { return t.Name },
			Document: func(ts []status.Topic) any { return map[string]any{"topics": call.NotNil(ts)} },
			Empty:    "no topics" + call.MatchNote(match) + ": create one with 'tidegate topic create NAME'",
		})
	})
	call.MatchFlag(c, &match)
	return c
}

func newTopicShow(a *call.App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use:         "show",
		Short:       "Show a topic's settings, state and groups",
		Example:     "  tidegate topic show orders",
		Annotations: map[string]string{call.MQAdmin: "topicStatus -t TOPIC"},
	}, []string{"TOPIC"}, func(ctx context.Context, c *call.Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := c.Bounded(ctx)
		defer cancel()
		t, err := client.Topic(ctx, c.Args[0])
		if err != nil {
			return c.UnknownTopic(ctx, client, err)
		}
		return c.Show(t, t.Name, view.TopicFields(t))
	})
}

func newTopicPut(a *call.App, verb string) *cobra.Command {
	var file string
	var dryRun bool
	c := &cobra.Command{Use: verb, Annotations: map[string]string{call.MQAdmin: "updateTopic -t TOPIC -n NAMESERVER -c CLUSTER"}}
	if verb == "create" {
		c.Short = "Create a topic"
		c.Example = "  tidegate topic create orders type=FIFO queues=8 max_backlog.messages=100000"
	} else {
		c.Short = "Change settings of a topic; the others stay"
		c.Example = "  tidegate topic set orders max_rate.messages_per_second=500 retention.time=24h"
	}
	c.Long = c.Short + ".\n\n" + output.Wrap("The settings are "+declare.Help[settings.Topic]()+".") + "\nDurations have units, as in 1h30m. type is NORMAL, FIFO, DELAY or TRANSACTION."
	a.Leaf(c, []string{"TOPIC", "[KEY=VALUE...]"}, func(ctx context.Context, c *call.Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := c.Bounded(ctx)
		defer cancel()
		name := c.Args[0]
		before, err := client.Topic(ctx, name)
		switch missing := errors.Is(err, tidegate.ErrTopicNotFound); {
		case err != nil && (!missing || verb == "set"):
			return c.UnknownTopic(ctx, client, err)
		case err == nil && verb == "create":
			return fmt.Errorf("topic %q exists; change it with 'tidegate topic set %s KEY=VALUE'", name, name)
		}
		wanted, _, err := changed(c, before.Topic, file, c.Args[1:])
		if err != nil {
			return err
		}
		if err := fixed(before.Topic, wanted); err != nil && verb == "set" {
			return c.Usage(err)
		}
		if dryRun {
			return c.Diff(name, before.Topic, wanted)
		}
		if verb == "set" { // wanted has all settings, those of other operators too
			client = client.IfRevision(before.Revision)
		}
		t, err := client.PutTopic(ctx, name, wanted)
		if err != nil {
			return err
		}
		return c.Show(t, t.Name, view.TopicFields(t))
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

func newTopicDelete(a *call.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete", Aliases: []string{"rm"},
		Short:       "Delete a topic and its messages",
		Example:     "  tidegate topic delete orders --yes",
		Annotations: map[string]string{call.MQAdmin: "deleteTopic -t TOPIC -c CLUSTER"},
	}
	return newRemoval(a, cmd, "TOPIC", func(ctx context.Context, c *call.Call, client *admin.Client) (string, func(context.Context) (string, error), error) {
		t, err := client.Topic(ctx, c.Args[0])
		if err != nil {
			return "", nil, c.UnknownTopic(ctx, client, err)
		}
		what := fmt.Sprintf("topic %s with %s stored messages", t.Name, output.Number(t.StoredMessages))
		return what, func(ctx context.Context) (string, error) { return "deleted " + what, client.DeleteTopic(ctx, t.Name) }, nil
	})
}

func newTopicPurge(a *call.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "purge",
		Short:   "Remove all messages of a topic, also those in flight and delayed ones",
		Example: "  tidegate topic purge orders --yes",
	}
	return newRemoval(a, cmd, "TOPIC", func(ctx context.Context, c *call.Call, client *admin.Client) (string, func(context.Context) (string, error), error) {
		t, err := client.Topic(ctx, c.Args[0])
		if err != nil {
			return "", nil, c.UnknownTopic(ctx, client, err)
		}
		what := fmt.Sprintf("%s messages of %s", output.Number(t.StoredMessages+t.DelayedMessages), t.Name)
		return what, func(ctx context.Context) (string, error) {
			b, err := client.PurgeTopic(ctx, t.Name)
			return fmt.Sprintf("removed %s messages, %v", output.Number(b.Messages), output.Bytes(b.Bytes)), err
		}, nil
	})
}
