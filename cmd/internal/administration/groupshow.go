package administration

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// A groupDetails has the flags of group show.
type groupDetails struct {
	topic                     string
	queues, schedule, clients bool
}

func newGroupShow(a *call.App) *cobra.Command {
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
		Annotations: map[string]string{call.MQAdmin: "consumerProgress -g GROUP"},
	}
	a.Leaf(c, []string{"GROUP"}, d.run)
	c.Flags().StringVar(&d.topic, "topic", "", "only the progress in this `topic`")
	c.Flags().BoolVar(&d.queues, "queues", false, "also the positions in each queue")
	c.Flags().BoolVar(&d.schedule, "schedule", false, "also when waiting retries come, and when leases end")
	c.Flags().BoolVar(&d.clients, "clients", false, "also the connected consumers")
	return c
}

// A groupDocument is a group with the details that the flags ask for, as JSON.
type groupDocument struct {
	status.Group
	QueueStates []view.GroupQueue          `json:"queue_states,omitempty"`
	Schedules   map[string]status.Schedule `json:"schedules,omitempty"` // by topic
	Clients     *status.ClientPage         `json:"clients,omitempty"`
}

func (d *groupDetails) run(ctx context.Context, c *call.Call) error {
	client, err := c.Admin(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := c.Bounded(ctx)
	defer cancel()
	g, err := client.Group(ctx, c.Args[0])
	if err != nil {
		return c.UnknownGroup(ctx, client, err)
	}
	if d.topic != "" {
		g.Topics = slices.DeleteFunc(g.Topics, func(s status.Subscription) bool { return s.Topic != d.topic })
		if len(g.Topics) == 0 {
			return call.NotFound(fmt.Sprintf("group %s has not received from topic %s", output.Safe(g.Name), output.Safe(d.topic)))
		}
	}
	document := groupDocument{Group: g}
	for _, s := range g.Topics {
		if d.queues {
			queues, err := groupQueues(ctx, client, g.Name, s.Topic)
			if err != nil {
				return err
			}
			document.QueueStates = append(document.QueueStates, queues...)
		}
		if d.schedule {
			due, err := client.Schedule(ctx, g.Name, s.Topic)
			if err != nil {
				return err
			}
			if document.Schedules == nil {
				document.Schedules = map[string]status.Schedule{}
			}
			document.Schedules[s.Topic] = due
		}
	}
	if d.clients {
		page, err := groupClients(ctx, client, g.Name)
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

func showGroup(c *call.Call, g status.Group) error {
	if err := c.Show(g, g.Name, groupFields(g)); err != nil || !c.Tables() {
		return err
	}
	return progressTable(c, g)
}

func (d *groupDetails) tables(c *call.Call, g *groupDocument) error {
	err := progressTable(c, g.Group)
	if err == nil && len(g.QueueStates) > 0 {
		err = call.PrintTable(c, output.List[view.GroupQueue]{Rows: g.QueueStates, Columns: view.GroupQueueColumns})
	}
	if err == nil && d.clients {
		err = clientTable(c, g.Clients)
	}
	if err != nil || !d.schedule {
		return err
	}
	var rows []view.Due
	for _, topic := range slices.Sorted(maps.Keys(g.Schedules)) {
		for _, b := range g.Schedules[topic].Buckets {
			if b.WaitingRetry+b.Inflight > 0 {
				rows = append(rows, view.Due{Topic: topic, DueBucket: b})
			}
		}
	}
	return call.PrintTable(c, output.List[view.Due]{Rows: rows, Columns: view.DueColumns, Empty: "No message is in flight or waits for a retry."})
}

func progressTable(c *call.Call, g status.Group) error {
	var rows []view.Progress
	for _, s := range g.Topics {
		rows = append(rows, view.Progress{Group: g.Name, Subscription: s})
	}
	err := call.PrintTable(c, output.List[view.Progress]{Rows: rows, Columns: view.GroupColumns[1:], Empty: "The group has not received from a topic yet."})
	if err != nil || len(rows) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(c.Out); err != nil {
		return err
	}
	for i := range g.Topics {
		text, next := view.Why(g.Name, &g.Topics[i], time.Now())
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
func printAdvice(c *call.Call, topic string, advice output.Text, next string) error {
	width := 80
	if c.Columns > 0 {
		width = c.Columns
	}
	text := output.Wrap(c.Options().Cell(output.Textf("%s: %s", topic, advice), time.Now()), width)
	if next != "" {
		text += "\n  " + output.Safe(c.Here(next))
	}
	_, err := fmt.Fprintln(c.Out, text)
	return err
}

// groupQueues returns the progress of a group in all queues of a topic.
func groupQueues(ctx context.Context, client *admin.Client, group, topic string) (all []view.GroupQueue, err error) {
	for at := (httpapi.Cursor{}); ; {
		page, err := client.GroupQueues(ctx, group, topic, at.After, 1000)
		if err != nil {
			return nil, err
		}
		for _, q := range page.Queues {
			all = append(all, view.GroupQueue{Topic: topic, GroupQueue: q})
		}
		if more, err := at.Advance(page.Next); !more {
			return all, err
		}
	}
}

func groupFields(g status.Group) []output.Field {
	fields := []output.Field{
		{Name: "group", Value: g.Name},
		{Name: "order", Value: map[bool]string{true: "FIFO, by message group", false: "none"}[g.FIFO]},
		{Name: "maximum attempts", Value: view.Attempts(g.WithDefaults().MaxAttempts)},
		{Name: "retries after", Value: view.Ladder(g.WithDefaults())},
	}
	if g.AutoCreated {
		fields = append(fields, output.Field{Name: "created", Value: "by a receive"})
	}
	if len(g.Topics) > 0 {
		fields = append(fields, output.Field{Name: "counts since", Value: g.Topics[0].CountsSince})
	}
	fields = append(fields, view.SettingFields(g.Group, "fifo", "max_attempts", "retry")...)
	return append(fields, output.Field{Name: "dead letters in", Value: cmp.Or(strings.Join(g.DeadLetterTopics, ", "), "no topic yet")})
}
