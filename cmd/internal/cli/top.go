package cli

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// A topCommand has the flags of top and its state.
type topCommand struct {
	*Call
	topView
	every   time.Duration
	once    bool
	clients bool

	client  *admin.Client
	sampler sampler
}

func newTop(a *App) *cobra.Command {
	k := &topCommand{}
	c := &cobra.Command{
		Use: "top", GroupID: seeGroup,
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
		Annotations: map[string]string{mqAdmin: "statsAll"},
	}
	k.Call = a.Remote(c, nil, func(ctx context.Context, _ *Call) error { return k.run(ctx) })
	f := c.Flags()
	f.StringVar(&k.By, "by", "backlog", "`order`: backlog, age, in, out, retry or dead")
	f.BoolVar(&k.Reverse, "reverse", false, "the smallest first")
	f.BoolVar(&k.Topics, "topics", false, "topics instead of groups")
	f.BoolVar(&k.clients, "clients", false, "clients instead of groups")
	matchFlag(c, &k.Match)
	f.DurationVar(&k.every, "every", time.Second, "interval")
	f.BoolVar(&k.once, "once", false, "print the rates of one interval, and end")
	return c
}

func (k *topCommand) run(ctx context.Context) error {
	if k.every < 100*time.Millisecond {
		return usagef(k.Command, "--every is %v; the shortest interval is 100ms", k.every)
	}
	run := k.runBacklogs
	if k.clients {
		run = k.runClients
	}
	err := run(ctx)
	if endless := k.Format.Chosen == output.JSONL && !k.once || k.draws(); endless {
		return ordinary(ctx, err)
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
	switch {
	case k.Format.Chosen == output.JSONL:
		return k.lines(ctx, func(ctx context.Context) (any, error) {
			f, err := k.look(ctx)
			if err == nil {
				f.Rows, err = k.Rows(f.Rows)
			}
			if k.Limit > 0 {
				f.Rows = f.Rows[:min(len(f.Rows), k.Limit)]
			}
			f.Rows = notNil(f.Rows)
			return f, err
		})
	case k.draws():
		return k.live(ctx, f)
	}
	if err := backoff.Sleep(ctx, k.every); err != nil {
		return err
	}
	if f, err = k.look(ctx); err != nil {
		return err
	}
	return k.table(f)
}

// draws reports whether the command draws on the whole screen.
func (k *topCommand) draws() bool {
	return k.Terminal && !k.once && k.Format.Chosen == output.Table
}

// lines prints a frame as one JSON object after each interval, or after the first one alone.
func (k *topCommand) lines(ctx context.Context, frame func(context.Context) (any, error)) error {
	for outage := (outage{}); ; {
		if err := backoff.Sleep(ctx, k.every); err != nil {
			return err
		}
		f, err := frame(ctx)
		if err != nil && k.once || !outage.Outlived(k.Call, err) {
			return err
		}
		if err != nil {
			continue
		}
		if err := output.Line(k.Out, f); err != nil || k.once {
			return err
		}
	}
}

// look takes a sample and returns its frame.
func (k *topCommand) look(ctx context.Context) (topFrame, error) {
	ctx, cancel := k.Bounded(ctx)
	defer cancel()
	s := sample{At: time.Now()}
	var err error
	if s.Topics, err = k.client.Topics(ctx); err != nil {
		return topFrame{}, err
	}
	if s.Groups, err = k.client.Groups(ctx); err != nil {
		return topFrame{}, err
	}
	if s.Ages, err = k.ages(ctx); err != nil {
		return topFrame{}, err
	}
	o, err := k.client.Overview(ctx)
	if err != nil {
		return topFrame{}, err
	}
	s.Wrong = o.Wrong
	f := k.sampler.Frame(&s, k.Topics)
	f.Interval = k.every.String()
	return f, nil
}

// ages reads the ages of the oldest messages.
func (k *topCommand) ages(ctx context.Context) (ages, error) {
	a := ages{Topics: map[string]int64{}, Groups: map[[2]string]int64{}}
	err := httpapi.Pages("", func(after string) (string, error) {
		page, next, err := k.client.TopicSummaries(ctx, admin.ListQuery{State: "backlog", Limit: 1000, After: after})
		for _, t := range page {
			a.Topics[t.Name] = t.OldestMS
		}
		return next, err
	})
	if err != nil {
		return a, err
	}
	return a, httpapi.Pages("", func(after string) (string, error) {
		page, next, err := k.client.GroupSummaries(ctx, admin.ListQuery{State: "backlog", Limit: 1000, After: after})
		for _, g := range page {
			a.Groups[[2]string{g.Group, g.Topic}] = g.OldestMS
		}
		return next, err
	})
}

// table prints a frame as a table, or as one JSON document.
func (k *topCommand) table(f topFrame) error {
	rows, err := k.Rows(f.Rows)
	if err != nil {
		return err
	}
	what := "group has received"
	if k.Topics {
		what = "topic exists"
	}
	return printList(k.Call, output.List[topRow]{
		Rows: rows, Columns: topColumns(&k.topView, 0),
		Name: func(r topRow) string { return cmp.Or(r.Group, r.Topic) },
		Document: func(shown []topRow) any {
			f.Rows = notNil(shown)
			return f
		},
		Empty: fmt.Sprintf("no %s%s", what, matchNote(k.Match)),
	})
}

// live is the screen of groups or topics.
func (k *topCommand) live(ctx context.Context, f topFrame) error {
	s := topScreen{screenState: screenState{Server: k.client.Endpoint()}, Frame: f}
	all := f.Rows
	return k.screen(ctx, &s.screenState, func(w io.Writer, o output.Options) error {
		s.View = k.topView
		if rows, err := k.Rows(all); err == nil { // else the pattern is not finished
			s.Frame.Rows = rows
		}
		return s.Write(w, o)
	}, func(ctx context.Context) error {
		f, err := k.look(ctx)
		if err == nil { // else the screen keeps the last one
			s.Frame, all = f, f.Rows
		}
		return err
	}, func(key byte) (quit, sample bool) {
		topics := k.Topics
		return k.pressed(key, &s), topics != k.Topics
	})
}

// screen redraws the screen at each interval and after each key, until q, Ctrl-C or the end of ctx.
// pressed carries out a key, and reports whether top ends or needs the next sample at once.
func (k *topCommand) screen(ctx context.Context, s *screenState, write func(io.Writer, output.Options) error, sample func(context.Context) error, pressed func(key byte) (quit, sample bool)) error {
	restore, err := raw(k.In)
	if err != nil {
		return err
	}
	defer restore()
	k.Screen = true
	if err := control(k.Out, enter); err != nil {
		return err
	}
	defer func() { _ = control(k.Out, leave) }() // the error before it is returned
	keys := keys(ctx, k.In)
	tick := time.NewTicker(k.every)
	defer tick.Stop()
	for {
		s.Width, s.Height = size(k.Out)
		var b bytes.Buffer
		if err := write(&b, k.ListOptions()); err != nil {
			return err
		}
		if err := draw(k.Out, b.String()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if !s.Paused {
				s.Failed = sample(ctx)
			}
		case key, ok := <-keys:
			if !ok {
				return nil // no more keys: the terminal is gone
			}
			quit, next := pressed(key)
			if quit {
				return nil
			}
			if next {
				s.Failed = sample(ctx)
			}
		}
	}
}

const ctrlC = 3

// pressed carries out a key. It reports whether top ends.
func (k *topCommand) pressed(key byte, s *topScreen) (quit bool) {
	const escape, backspace, del = 27, 8, 127
	if s.Typing {
		switch {
		case key == '\r' || key == '\n' || key == escape:
			s.Typing = false
		case key == ctrlC:
			return true
		case key == backspace || key == del:
			k.Match = k.Match[:max(0, len(k.Match)-1)]
		case key >= ' ' && key < del:
			k.Match += string(rune(key))
		}
		return false
	}
	switch key {
	case 'q', ctrlC:
		return true
	case 's':
		k.NextOrder()
	case 'r':
		k.Reverse = !k.Reverse
	case 'g':
		k.Topics = !k.Topics
	case 'f':
		s.Typing, k.Match = true, ""
	case 'p':
		s.Paused = !s.Paused
	}
	return false
}

// runClients is top --clients.
func (k *topCommand) runClients(ctx context.Context) (err error) {
	if k.Topics {
		return usagef(k.Command, "--topics and --clients are two lists; give one of them")
	}
	if !k.Command.Flags().Changed("by") {
		k.By = "inflight"
	}
	if err := sortClients(nil, k.By, false); err != nil {
		return k.Usage(err)
	}
	if k.client, err = k.Admin(ctx); err != nil {
		return err
	}
	f, err := k.clientFrame(ctx)
	switch {
	case err != nil:
		return err
	case k.Format.Chosen == output.JSONL:
		if err := output.Line(k.Out, f); err != nil || k.once {
			return err
		}
		return k.lines(ctx, func(ctx context.Context) (any, error) { return k.clientFrame(ctx) })
	case k.draws():
		s := clientScreen{screenState: screenState{Server: k.client.Endpoint()}, Frame: f, By: k.By}
		return k.screen(ctx, &s.screenState, s.Write, func(ctx context.Context) error {
			f, err := k.clientFrame(ctx)
			if err == nil {
				s.Frame = f
			}
			return err
		}, func(key byte) (quit, sample bool) {
			s.Paused = s.Paused != (key == 'p')
			return key == 'q' || key == ctrlC, false
		})
	}
	return printList(k.Call, output.List[status.Client]{
		Rows: f.Clients, Columns: clientColumns(f.At),
		Document: func(shown []status.Client) any {
			f.Clients = notNil(shown)
			return f
		},
		Empty: "no client is connected" + matchNote(k.Match),
	})
}

// clientFrame reads the clients, in the order of the flags.
func (k *topCommand) clientFrame(ctx context.Context) (clientFrame, error) {
	ctx, cancel := k.Bounded(ctx)
	defer cancel()
	all, err := allClients(ctx, k.client, status.ClientQuery{Match: k.Match}, nil)
	if err != nil {
		return clientFrame{}, err
	}
	if err := sortClients(all.Clients, k.By, k.Reverse); err != nil {
		return clientFrame{}, err
	}
	f := clientFrame{At: all.AsOf, Interval: k.every.String(), Total: int(all.Total), Versions: notNil(all.Versions), Clients: notNil(all.Clients)}
	if k.Limit > 0 {
		f.Clients = f.Clients[:min(len(f.Clients), k.Limit)]
	}
	return f, nil
}
