package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/connection"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/output"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/view"
)

// A statusReport is the state of a server and what is wrong with it.
type statusReport struct {
	Server   string         `json:"server"`
	Ready    bool           `json:"ready"`
	Reason   string         `json:"reason,omitempty"` // why it is not ready
	Topics   int            `json:"topics"`
	Groups   int            `json:"groups"`
	Stored   int64          `json:"stored_messages"`
	Bytes    int64          `json:"stored_bytes"`
	Backlog  int64          `json:"backlog_messages"` // of all groups
	Waiting  int64          `json:"waiting_retry"`
	Problems []view.Problem `json:"problems"`
}

func (a *App) status() *cobra.Command {
	return a.leaf(&cobra.Command{
		Use: "status", GroupID: seeGroup,
		Short: "Show whether the server works, and what is wrong now",
		Long: `Shows whether the server works, its totals, and what is wrong now: throttles,
parked and blocked message groups, groups without consumers, and dead letters. It
exits with 0 also if something is wrong; 'tidegate check' has exit codes for
monitoring.`,
		Example: "  tidegate status",
	}, nil, func(ctx context.Context, c *call) error {
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
	})
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
func report(ctx context.Context, client *admin.Client) (statusReport, error) {
	r := statusReport{Server: client.Endpoint(), Ready: true, Problems: []view.Problem{}}
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
	r.Topics, r.Groups = len(topics), len(groups)
	for _, t := range topics {
		r.Stored += t.StoredMessages
		r.Bytes += t.StoredBytes
	}
	for _, g := range groups {
		for _, s := range g.Topics {
			r.Backlog += s.Backlog.Messages
			r.Waiting += s.WaitingRetry
		}
	}
	stored := map[string]int64{}
	for _, t := range topics {
		stored[t.Name] = t.StoredMessages
	}
	r.Problems = append(view.Throttled(throttles), view.Troubled(groups, stored)...)
	return r, nil
}

func (c *call) showStatus(r statusReport) error {
	state := "ready"
	if !r.Ready {
		state = "not ready: " + r.Reason
	}
	err := c.show(r, r.Server, []output.Field{
		{Name: "broker", Value: r.Server},
		{Name: "state", Value: state},
		{Name: "topics", Value: r.Topics},
		{Name: "groups", Value: r.Groups},
		{Name: "stored", Value: fmt.Sprintf("%s messages, %v", output.Number(r.Stored), output.Bytes(r.Bytes))},
		{Name: "backlog", Value: fmt.Sprintf("%s messages of all groups, %s of them wait for a retry", output.Number(r.Backlog), output.Number(r.Waiting))},
	})
	if err != nil || c.json() || c.format.Format == output.Name {
		return err
	}
	if len(r.Problems) == 0 {
		_, err = fmt.Fprintln(c.Out, "\nNothing is wrong.")
		return err
	}
	fmt.Fprintln(c.Out)
	return printList(c, output.List[view.Problem]{
		Rows: r.Problems,
		Columns: []output.Column[view.Problem]{
			{Name: "WRONG NOW", Cell: func(p view.Problem) any { return p.Kind }},
			{Name: "SUBJECT", Cell: func(p view.Problem) any { return p.Subject }},
			{Name: "WHAT", Cell: func(p view.Problem) any { return p.Text }},
			{Name: "NEXT", Cell: func(p view.Problem) any { return p.Next }},
		},
	})
}
