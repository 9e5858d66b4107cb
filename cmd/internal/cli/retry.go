package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

func newRetries(a *App) *cobra.Command {
	return parent(failureGroup, "retry", "Show when a failing message is delivered again", "  tidegate retry preview billing orders",
		newRetryPreview(a))
}

// A previewCommand has the flags of retry preview.
type previewCommand struct {
	*Call
	set                       []string
	handler, lease, retention time.Duration
}

func newRetryPreview(a *App) *cobra.Command {
	k := &previewCommand{}
	c := &cobra.Command{
		Use:   "preview",
		Short: "List the deliveries of a message that always fails, with their times",
		Long: `Lists the deliveries of a message that always fails, its end, and the settings that
are probably wrong. The retries are those of GROUP, or without it those of a new
group; --set changes settings for this list alone. With TOPIC it also checks them
against the topic's retention. On RocketMQ both names are required.

` + output.Wrap("The settings are "+declare.Help[settings.Group]()+".", 80),
		Example: `  tidegate retry preview billing orders
  tidegate retry preview --set 'retry=1s 10s 1m' --set max_attempts=5 --handler 2s`,
	}
	k.Call = a.Remote(c, []string{"[GROUP]", "[TOPIC]"}, func(ctx context.Context, _ *Call) error { return k.run(ctx) })
	f := c.Flags()
	f.StringArrayVar(&k.set, "set", nil, "setting of the group as `KEY=VALUE`; may be repeated")
	f.DurationVar(&k.handler, "handler", 0, "time until a handler fails")
	f.DurationVar(&k.lease, "lease", 0, "invisible time of a received message; 0 checks nothing")
	f.DurationVar(&k.retention, "retention", 0, "time for which the topic keeps messages (default: that of TOPIC)")
	return c
}

func (k *previewCommand) run(ctx context.Context) error {
	for name, d := range map[string]time.Duration{"handler": k.handler, "lease": k.lease, "retention": k.retention} {
		if d < 0 {
			return usagef(k.Command, "--%s is %v; it must not be negative", name, d)
		}
	}
	r, err := k.redelivery(ctx)
	if err != nil {
		return err
	}
	r.Handler, r.Lease, r.Retention = k.handler, k.lease, cmp.Or(k.retention, r.Retention)
	s := scheduleOf(r)
	if err := printList(k.Call, output.List[scheduledAttempt]{
		Rows: s.Attempts, Columns: scheduleColumns,
		Document: func(shown []scheduledAttempt) any { s.Attempts = shown; return s },
		Empty:    "no attempts",
	}); err != nil || k.JSON() || k.Format.Chosen == output.Name {
		return err
	}
	lines := []string{"Then: " + s.End + "."}
	for _, finding := range s.Findings {
		lines = append(lines, "Note: "+finding+".")
	}
	for i, line := range lines {
		if lines[i] = line; k.Columns > 0 {
			lines[i] = output.Wrap(line, k.Columns)
		}
	}
	_, err = fmt.Fprintf(k.Out, "\n%s\n", strings.Join(lines, "\n"))
	return err
}

// redelivery returns the settings in effect.
func (k *previewCommand) redelivery(ctx context.Context) (redelivery, error) {
	if len(k.Args) == 0 {
		return k.ofGroup(settings.Group{})
	}
	s, err := k.Server()
	if err != nil {
		return redelivery{}, err
	}
	ctx, cancel := k.Bounded(ctx)
	defer cancel()
	if s.Kind == connectionRocketMQ {
		return k.ofRocketMQ(ctx)
	}
	client, err := k.Admin(ctx)
	if err != nil {
		return redelivery{}, err
	}
	g, err := client.Group(ctx, k.Args[0])
	if err != nil {
		return redelivery{}, k.UnknownGroup(ctx, client, err)
	}
	r, err := k.ofGroup(g.Group)
	if err != nil || len(k.Args) == 1 {
		return r, err
	}
	t, err := client.Topic(ctx, k.Args[1])
	if err != nil {
		return r, k.UnknownTopic(ctx, client, err)
	}
	r.Retention = max(0, time.Duration(t.WithDefaults().Retention.Time))
	return r, nil
}

// ofGroup returns the retries of settings with the changes of --set.
func (k *previewCommand) ofGroup(g settings.Group) (redelivery, error) {
	g, _, err := changed(k.Call, g, "", k.set)
	if err != nil {
		return redelivery{}, err
	}
	g = g.WithDefaults()
	fate := map[settings.OnExhausted]string{
		settings.OnExhaustedBlock: "the message is retried without end and its message group waits",
		settings.OnExhaustedPark:  "its message group is parked",
	}[g.OnExhausted]
	return redelivery{
		MaxAttempts: g.MaxAttempts, Wait: g.Interval, Steps: len(g.Ladder()), FIFO: g.FIFO,
		Exhausted: cmp.Or(fate, "the message becomes a dead letter"),
	}, nil
}

// ofRocketMQ returns the retries that a RocketMQ pushes to its consumers.
func (k *previewCommand) ofRocketMQ(ctx context.Context) (r redelivery, err error) {
	if len(k.Args) < 2 {
		return r, usagef(k.Command, "on RocketMQ the settings come with a topic: give GROUP TOPIC")
	}
	if len(k.set) > 0 {
		return r, usagef(k.Command, "--set is for a tidegate broker, or without GROUP; on RocketMQ use mqadmin updateSubGroup -g GROUP")
	}
	t, _, err := k.Transport(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	s, err := t.ConsumerSettings(ctx, k.Args[0], k.Args[1])
	if err != nil {
		return r, err
	}
	if s.Retry == nil {
		return r, fmt.Errorf("the server has no retries for group %s", output.Safe(k.Args[0]))
	}
	return redelivery{
		MaxAttempts: s.MaxAttempts, FIFO: s.FIFO, Exhausted: "the message becomes a dead letter",
		Wait: func(attempt int) time.Duration { return s.Retry.Delay(attempt - 1) },
	}, nil
}

// A rewinding has the flags of group rewind.
type rewinding struct {
	to     string
	queues map[string]int64
}

func newGroupRewind(a *App) *cobra.Command {
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
		Annotations: map[string]string{mqAdmin: "resetOffsetByTime -g GROUP -t TOPIC -s TIMESTAMP"},
	}
	c := a.Remote(cmd, []string{"GROUP", "TOPIC"}, r.run)
	cmd.Flags().StringVar(&r.to, "to", "", "`position`: earliest, latest, a time (RFC 3339) or a duration before now (-1h)")
	cmd.Flags().StringToInt64Var(&r.queues, "queue", nil, "offsets of queues, `QUEUE=OFFSET`, instead of --to; the other queues stay")
	return c.Destructive()
}

func (r *rewinding) run(ctx context.Context, c *Call) error {
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
		c.Note("would rewind group %s in topic %s: %s", output.Safe(group), output.Safe(topic), rewound(plan))
		return printRewind(c, plan)
	}
	if err := c.Confirm(fmt.Sprintf("rewind group %s in topic %s, %s?", output.Safe(group), output.Safe(topic), rewound(plan)), group); err != nil {
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

func printRewind(c *Call, queues []status.QueueRewind) error {
	return printList(c, output.List[status.QueueRewind]{
		Rows: queues, Columns: rewindColumns,
		Document: func(qs []status.QueueRewind) any { return map[string]any{"queues": notNil(qs)} },
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
