package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

func (a *App) status() *cobra.Command {
	var every time.Duration
	c := &cobra.Command{
		Use: "status", GroupID: seeGroup,
		Short: "Show whether the server works, and what is wrong now",
		Long: `Shows whether the server works, its totals, and what is wrong now: throttles,
parked and blocked message groups, groups without consumers, and dead letters. It
exits with 0 also if something is wrong; 'tidegate check' has exit codes for
monitoring.`,
		Example: `  tidegate status
  tidegate status --watch -o jsonl | head -n 2`,
	}
	a.leaf(c, nil, func(ctx context.Context, c *call) error { return c.watch(ctx, every, c.status) })
	watchFlag(c.Flags(), &every)
	return c
}

// status prints the state of the server once.
func (c *call) status(ctx context.Context) error {
	s, err := c.server()
	if err != nil {
		return err
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	if s.Kind == connection.RocketMQ {
		return c.pinged(ctx)
	}
	client, err := c.admin(ctx)
	if err != nil {
		return err
	}
	r, err := report(ctx, client)
	if err != nil {
		return err
	}
	return c.showStatus(r)
}

// pinged shows that a RocketMQ answers, which is all that its protocol has for it.
func (c *call) pinged(ctx context.Context) error {
	t, s, err := c.transport(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(t.Ping(ctx), t.Close()); err != nil {
		return err
	}
	return c.show(map[string]any{"server": s.GRPC, "ready": true}, s.GRPC,
		[]output.Field{{Name: "server", Value: s.GRPC}, {Name: "state", Value: "it answers; mqadmin clusterList shows its brokers"}})
}

// report asks the broker for its state.
func report(ctx context.Context, client *admin.Client) (view.Status, error) {
	r := view.Status{Server: client.Endpoint(), Ready: true, Problems: []view.Problem{}}
	if err := client.Ready(ctx); err != nil {
		if err := client.Healthy(ctx); err != nil {
			return r, err
		}
		r.Ready, r.Reason = false, err.Error()
	}
	throttles, err := client.Throttles(ctx)
	if err != nil {
		return r, err
	}
	topics, err := client.Topics(ctx)
	if err != nil {
		return r, err
	}
	groups, err := client.Groups(ctx)
	if err != nil {
		return r, err
	}
	r.Fill(topics, groups, throttles)
	return r, nil
}

func (c *call) showStatus(r view.Status) error {
	err := c.show(r, r.Server, r.Fields())
	if err != nil || c.json() || c.format.Format == output.Name {
		return err
	}
	if len(r.Problems) == 0 {
		_, err = fmt.Fprintln(c.Out, "\nNothing is wrong.")
		return err
	}
	fmt.Fprintln(c.Out)
	return printList(c, output.List[view.Problem]{
		Rows:    r.Problems,
		Columns: view.ProblemColumns,
	})
}
