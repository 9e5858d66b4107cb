package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/httpapi"
)

func newTopics(a *App) *cobra.Command {
	return parent(seeGroup, "topic", "Show, create, change and delete topics", "  tidegate topic list --sort -backlog",
		newTopicList(a), newTopicShow(a), newPut(a, topicSubject, "create"), newPut(a, topicSubject, "set"), newTopicDelete(a), newTopicPurge(a),
		newTopicLite(a), newTopicDeleteLite(a))
}

var topicSubject = &subject[settings.Topic, status.Topic]{
	noun: "topic", arg: "TOPIC", mqadmin: "updateTopic -t TOPIC -n NAMESERVER -c CLUSTER",
	examples: map[string]string{
		"create": "  tidegate topic create orders type=FIFO queues=8 max_backlog.messages=100000",
		"set":    "  tidegate topic set orders max_rate.messages_per_second=500 retention.time=24h",
	},
	forms: "Durations have units, as in 1h30m. type is NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or LITE.",
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
	show:    func(c *Call, t status.Topic) error { return c.Show(t, t.Name, topicFields(t)) },
	unknown: (*Call).UnknownTopic,
}

func newTopicList(a *App) *cobra.Command {
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
		Annotations: map[string]string{mqAdmin: "topicList"},
	}
	a.Leaf(c, nil, func(ctx context.Context, c *Call) error {
		topics, err := l.read(ctx, c, func(status.TopicSummary) bool { return true })
		if err != nil {
			return err
		}
		empty := "no topics" + matchNote(l.Match) + ": create one with 'tidegate topic create NAME'"
		if l.State != "" {
			empty = "no topics in the state " + l.State + matchNote(l.Match)
		}
		return printList(c, output.List[status.TopicSummary]{
			Rows:     topics,
			Columns:  topicColumns,
			Document: func(ts []status.TopicSummary) any { return map[string]any{"topics": notNil(ts)} },
			Empty:    empty,
		})
	})
	l.register(c)
	return c
}

func newTopicShow(a *App) *cobra.Command {
	var queues bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show a topic's settings, state and groups",
		Example: `  tidegate topic show orders
  tidegate topic show orders --queues`,
		Annotations: map[string]string{mqAdmin: "topicStatus -t TOPIC"},
	}
	a.Leaf(cmd, []string{"TOPIC"}, asking(func(ctx context.Context, c *Call, client *admin.Client) error {
		t, err := client.Topic(ctx, c.Args[0])
		if err != nil {
			return c.UnknownTopic(ctx, client, err)
		}
		if !queues {
			return c.Show(t, t.Name, topicFields(t))
		}
		states, err := queuesOf(ctx, client, t.Name)
		if err != nil {
			return err
		}
		document := struct {
			status.Topic
			QueueStates []status.Queue `json:"queue_states"`
		}{t, notNil(states)}
		if err := c.Show(document, t.Name, topicFields(t)); err != nil || !c.Tables() {
			return err
		}
		return printTable(c, output.List[status.Queue]{Rows: states, Columns: queueColumns, Empty: "The topic has no queue."})
	}))
	cmd.Flags().BoolVar(&queues, "queues", false, "also the contents of each queue")
	return cmd
}

