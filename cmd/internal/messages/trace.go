package messages

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/shell"
	"github.com/tidegate/tidegate/cmd/internal/view"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A tracing has the flags of trace and its findings.
type tracing struct {
	look
	topic, group string
	every        time.Duration

	traced []tracedTopic
}

// A tracedTopic is the trace in one topic, as JSON.
type tracedTopic struct {
	Topic string `json:"topic"`
	status.Trace
	view.Redriven
}

func newTrace(a *call.App) *cobra.Command {
	tr := &tracing{}
	c := &cobra.Command{
		Use: "trace", GroupID: call.MessageGroup,
		Short: "Show why a message is not consumed, for each group",
		Long: `Finds a message by its ID and prints one sentence for each group that receives from
its topic: who has it, when it is retried, what it waits for, or why it was given up.
Below it are the failed deliveries that the broker has in memory, with their reasons.
It also prints the beginning of the body, and with -o json the whole message, if you
may receive from the topic.
Without --topic it looks in all topics. The times to look between are taken from the
ID, if it has RocketMQ's form and they are not given.

A dead letter that was edited and sent back has a new ID. The trace of the first
message names it, and the trace of the new message names the first one.`,
		Example: `  tidegate trace ID
  tidegate trace ID --topic orders --group billing -o json`,
		Annotations: map[string]string{call.MQAdmin: "queryMsgById -i ID"},
	}
	tr.Call = a.Remote(c, []string{"ID"}, func(ctx context.Context, _ *call.Call) error { return tr.Watch(ctx, tr.every, tr.run) })
	f := c.Flags()
	f.StringVar(&tr.topic, "topic", "", "the message's `topic`")
	f.StringVar(&tr.group, "group", "", "only this consumer `group`")
	f.StringVar(&tr.since, "since", "", "only messages stored at this `time` or later")
	f.StringVar(&tr.until, "before", "", "only messages stored before this `time`")
	f.Int64Var(&tr.scan, "scan", 1_000_000, "most messages to look at in each topic; 0 means all")
	call.WatchFlag(f, &tr.every)
	tr.queue, tr.offset = -1, -1
	return c
}

func (tr *tracing) run(ctx context.Context) error {
	tr.query.ID, tr.traced = tr.Args[0], nil
	tr.byID()
	tr.from = tr.since
	if err := tr.prepare(); err != nil {
		return tr.Usage(err)
	}
	client, err := tr.Admin(ctx)
	if err != nil {
		return err
	}
	topics := []string{tr.topic}
	if tr.topic == "" {
		if topics, err = tr.allTopics(ctx, client); err != nil {
			return err
		}
	}
	complete := true
	for _, topic := range topics {
		t, err := tr.in(ctx, client, topic)
		if err != nil {
			args := tr.Args
			defer func() { tr.Args = args }() // --watch goes on with the ID
			tr.Args = []string{topic}
			return tr.UnknownTopic(ctx, client, err)
		}
		complete = complete && t.Complete
		if len(t.Messages) > 0 || !t.DeliverAt.IsZero() || t.Half {
			tr.traced = append(tr.traced, tracedTopic{topic, t, redriven(tr.query.ID, &t)})
		}
	}
	if err := tr.printTrace(); err != nil || len(tr.traced) > 0 {
		tr.noteHidden()
		return err
	}
	if !complete {
		return fmt.Errorf("message %s was not found so far; --scan=0 looks at all messages between --since and --before: %w", output.Safe(tr.query.ID), command.ErrPartly)
	}
	return call.NotFound(fmt.Sprintf("no message %s is stored: it was never stored, was recalled, or retention removed it", output.Safe(tr.query.ID)))
}

func (tr *tracing) allTopics(ctx context.Context, client *admin.Client) (names []string, err error) {
	ctx, cancel := tr.Bounded(ctx)
	defer cancel()
	topics, err := client.Topics(ctx)
	for _, t := range topics {
		if t.StoredMessages > 0 || t.DelayedMessages > 0 || t.HalfMessages > 0 {
			names = append(names, t.Name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(letters(a), letters(b)) })
	return names, err
}

// letters is 1 for a dead letter topic, which comes after the topics that have dead letters.
func letters(topic string) int {
	if strings.HasPrefix(topic, tidegate.DeadLetterTopic("")) {
		return 1
	}
	return 0
}

// in traces the message in one topic.
func (tr *tracing) in(ctx context.Context, client *admin.Client, topic string) (all status.Trace, err error) {
	q, scanned := tr.query, int64(0)
	q.Text = true
	for at := (httpapi.Cursor{After: q.After}); ; {
		q.After = at.After
		t, err := contents(ctx, &tr.look, &q, func(ctx context.Context) (status.Trace, error) { return client.Trace(ctx, topic, tr.group, q) })
		if err != nil {
			return all, err
		}
		scanned += t.Scanned
		t.Messages = append(all.Messages, t.Messages...)
		if t.DeliverAt.IsZero() {
			t.DeliverAt = all.DeliverAt
		}
		t.Half, t.Scanned = t.Half || all.Half, scanned
		if all = t; t.Complete || tr.scan > 0 && scanned >= tr.scan {
			return all, nil
		}
		if more, err := at.Advance(t.Next); !more {
			return all, err
		}
	}
}

// redriven returns the IDs of the messages before and after the message's redrives with a new ID.
func redriven(id string, t *status.Trace) (r view.Redriven) {
	if first, redrives := protocol.CutRedrive(id); redrives > 0 {
		r.First = first
	}
	for i := range t.Messages {
		for _, f := range t.Messages[i].Groups {
			r.As = cmp.Or(f.RedrivenAs, r.As)
		}
	}
	return r
}

func (tr *tracing) printTrace() error {
	if tr.JSON() {
		return tr.Show(map[string]any{"topics": call.NotNil(tr.traced)}, "", nil)
	}
	style, now := tr.Times.TimeStyle, time.Now()
	for _, t := range tr.traced {
		text := view.Trace(t.Topic, tr.query.ID, &t.Trace, style, now) + t.Redriven.Text(func(id string) string { return tr.Here(shell.Line(tr.Command.Root().Name()+" trace", id)) })
		if tr.Format.Format == output.Name {
			text = output.Word(t.Topic) + "\n"
		}
		if _, err := fmt.Fprint(tr.Out, text); err != nil {
			return err
		}
	}
	return nil
}
