package administration

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

// A rewinding has the flags of group rewind.
type rewinding struct {
	to     string
	queues map[string]int64
}

func newGroupRewind(a *call.App) *cobra.Command {
	r := &rewinding{}
	cmd := &cobra.Command{
		Use:   "rewind",
		Short: "Move a group to another position of a topic, backward or forward",
		Long: `Moves a group to another position of a topic. Messages between the old and the
new position are delivered again, or skipped. The group loses its unfinished
messages there: their receipt handles become invalid. --dry-run prints the position
of each queue before and after it, and how many offsets lie between.`,
		Example: `  tidegate group rewind billing orders --to -1h --dry-run
  tidegate group rewind billing orders --to latest --yes
  tidegate group rewind billing orders --queue 0=0 --yes`,
		Annotations: map[string]string{call.MQAdmin: "resetOffsetByTime -g GROUP -t TOPIC -s TIMESTAMP"},
	}
	c := a.Remote(cmd, []string{"GROUP", "TOPIC"}, r.run)
	cmd.Flags().StringVar(&r.to, "to", "", "`position`: earliest, latest, a time (RFC 3339) or a duration before now (-1h)")
	cmd.Flags().StringToInt64Var(&r.queues, "queue", nil, "offsets of queues, `QUEUE=OFFSET`, instead of --to; the other queues stay")
	return c.Destructive()
}

func (r *rewinding) run(ctx context.Context, c *call.Call) error {
	position, err := r.position(time.Now())
	if err != nil {
		return c.Usage(err)
	}
	client, err := c.Admin(ctx)
	if err != nil {
		return err
	}
	group, topic := c.Args[0], c.Args[1]
	bounded, cancel := c.Bounded(ctx)
	plan, err := client.PlanRewind(bounded, group, topic, position)
	cancel()
	if err != nil {
		return c.UnknownGroup(ctx, client, err)
	}
	if c.DryRun {
		c.Note("would rewind group %s in topic %s: %s", output.Safe(group), output.Safe(topic), view.Rewound(plan))
		return printRewind(c, plan)
	}
	if err := c.Confirm(fmt.Sprintf("rewind group %s in topic %s, %s?", output.Safe(group), output.Safe(topic), view.Rewound(plan)), group); err != nil {
		return err
	}
	ctx, cancel = c.Bounded(ctx)
	defer cancel()
	queues, err := client.Rewind(ctx, group, topic, position)
	if err != nil {
		return err
	}
	return printRewind(c, queues)
}

func printRewind(c *call.Call, queues []status.QueueRewind) error {
	return call.PrintList(c, output.List[status.QueueRewind]{
		Rows: queues, Columns: view.RewindColumns,
		Name:     func(q status.QueueRewind) string { return fmt.Sprint(q.Queue) },
		Document: func(qs []status.QueueRewind) any { return map[string]any{"queues": call.NotNil(qs)} },
		Empty:    "the topic has no queue of this group",
	})
}

// position reads the flags.
func (r *rewinding) position(now time.Time) (status.Position, error) {
	switch {
	case r.to != "" && len(r.queues) > 0:
		return status.Position{}, errors.New("--to and --queue exclude each other")
	case len(r.queues) > 0:
		offsets := map[int]int64{}
		for queue, offset := range r.queues {
			n, err := strconv.Atoi(queue)
			if err != nil || n < 0 || offset < 0 {
				return status.Position{}, fmt.Errorf("--queue is %s=%d; it is QUEUE=OFFSET, as in 0=4711", queue, offset)
			}
			offsets[n] = offset
		}
		return status.Position{Offsets: offsets}, nil
	case r.to == "":
		return status.Position{}, errors.New("--to is missing: give earliest, latest, a time, or a duration before now as in -1h")
	case r.to == "earliest":
		return status.Position{Earliest: true}, nil
	case r.to == "latest":
		return status.Position{Latest: true}, nil
	}
	t, err := output.ParseTime(r.to, now)
	if err != nil {
		return status.Position{}, fmt.Errorf("--to %w, earliest or latest", err)
	}
	return status.Position{Time: t}, nil
}
