package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/httpapi"
)

func newGroups(a *App) *cobra.Command {
	return parent(seeGroup, "group", "Show, create, change, rewind and delete consumer groups", "  tidegate group list --lagging 1000",
		newGroupList(a), newGroupShow(a), newGroupLag(a), newPut(a, groupSubject, "create"), newPut(a, groupSubject, "set"), newGroupRewind(a), newGroupDelete(a))
}

var groupSubject = &subject[settings.Group, status.Group]{
	noun: "consumer group", arg: "GROUP", mqadmin: "updateSubGroup -g GROUP -c CLUSTER",
	examples: map[string]string{
		"create": "  tidegate group create billing fifo=true max_attempts=5",
		"set":    "  tidegate group set billing 'retry=1s 10s 1m' max_attempts=8",
	},
	forms: `Durations have units, as in 1h30m; retry is a list of them
with spaces between, in one argument. start is earliest or latest; on_exhausted is
dead-letter, block or park (FIFO groups).`,
	get: func(ctx context.Context, c *admin.Client, name string) (status.Group, settings.Group, error) {
		g, err := c.Group(ctx, name)
		return g, g.Group, err
	},
	create: func(ctx context.Context, c *admin.Client, name string, s settings.Group) (status.Group, error) {
		return c.PutGroup(ctx, name, s)
	},
	set: func(ctx context.Context, c *admin.Client, before status.Group, _ settings.Group, patch map[string]any) (status.Group, error) {
		return c.PatchGroup(ctx, before.Name, patch) // two operators can change different settings
	},
	fixed:   func(_, _ settings.Group) error { return nil },
	show:    showGroup,
	unknown: (*Call).UnknownGroup,
}

// A groupSelection has the flags of group list.
type groupSelection struct {
	listing[status.GroupSummary]
	lagging  int64
	stuck    time.Duration
	withDead bool
}

func newGroupList(a *App) *cobra.Command {
	s := &groupSelection{listing: listing[status.GroupSummary]{
		states: []string{"backlog", "behind", "retry", "parked", "blocked", "held", "dead", "idle"},
		orders: []string{"backlog", "bytes", "age", "in", "out", "ready", "inflight", "retry", "parked", "blocked", "dead", "waiting", "clients"},
		page: func(ctx context.Context, c *admin.Client, q admin.ListQuery) ([]status.GroupSummary, string, error) {
			return c.GroupSummaries(ctx, q)
		},
	}}
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the consumer groups with their progress in each topic",
		Long: `Lists the consumer groups with their progress in each topic, as the broker counted
it within the last second. OLDEST is the age of the oldest message that the group
has not consumed. OUT/S is - if it is 0 or not known; the broker knows it if it was
asked in the last minute before.

The states are backlog (has messages), behind (a message has waited a minute for its
first delivery, or is as old as that and no consumer takes the ready ones), retry
(messages wait for a retry), parked, blocked (behind a message that is retried
without end), held (a client has held a message for a minute), dead (has dead
letters) and idle (has messages that no consumer takes). READY counts messages that
a receive can get: those of parked and blocked message groups are in PARKED and
BLOCKED. CLIENTS (-o wide) counts the clients of the group in all its topics, and FILTERED the
messages that the filter of the consumer skipped since the start of the broker.`,
		Example: `  tidegate group list
  tidegate group list --lagging 1000 --sort -backlog
  tidegate group list --state idle --stuck 5m
  tidegate group list --top 5 --by age
  tidegate group list --with-dead`,
		Annotations: map[string]string{mqAdmin: "consumerProgress"},
	}
	a.Leaf(c, nil, s.list)
	s.register(c)
	f := c.Flags()
	f.StringVar(&s.Topic, "topic", "", "only groups that receive from this `topic`")
	f.Int64Var(&s.lagging, "lagging", 0, "only with a backlog of at least `N` messages")
	f.DurationVar(&s.stuck, "stuck", 0, "only with a message that is not consumed after this `time`")
	f.BoolVar(&s.withDead, "with-dead", false, "only with dead letters")
	return c
}

