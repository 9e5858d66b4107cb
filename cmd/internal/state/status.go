package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

func newStatus(a *call.App) *cobra.Command {
	var every time.Duration
	c := &cobra.Command{
		Use: "status", GroupID: call.SeeGroup,
		Short: "Show whether the server works, and its present problems",
		Long: `Shows whether the server works, its totals, and its present problems: throttles,
parked and blocked message groups, groups whose messages have waited a minute or
longer for a delivery, and dead letters that were neither sent back nor purged. It
exits with 0 also if something is wrong; 'tidegate check' has exit codes for monitoring.
The broker counts at most once a second.`,
		Example: `  tidegate status
  tidegate status --watch -o jsonl | head -n 2`,
	}
	a.Leaf(c, nil, func(ctx context.Context, c *call.Call) error {
		return c.Watch(ctx, every, func(ctx context.Context) error { return overview(ctx, c) })
	})
	call.WatchFlag(c.Flags(), &every)
	return c
}

// overview prints the state of the server once.
func overview(ctx context.Context, c *call.Call) error {
	s, err := c.Server()
	if err != nil {
		return err
	}
	ctx, cancel := c.Bounded(ctx)
	defer cancel()
	if s.WithoutHTTP() {
		return pinged(ctx, c)
	}
	client, err := c.Admin(ctx)
	if err != nil {
		return err
	}
	o, err := client.Overview(ctx)
	if err != nil {
		return err
	}
	return showStatus(c, client.Endpoint(), o)
}

// pinged shows that a server without an HTTP API responds. Its protocol has no other status.
func pinged(ctx context.Context, c *call.Call) error {
	t, s, err := c.Transport(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(t.Ping(ctx), t.Close()); err != nil {
		return err
	}
	more := "mqadmin clusterList shows its brokers"
	if s.Kind == connection.AMQP {
		more = "the web console of Artemis and 'artemis queue stat' show its queues"
	}
	return c.Show(map[string]any{"server": s.Address(), "ready": true}, s.Address(),
		[]output.Field{{Name: "server", Value: s.Address()}, {Name: "state", Value: "it responds; " + more}})
}

func showStatus(c *call.Call, server string, o status.Overview) error {
	err := c.Show(o, server, view.StatusFields(server, o))
	if err != nil || c.JSON() || c.Format.Format == output.Name {
		return err
	}
	problems := view.Wrong(o)
	for i := range problems {
		problems[i].Next = c.Here(problems[i].Next)
	}
	if len(problems) == 0 {
		_, err = fmt.Fprintln(c.Out, "\nNothing is wrong.")
		return err
	}
	if c.Columns > 0 && !c.Selected() {
		_, err = fmt.Fprintf(c.Out, "\nWrong now:\n%s", view.ProblemText(problems, c.Columns))
		return err
	}
	fmt.Fprintln(c.Out)
	return call.PrintList(c, output.List[view.Problem]{Rows: problems, Columns: view.ProblemColumns})
}
