package administration

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
	"github.com/tidegate/tidegate/internal/httpapi"
)

func newTopics(a *call.App) *cobra.Command {
	return call.Parent(call.SeeGroup, "topic", "Show, create, change and delete topics", "  tidegate topic list --sort -backlog",
		newTopicList(a), newTopicShow(a), newPut(a, topicSubject, "create"), newPut(a, topicSubject, "set"), newTopicDelete(a), newTopicPurge(a))
}

var topicSubject = &subject[settings.Topic, status.Topic]{
	noun: "topic", arg: "TOPIC", mqadmin: "updateTopic -t TOPIC -n NAMESERVER -c CLUSTER",
	examples: map[string]string{
		"create": "  tidegate topic create orders type=FIFO queues=8 max_backlog.messages=100000",
		"set":    "  tidegate topic set orders max_rate.messages_per_second=500 retention.time=24h",
	},
	forms: "Durations have units, as in 1h30m. type is NORMAL, FIFO, DELAY or TRANSACTION.",
	get: func(ctx context.Context, c *admin.Client, name string) (status.Topic, settings.Topic, error) {
		t, err := c.Topic(ctx, name)
		return t, t.Topic, err
	},
	create: func(ctx context.Context, c *admin.Client, name string, s settings.Topic) (status.Topic, error) {
		return c.PutTopic(ctx, name, s)
	},
	set: func(ctx context.Context, c *admin.Client, before status.Topic, s settings.Topic, _ map[string]any) (status.Topic, error) {
		return c.IfRevision(before.Revision).PutTopic(ctx, before.Name, s) // s has all settings, those of other operators too
	},
	fixed:   fixed,
	show:    func(c *call.Call, t status.Topic) error { return c.Show(t, t.Name, view.TopicFields(t)) },
	unknown: (*call.Call).UnknownTopic,
}

func newTopicList(a *call.App) *cobra.Command {
	l := &listing[status.TopicSummary]{
		states: []string{"throttled", "backlog", "delayed", "empty"},
		orders: []string{"backlog", "bytes", "stored", "age", "in", "out"},
		page: func(ctx context.Context, c *admin.Client, q admin.ListQuery) ([]status.TopicSummary, string, error) {
			return c.TopicSummaries(ctx, q)
		},
	}
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the topics with their backlog",
		Long: `Lists the topics, as the broker counted them within the last second. BACKLOG, BYTES
and OLDEST are those of the group that is furthest behind; without a group, all
stored messages are the backlog. IN/S is - if it is 0 or not known; the broker knows
it if it was asked in the last minute before.

The states are throttled (the broker rejects sends), backlog (a group has messages),
delayed (messages wait for their delivery time) and empty (no messages).`,
		Example: `  tidegate topic list
  tidegate topic list --match 'orders*' --sort -backlog --limit 10
  tidegate topic list --state throttled
  tidegate topic list --top 5 --by age`,
		Annotations: map[string]string{call.MQAdmin: "topicList"},
	}
	a.Leaf(c, nil, func(ctx context.Context, c *call.Call) error {
		topics, err := l.read(ctx, c, func(status.TopicSummary) bool { return true })
		if err != nil {
			return err
		}
		empty := "no topics" + call.MatchNote(l.Match) + ": create one with 'tidegate topic create NAME'"
		if l.State != "" {
			empty = "no topics in the state " + l.State + call.MatchNote(l.Match)
		}
		return call.PrintList(c, output.List[status.TopicSummary]{
			Rows:     topics,
			Columns:  view.TopicColumns,
			Name:     func(t status.TopicSummary) string { return t.Name },
			Document: func(ts []status.TopicSummary) any { return map[string]any{"topics": call.NotNil(ts)} },
			Empty:    empty,
		})
	})
	l.register(c)
	return c
}

func newTopicShow(a *call.App) *cobra.Command {
	var queues bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show a topic's settings, state and groups",
		Example: `  tidegate topic show orders
  tidegate topic show orders --queues`,
		Annotations: map[string]string{call.MQAdmin: "topicStatus -t TOPIC"},
	}
	a.Leaf(cmd, []string{"TOPIC"}, asking(func(ctx context.Context, c *call.Call, client *admin.Client) error {
		t, err := client.Topic(ctx, c.Args[0])
		if err != nil {
			return c.UnknownTopic(ctx, client, err)
		}
		if !queues {
			return c.Show(t, t.Name, view.TopicFields(t))
		}
		states, err := queuesOf(ctx, client, t.Name)
		if err != nil {
			return err
		}
		document := struct {
			status.Topic
			QueueStates []status.Queue `json:"queue_states"`
		}{t, call.NotNil(states)}
		if err := c.Show(document, t.Name, view.TopicFields(t)); err != nil || !c.Tables() {
			return err
		}
		return call.PrintTable(c, output.List[status.Queue]{Rows: states, Columns: view.QueueColumns, Empty: "The topic has no queue."})
	}))
	cmd.Flags().BoolVar(&queues, "queues", false, "also the contents of each queue")
	return cmd
}

// queuesOf returns the contents of all queues of a topic.
func queuesOf(ctx context.Context, client *admin.Client, topic string) (all []status.Queue, err error) {
	for at := (httpapi.Cursor{}); ; {
		page, err := client.Queues(ctx, topic, at.After, 1000)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Queues...)
		if more, err := at.Advance(page.Next); !more {
			return all, err
		}
	}
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
	return newRemoval(a, cmd, "TOPIC", func(ctx context.Context, c *call.Call, client *admin.Client) (removal, error) {
		t, err := client.Topic(ctx, c.Args[0])
		if err != nil {
			return removal{}, c.UnknownTopic(ctx, client, err)
		}
		what := fmt.Sprintf("topic %s with %s stored messages", t.Name, output.Number(t.StoredMessages))
		return removal{what, nil, func(ctx context.Context) (string, any, error) {
			return "deleted " + what, nil, client.DeleteTopic(ctx, t.Name)
		}}, nil
	})
}

// A purged is the result of a purge.
type purged struct {
	Removed status.Backlog `json:"removed"`
}

func newTopicPurge(a *call.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Remove all messages of a topic, also those in flight and delayed ones",
		Example: `  tidegate topic purge orders --dry-run
  tidegate topic purge orders --yes`,
	}
	return newRemoval(a, cmd, "TOPIC", func(ctx context.Context, c *call.Call, client *admin.Client) (removal, error) {
		b, err := client.CountPurge(ctx, c.Args[0])
		if err != nil {
			return removal{}, c.UnknownTopic(ctx, client, err)
		}
		what := fmt.Sprintf("%s of %s, %v", output.Count(b.Messages, "message"), output.Safe(c.Args[0]), output.Bytes(b.Bytes))
		return removal{what, purged{b}, func(ctx context.Context) (string, any, error) {
			b, err := client.PurgeTopic(ctx, c.Args[0])
			return fmt.Sprintf("removed %s, %v", output.Count(b.Messages, "message"), output.Bytes(b.Bytes)), purged{b}, err
		}}, nil
	})
}