func (s *groupSelection) list(ctx context.Context, c *Call) error {
	if s.lagging < 0 || s.stuck < 0 {
		return usagef(c.Command, "--lagging and --stuck must not be negative")
	}
	rows, err := s.read(ctx, c, func(g status.GroupSummary) bool {
		return g.Backlog.Messages >= s.lagging && g.OldestMS >= s.stuck.Milliseconds() && (!s.withDead || g.DeadLettersStored > 0)
	})
	if err != nil {
		return err
	}
	empty := "no consumer groups" + matchNote(s.Match) + ": the first receive creates one, or 'tidegate group create NAME'"
	if s.Topic+s.State != "" || s.lagging > 0 || s.stuck > 0 || s.withDead {
		empty = "no consumer groups that the flags select"
	}
	return printList(c, output.List[status.GroupSummary]{
		Rows:     rows,
		Columns:  listColumns,
		Document: func(shown []status.GroupSummary) any { return map[string]any{"groups": notNil(shown)} },
		Empty:    empty,
	})
}

func newGroupDelete(a *App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete", Aliases: []string{"rm"},
		Short:       "Delete a consumer group; its dead letters stay",
		Example:     "  tidegate group delete billing --yes",
		Annotations: map[string]string{mqAdmin: "deleteSubGroup -g GROUP -c CLUSTER"},
	}
	return newRemoval(a, cmd, "GROUP", func(ctx context.Context, c *Call, client *admin.Client) (removal, error) {
		g, err := client.Group(ctx, c.Args[0])
		if err != nil {
			return removal{}, c.UnknownGroup(ctx, client, err)
		}
		what := fmt.Sprintf("group %s with a backlog of %s messages", g.Name, output.Number(backlogOf(g)))
		return removal{what, nil, func(ctx context.Context) (string, any, error) {
			return "deleted " + what, nil, client.DeleteGroup(ctx, g.Name)
		}}, nil
	})
}

// backlogOf is the backlog of a group in all its topics.
func backlogOf(g status.Group) (messages int64) {
	for _, s := range g.Topics {
		messages += s.Backlog.Messages
	}
	return messages
}

// A groupDetails has the flags of group show.
type groupDetails struct {
	topic                     string
	queues, schedule, clients bool
}

func newGroupShow(a *App) *cobra.Command {
	d := &groupDetails{}
	c := &cobra.Command{
		Use:   "show",
		Short: "Show a consumer group's settings, retries and progress",
		Long: `Shows a consumer group's settings, its retries and its progress in each topic, with
one sentence about why it does not consume the topic, and the next command.
--queues adds the positions in each queue: CURSOR is the next offset to be delivered
for the first time. --schedule adds when waiting retries come and when leases end,
and --clients the connected consumers with their versions. FILTERED counts the
messages that the filter of the consumer skipped since the start of the broker.`,
		Example: `  tidegate group show billing
  tidegate group show billing --queues --schedule
  tidegate group show billing --clients`,
		Annotations: map[string]string{mqAdmin: "consumerProgress -g GROUP"},
	}
	a.Leaf(c, []string{"GROUP"}, asking(d.run))
	c.Flags().StringVar(&d.topic, "topic", "", "only the progress in this `topic`")
	c.Flags().BoolVar(&d.queues, "queues", false, "also the positions in each queue")
	c.Flags().BoolVar(&d.schedule, "schedule", false, "also when waiting retries come, and when leases end")
	c.Flags().BoolVar(&d.clients, "clients", false, "also the connected consumers")
	return c
}

// A groupDocument is a group with the details that the flags ask for, as JSON.
type groupDocument struct {
	status.Group
	QueueStates []groupQueue               `json:"queue_states,omitempty"`
	Schedules   map[string]status.Schedule `json:"schedules,omitempty"` // by topic
	Clients     *status.ClientPage         `json:"clients,omitempty"`
}

func (d *groupDetails) run(ctx context.Context, c *Call, client *admin.Client) error {
	g, err := client.Group(ctx, c.Args[0])
	if err != nil {
		return c.UnknownGroup(ctx, client, err)
	}
	if d.topic != "" {
		g.Topics = slices.DeleteFunc(g.Topics, func(s status.Subscription) bool { return s.Topic != d.topic })
		if len(g.Topics) == 0 {
			return notFound(fmt.Sprintf("group %s has not received from topic %s", output.Safe(g.Name), output.Safe(d.topic)))
		}
	}
	document := groupDocument{Group: g, Schedules: map[string]status.Schedule{}}
	for _, s := range g.Topics {
		if d.queues {
			queues, err := groupQueues(ctx, client, g.Name, s.Topic)
			if err != nil {
				return err
			}
			document.QueueStates = append(document.QueueStates, queues...)
		}
		if d.schedule {
			if document.Schedules[s.Topic], err = client.Schedule(ctx, g.Name, s.Topic); err != nil {
				return err
			}
		}
	}
	if d.clients {
		page, err := allClients(ctx, client, status.ClientQuery{Group: g.Name}, nil)
		if err != nil {
			return err
		}
		document.Clients = &page
	}
	if err := c.Show(document, g.Name, groupFields(g)); err != nil || !c.Tables() {
		return err
	}
	return d.tables(c, &document)
}

