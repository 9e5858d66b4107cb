package administration

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/terminal"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

// A lagCommand has the flags of group lag.
type lagCommand struct {
	*call.Call
	topic       string
	below       int64
	empty       bool
	wait, every time.Duration
}

func newGroupLag(a *call.App) *cobra.Command {
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
		Annotations: map[string]string{call.MQAdmin: "consumerProgress -g GROUP"},
	}
	k.Call = a.Remote(c, []string{"GROUP"}, func(ctx context.Context, _ *call.Call) error { return k.run(ctx) })
	c.Flags().StringVar(&k.topic, "topic", "", "only in this `topic`")
	c.Flags().BoolVar(&k.empty, "until-empty", false, "wait until the group has no backlog")
	c.Flags().Int64Var(&k.below, "until-below", 0, "wait until the backlog of each topic is below `N`")
	c.Flags().DurationVar(&k.wait, "wait", time.Minute, "bound of the wait of --until-empty and --until-below")
	call.WatchFlag(c.Flags(), &k.every)
	return c
}

func (k *lagCommand) run(ctx context.Context) error {
	switch {
	case k.below < 0:
		return command.Usagef(k.Command, "--until-below is %d; it is at least 1", k.below)
	case k.empty && k.below > 0:
		return command.Usagef(k.Command, "--until-empty and --until-below exclude each other")
	case k.every > 0 && (k.empty || k.below > 0):
		return command.Usagef(k.Command, "--watch continues until Ctrl-C; it excludes --until-empty and --until-below")
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
			_ = terminal.Control(k.Err, fmt.Sprintf("\rbacklog %s, %s \x1b[K", output.Number(worst).Grouped(), trend(first-worst, worst, waited))) // a note
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

func (k *lagCommand) print(rows []view.Progress) error {
	return call.PrintList(k.Call, output.List[view.Progress]{
		Rows: rows, Columns: view.GroupColumns, Name: func(p view.Progress) string { return p.Topic },
		Document: func(ps []view.Progress) any { return map[string]any{"topics": call.NotNil(ps)} },
		Empty:    "the group has no topic: it has not received yet",
	})
}

// lag returns a group's progress in its topics and the largest backlog.
func (k *lagCommand) lag(ctx context.Context, client *admin.Client) (rows []view.Progress, worst int64, err error) {
	ctx, cancel := k.Bounded(ctx)
	defer cancel()
	g, err := client.Group(ctx, k.Args[0])
	if err != nil {
		return nil, 0, k.UnknownGroup(ctx, client, err)
	}
	for _, s := range g.Topics {
		if k.topic == "" || s.Topic == k.topic {
			rows = append(rows, view.Progress{Group: g.Name, Subscription: s})
			worst = max(worst, s.Backlog.Messages)
		}
	}
	return rows, worst, nil
}
