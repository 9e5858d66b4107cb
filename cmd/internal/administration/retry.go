package administration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

func newRetries(a *call.App) *cobra.Command {
	return call.Parent(call.FailureGroup, "retry", "Show when a failing message is delivered again", "  tidegate retry preview billing orders",
		newRetryPreview(a))
}

// A previewCommand has the flags of retry preview.
type previewCommand struct {
	*call.Call
	set                       []string
	handler, lease, retention time.Duration
}

func newRetryPreview(a *call.App) *cobra.Command {
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
	k.Call = a.Remote(c, []string{"[GROUP]", "[TOPIC]"}, func(ctx context.Context, _ *call.Call) error { return k.run(ctx) })
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
			return command.Usagef(k.Command, "--%s is %v; it must not be negative", name, d)
		}
	}
	r, err := k.redelivery(ctx)
	if err != nil {
		return err
	}
	r.Handler, r.Lease, r.Retention = k.handler, k.lease, cmp.Or(k.retention, r.Retention)
	s := view.ScheduleOf(r)
	if err := call.PrintList(k.Call, output.List[view.ScheduledAttempt]{
		Rows: s.Attempts, Columns: view.ScheduleColumns,
		Name:     func(a view.ScheduledAttempt) string { return fmt.Sprint(a.Attempt) },
		Document: func(shown []view.ScheduledAttempt) any { s.Attempts = shown; return s },
		Empty:    "no attempts",
	}); err != nil || k.JSON() || k.Format.Format == output.Name {
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
func (k *previewCommand) redelivery(ctx context.Context) (view.Redelivery, error) {
	if len(k.Args) == 0 {
		return k.ofGroup(settings.Group{})
	}
	s, err := k.Server()
	if err != nil {
		return view.Redelivery{}, err
	}
	ctx, cancel := k.Bounded(ctx)
	defer cancel()
	if s.Kind == connection.RocketMQ {
		return k.ofRocketMQ(ctx)
	}
	client, err := k.Admin(ctx)
	if err != nil {
		return view.Redelivery{}, err
	}
	g, err := client.Group(ctx, k.Args[0])
	if err != nil {
		return view.Redelivery{}, k.UnknownGroup(ctx, client, err)
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
func (k *previewCommand) ofGroup(g settings.Group) (view.Redelivery, error) {
	g, _, err := changed(k.Call, g, "", k.set)
	if err != nil {
		return view.Redelivery{}, err
	}
	g = g.WithDefaults()
	fate := map[settings.OnExhausted]string{
		settings.OnExhaustedBlock: "the message is retried without end and its message group waits",
		settings.OnExhaustedPark:  "its message group is parked",
	}[g.OnExhausted]
	return view.Redelivery{
		MaxAttempts: g.MaxAttempts, Wait: g.Interval, Steps: len(g.Ladder()), FIFO: g.FIFO,
		Exhausted: cmp.Or(fate, "the message becomes a dead letter"),
	}, nil
}

// ofRocketMQ returns the retries that a RocketMQ pushes to its consumers.
func (k *previewCommand) ofRocketMQ(ctx context.Context) (r view.Redelivery, err error) {
	if len(k.Args) < 2 {
		return r, command.Usagef(k.Command, "on RocketMQ the settings come with a topic: give GROUP TOPIC")
	}
	if len(k.set) > 0 {
		return r, command.Usagef(k.Command, "--set is for a tidegate broker, or without GROUP; on RocketMQ use mqadmin updateSubGroup -g GROUP")
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
	return view.Redelivery{
		MaxAttempts: s.MaxAttempts, FIFO: s.FIFO, Exhausted: "the message becomes a dead letter",
		Wait: func(attempt int) time.Duration { return s.Retry.Delay(attempt - 1) },
	}, nil
}