func showGroup(c *Call, g status.Group) error {
	if err := c.Show(g, g.Name, groupFields(g)); err != nil || !c.Tables() {
		return err
	}
	return progressTable(c, g)
}

func (d *groupDetails) tables(c *Call, g *groupDocument) error {
	err := progressTable(c, g.Group)
	if err == nil && len(g.QueueStates) > 0 {
		err = printTable(c, output.List[groupQueue]{Rows: g.QueueStates, Columns: groupQueueColumns})
	}
	if err == nil && d.clients {
		err = printTable(c, output.List[status.Client]{Rows: g.Clients.Clients, Columns: clientColumns(g.Clients.AsOf), Empty: "No consumer of the group is connected."})
	}
	if err != nil || !d.schedule {
		return err
	}
	var rows []due
	for _, topic := range slices.Sorted(maps.Keys(g.Schedules)) {
		for _, b := range g.Schedules[topic].Buckets {
			if b.WaitingRetry+b.Inflight > 0 {
				rows = append(rows, due{Topic: topic, DueBucket: b})
			}
		}
	}
	return printTable(c, output.List[due]{Rows: rows, Columns: dueColumns, Empty: "No message is in flight or waits for a retry."})
}

func progressTable(c *Call, g status.Group) error {
	rows := mapped(g.Topics, func(s status.Subscription) progress { return progress{g.Name, s} })
	err := printTable(c, output.List[progress]{Rows: rows, Columns: groupColumns[1:], Empty: "The group has not received from a topic yet."})
	if err != nil || len(rows) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(c.Out); err != nil {
		return err
	}
	for i := range g.Topics {
		text, next := why(g.Name, &g.Topics[i], time.Now())
		if text == (output.Text{}) {
			continue
		}
		if err := printAdvice(c, g.Topics[i].Topic, text, next); err != nil {
			return err
		}
	}
	return nil
}

// printAdvice prints a sentence about a topic, and the command that shows more.
func printAdvice(c *Call, topic string, advice output.Text, next string) error {
	text := output.Wrap(c.Options().Cell(output.Textf("%s: %s", topic, advice), time.Now()), cmp.Or(c.Columns, 80))
	if next != "" {
		text += "\n  " + output.Safe(c.Here(next))
	}
	_, err := fmt.Fprintln(c.Out, text)
	return err
}

// groupQueues returns the progress of a group in all queues of a topic.
func groupQueues(ctx context.Context, client *admin.Client, group, topic string) (all []groupQueue, err error) {
	err = httpapi.Pages("", func(after string) (string, error) {
		page, err := client.GroupQueues(ctx, group, topic, after, 1000)
		for _, q := range page.Queues {
			all = append(all, groupQueue{Topic: topic, GroupQueue: q})
		}
		return page.Next, err
	})
	return all, err
}

func groupFields(g status.Group) []output.Field {
	fields := []output.Field{
		{Name: "group", Value: g.Name},
		{Name: "order", Value: map[bool]string{true: "FIFO, by message group", false: "none"}[g.FIFO]},
		{Name: "maximum attempts", Value: attempts(g.WithDefaults().MaxAttempts)},
		{Name: "retries after", Value: ladder(g.WithDefaults())},
	}
	if g.AutoCreated {
		fields = append(fields, output.Field{Name: "created", Value: "by a receive"})
	}
	if len(g.Topics) > 0 {
		fields = append(fields, output.Field{Name: "counts since", Value: g.Topics[0].CountsSince})
	}
	fields = append(fields, settingFields(g.Group, "fifo", "max_attempts", "retry")...)
	return append(fields, output.Field{Name: "dead letters in", Value: cmp.Or(strings.Join(g.DeadLetterTopics, ", "), "no topic yet")})
}

// A lagCommand has the flags of group lag.
type lagCommand struct {
	*Call
	topic       string
	below       int64
	empty       bool
	wait, every time.Duration
}

