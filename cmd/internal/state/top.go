package state

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// A topCommand has the flags of top and its state.
type topCommand struct {
	*call.Call
	view.TopView
	every   time.Duration
	once    bool
	clients bool

	client  *admin.Client
	sampler view.Sampler
}

func newTop(a *call.App) *cobra.Command {
	k := &topCommand{}
	c := &cobra.Command{
		Use: "top", GroupID: call.SeeGroup,
		Short: "Watch rates and backlogs of groups or topics, or the clients",
		Long: `Watches groups (or topics with --topics): backlog, the age of its oldest message,
messages in flight, waiting for a retry and parked, and the rates of stored, acknowledged and redelivered messages
and dead letters. A topic's backlog is that of its slowest group. With --clients it
watches the connected clients, and --by is inflight, waiting or idle.

On a terminal it redraws the screen at each interval; the keys are at the bottom.
Without a terminal, or with --once, it prints one table. With -o jsonl it prints a
line for each interval until it is interrupted.`,
		Example: `  tidegate top
  tidegate top --topics --by in --once
  tidegate top --by age --once
  tidegate top --clients --by waiting --once
  tidegate top -o jsonl --every 100ms | head -n 3`,
		Annotations: map[string]string{call.MQAdmin: "statsAll"},
	}
	k.Call = a.Remote(c, nil, func(ctx context.Context, _ *call.Call) error { return k.run(ctx) })
	f := c.Flags()
	f.StringVar(&k.By, "by", "backlog", "`order`: backlog, age, in, out, retry or dead")
	f.BoolVar(&k.Reverse, "reverse", false, "the smallest first")
	f.BoolVar(&k.Topics, "topics", false, "topics instead of groups")
	f.BoolVar(&k.clients, "clients", false, "clients instead of groups")
	call.MatchFlag(c, &k.Match)
	f.DurationVar(&k.every, "every", time.Second, "interval")
	f.BoolVar(&k.once, "once", false, "print the rates of one interval, and end")
	return c
}

func (k *topCommand) run(ctx context.Context) error {
	if k.every < 100*time.Millisecond {
		return command.Usagef(k.Command, "--every is %v; the shortest interval is 100ms", k.every)
	}
	run := k.runBacklogs
	if k.clients {
		run = k.runClients
	}
	err := run(ctx)
	if endless := k.Format.Format == output.JSONL || k.Terminal && k.Format.Format == output.Table; endless && !k.once {
		return command.Ordinary(ctx, err)
	}
	return err
}

func (k *topCommand) runBacklogs(ctx context.Context) error {
	if _, err := k.Rows(nil); err != nil {
		return k.Usage(err)
	}
	var err error
	if k.client, err = k.Admin(ctx); err != nil {
		return err
	}
	f, err := k.look(ctx)
	if err != nil {
		return err
	}
	switch lines := k.Format.Format == output.JSONL; {
	case lines:
		for outage := (call.Outage{}); ; {
			f, err = k.next(ctx)
			if err != nil && k.once || !outage.Outlived(k.Call, err) {
				return err
			}
			if err != nil {
				continue
			}
			if err := k.line(f); err != nil || k.once {
				return err
			}
		}
	case k.Terminal && !k.once && k.Format.Format == output.Table:
		return k.live(ctx, f)
	}
	if f, err = k.next(ctx); err != nil {
		return err
	}
	return k.table(f)
}

// look takes a sample and returns its frame.
func (k *topCommand) look(ctx context.Context) (view.TopFrame, error) {
	ctx, cancel := k.Bounded(ctx)
	defer cancel()
	s := view.Sample{At: time.Now()}
	var err error
	if s.Topics, err = k.client.Topics(ctx); err != nil {
		return view.TopFrame{}, err
	}
	if s.Groups, err = k.client.Groups(ctx); err != nil {
		return view.TopFrame{}, err
	}
	if s.Ages, err = k.ages(ctx); err != nil {
		return view.TopFrame{}, err
	}
	f := k.sampler.Frame(&s, k.Topics)
	f.Interval = k.every.String()
	return f, nil
}

// ages reads the ages of the oldest messages.
func (k *topCommand) ages(ctx context.Context) (view.Ages, error) {
	a := view.Ages{Topics: map[string]int64{}, Groups: map[[2]string]int64{}}
	for at, more := (httpapi.Cursor{}), true; more; {
		page, next, err := k.client.TopicSummaries(ctx, admin.ListQuery{State: "backlog", Limit: 1000, After: at.After})
		if err == nil {
			more, err = at.Advance(next)
		}
		if err != nil {
			return a, err
		}
		for _, t := range page {
			a.Topics[t.Name] = t.OldestMS
		}
	}
	for at, more := (httpapi.Cursor{}), true; more; {
		page, next, err := k.client.GroupSummaries(ctx, admin.ListQuery{State: "backlog", Limit: 1000, After: at.After})
		if err == nil {
			more, err = at.Advance(next)
		}
		if err != nil {
			return a, err
		}
		for _, g := range page {
			a.Groups[[2]string{g.Group, g.Topic}] = g.OldestMS
		}
	}
	return a, nil
}

// next is look after an interval.
func (k *topCommand) next(ctx context.Context) (view.TopFrame, error) {
	if err := backoff.Sleep(ctx, k.every); err != nil {
		return view.TopFrame{}, err
	}
	return k.look(ctx)
}

// line prints a frame as one JSON object.
func (k *topCommand) line(f view.TopFrame) error {
	rows, err := k.Rows(f.Rows)
	if err != nil {
		return err
	}
	if k.Limit > 0 {
		rows = rows[:min(len(rows), k.Limit)]
	}
	f.Rows = call.NotNil(rows)
	return output.Line(k.Out, f)
}

// table prints a frame as a table, or as one JSON document.
func (k *topCommand) table(f view.TopFrame) error {
	rows, err := k.Rows(f.Rows)
	if err != nil {
		return err
	}
	what := "group has received"
	if k.Topics {
		what = "topic exists"
	}
	return call.PrintList(k.Call, output.List[view.TopRow]{
		Rows: rows, Columns: view.TopColumns(&k.TopView, 0),
		Name: func(r view.TopRow) string { return cmp.Or(r.Group, r.Topic) },
		Document: func(shown []view.TopRow) any {
			f.Rows = call.NotNil(shown)
			return f
		},
		Empty: fmt.Sprintf("no %s%s", what, call.MatchNote(k.Match)),
	})
}