// queuesOf returns the contents of all queues of a topic.
func queuesOf(ctx context.Context, client *admin.Client, topic string) (all []status.Queue, err error) {
	err = httpapi.Pages("", func(after string) (string, error) {
		page, err := client.Queues(ctx, topic, after, 1000)
		all = append(all, page.Queues...)
		return page.Next, err
	})
	return all, err
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

func newTopicDelete(a *App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete", Aliases: []string{"rm"},
		Short:       "Delete a topic and its messages",
		Example:     "  tidegate topic delete orders --yes",
		Annotations: map[string]string{mqAdmin: "deleteTopic -t TOPIC -c CLUSTER"},
	}
	return newRemoval(a, cmd, "TOPIC", func(ctx context.Context, c *Call, client *admin.Client) (removal, error) {
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

func newTopicPurge(a *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Remove all messages of a topic, also those in flight and delayed ones",
		Example: `  tidegate topic purge orders --dry-run
  tidegate topic purge orders --yes`,
	}
	return newRemoval(a, cmd, "TOPIC", func(ctx context.Context, c *Call, client *admin.Client) (removal, error) {
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

// A listing has the flags of a list of topics or groups. S is the summary of one.
type listing[S any] struct {
	admin.ListQuery
	top    int
	by     string
	states []string // values of --state
	orders []string // values of --by
	page   func(ctx context.Context, c *admin.Client, q admin.ListQuery) ([]S, string, error)
}

func (l *listing[S]) register(c *cobra.Command) {
	matchFlag(c, &l.Match)
	f := c.Flags()
	f.StringVar(&l.State, "state", "", "only in this `state`: "+strings.Join(l.states, ", "))
	f.IntVar(&l.top, "top", 0, "only the `N` with the highest values of --by")
	f.StringVar(&l.by, "by", "backlog", "`order` of --top: "+strings.Join(l.orders, ", "))
}

func (l *listing[S]) check(c *Call) error {
	switch {
	case l.State != "" && !slices.Contains(l.states, l.State):
		return usagef(c.Command, "--state is %q; the states are %s", l.State, strings.Join(l.states, ", "))
	case !slices.Contains(l.orders, l.by):
		return usagef(c.Command, "--by is %q; the orders are %s", l.by, strings.Join(l.orders, ", "))
	case l.top < 0:
		return usagef(c.Command, "--top is %d; it must not be negative", l.top)
	case l.top == 0 && c.Command.Flags().Changed("by"):
		return usagef(c.Command, "--by belongs to --top N; --sort sorts the rows by a column")
	}
	if _, err := output.Glob(l.Match); err != nil {
		return c.Usage(err)
	}
	return nil
}

// read returns the summaries that the flags select and keep accepts, in the order of the broker.
func (l *listing[S]) read(ctx context.Context, c *Call, keep func(S) bool) ([]S, error) {
	if err := l.check(c); err != nil {
		return nil, err
	}
	client, err := c.Admin(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.Bounded(ctx)
	defer cancel()
	var rows []S
	q := l.ListQuery
	if l.top > 0 {
		q.Sort = "-" + l.by
	}
	q.Limit = 1000
	err = httpapi.Pages(q.After, func(after string) (string, error) {
		q.After = after
		page, next, err := l.page(ctx, client, q)
		for _, s := range page {
			if keep(s) {
				rows = append(rows, s)
			}
			if l.top > 0 && len(rows) == l.top {
				return "", nil
			}
		}
		return next, err
	})
	return rows, err
}

// A removal is a request that removes a subject.
type removal struct {
	what    string // the subject, with its contents
	removes any    // the response that the request would have; nil if it has none
	do      func(context.Context) (done string, response any, err error)
}

// A removing function finds the subject to remove.
type removing func(ctx context.Context, c *Call, client *admin.Client) (removal, error)

// newRemoval completes a command that removes the subject of its argument.
func newRemoval(a *App, cmd *cobra.Command, arg string, look removing) *cobra.Command {
	return a.Remote(cmd, []string{arg}, func(ctx context.Context, c *Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		bounded, cancel := c.Bounded(ctx)
		r, err := look(bounded, c, client)
		cancel()
		if err != nil {
			return err
		}
		if c.DryRun {
			c.Note("would remove %s", r.what)
			return respond(c, r.removes)
		}
		if err := c.Confirm(cmd.Name()+" "+r.what+"?", c.Args[0]); err != nil {
			return err
		}
		ctx, cancel = c.Bounded(ctx)
		defer cancel()
		done, response, err := r.do(ctx)
		if err != nil {
			return err
		}
		c.Note("%s", done)
		return respond(c, response)
	}).Destructive()
}

// respond prints the response of a removal as JSON. A person has read it in the note.
func respond(c *Call, response any) error {
	if response == nil || !c.JSON() {
		return nil
	}
	return c.Show(response, "", nil)
}