func newGroupLag(a *App) *cobra.Command {
	k := &lagCommand{}
	c := &cobra.Command{
		Use:   "lag",
		Short: "Print a group's backlog, or wait until it is small",
		Long: `Prints a group's backlog, once or at each interval (--watch). With --until-empty
or --until-below it waits until the backlog of each topic is 0, or below a number,
and exits with 6 if --wait ends first: for deploy scripts and tests.`,
		Example: `  tidegate group lag billing
  tidegate group lag billing --until-below 10 --wait 2m
  tidegate group lag billing --watch -o jsonl | head -n 2`,
		Annotations: map[string]string{mqAdmin: "consumerProgress -g GROUP"},
	}
	k.Call = a.Remote(c, []string{"GROUP"}, func(ctx context.Context, _ *Call) error { return k.run(ctx) })
	c.Flags().StringVar(&k.topic, "topic", "", "only in this `topic`")
	c.Flags().BoolVar(&k.empty, "until-empty", false, "wait until the group has no backlog")
	c.Flags().Int64Var(&k.below, "until-below", 0, "wait until the backlog of each topic is below `N`")
	c.Flags().DurationVar(&k.wait, "wait", time.Minute, "bound of the wait of --until-empty and --until-below")
	watchFlag(c.Flags(), &k.every)
	return c
}

func (k *lagCommand) run(ctx context.Context) error {
	switch {
	case k.below < 0:
		return usagef(k.Command, "--until-below is %d; it is at least 1", k.below)
	case k.empty && k.below > 0:
		return usagef(k.Command, "--until-empty and --until-below exclude each other")
	case k.every > 0 && (k.empty || k.below > 0):
		return usagef(k.Command, "--watch continues until Ctrl-C; it excludes --until-empty and --until-below")
	case k.empty:
		k.below = 1
	}
	client, err := k.Admin(ctx)
	if err != nil {
		return err
	}
	if k.below > 0 {
		return k.until(ctx, client)
	}
	return k.Watch(ctx, k.every, func(ctx context.Context) error {
		rows, _, err := k.lag(ctx, client)
		if err != nil {
			return err
		}
		return k.print(rows)
	})
}

// until waits until the largest backlog is below the bound.
func (k *lagCommand) until(ctx context.Context, client *admin.Client) error {
	started, first := time.Now(), int64(-1)
	for {
		rows, worst, err := k.lag(ctx, client)
		if err != nil {
			return err
		}
		if worst < k.below {
			return k.print(rows)
		}
		if first < 0 {
			first = worst
		}
		waited := time.Since(started)
		if waited >= k.wait {
			return fmt.Errorf("the backlog of group %s is %s after %v (--wait), %s before it; wanted below %s: %w",
				output.Safe(k.Args[0]), output.Number(worst), k.wait, output.Number(first), output.Number(k.below), tidegate.ErrUnavailable)
		}
		if k.Watched {
			_ = control(k.Err, fmt.Sprintf("\rbacklog %s, %s \x1b[K", output.Number(worst).Grouped(), trend(first-worst, worst, waited))) // a note
		}
		if err := backoff.Sleep(ctx, min(time.Second, k.wait-waited)); err != nil {
			return err
		}
	}
}

// trend returns a text with the time until a backlog is empty that fell by some messages in a time.
func trend(fell, left int64, in time.Duration) string {
	if fell <= 0 || in <= 0 {
		return "it does not fall"
	}
	return "empty in " + output.Duration(time.Duration(float64(in)*float64(left)/float64(fell)))
}

func (k *lagCommand) print(rows []progress) error {
	return printList(k.Call, output.List[progress]{
		Rows: rows, Columns: groupColumns, Name: func(p progress) string { return p.Topic },
		Document: func(ps []progress) any { return map[string]any{"topics": notNil(ps)} },
		Empty:    "the group has no topic: it has not received yet",
	})
}

// lag returns a group's progress in its topics and the largest backlog.
func (k *lagCommand) lag(ctx context.Context, client *admin.Client) (rows []progress, worst int64, err error) {
	ctx, cancel := k.Bounded(ctx)
	defer cancel()
	g, err := client.Group(ctx, k.Args[0])
	if err != nil {
		return nil, 0, k.UnknownGroup(ctx, client, err)
	}
	for _, s := range g.Topics {
		if k.topic == "" || s.Topic == k.topic {
			rows = append(rows, progress{Group: g.Name, Subscription: s})
			worst = max(worst, s.Backlog.Messages)
		}
	}
	return rows, worst, nil
}
