package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/connection"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/output"
)

// A statusReport is the state of a server and what is wrong with it.
type statusReport struct {
	Server   string    `json:"server"`
	Ready    bool      `json:"ready"`
	Reason   string    `json:"reason,omitempty"` // why it is not ready
	Topics   int       `json:"topics"`
	Groups   int       `json:"groups"`
	Stored   int64     `json:"stored_messages"`
	Bytes    int64     `json:"stored_bytes"`
	Backlog  int64     `json:"backlog_messages"` // of all groups
	Waiting  int64     `json:"waiting_retry"`
	Problems []problem `json:"problems"`
}

// A problem is one thing that is wrong now, with the command that shows more.
type problem struct {
	Kind    string `json:"kind"` // throttle, parked, blocked, backlog, dead-letters
	Subject string `json:"subject"`
	Text    string `json:"text"`
	Next    string `json:"next"` // a command
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
	r := statusReport{Server: client.Endpoint(), Ready: true, Problems: []problem{}}
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
	r.Problems = append(throttled(throttles), troubled(groups, stored)...)
	return r, nil
}

func throttled(state status.Throttles) []problem {
	out := []problem{}
	for _, t := range state.Throttles {
		out = append(out, problem{"throttle", or(t.Subject, "broker"), fmt.Sprintf("sends are rejected: %s is %s of %s %s, accepted again at %s",
			t.Limit, output.Number(t.Value), output.Number(t.Mark), t.Unit, output.Number(t.Resume)), "tidegate limits show"})
	}
	return out
}

// troubled lists what is wrong with groups, the largest first. Stored has the stored messages of
// each topic.
func troubled(groups []status.Group, stored map[string]int64) []problem {
	type ranked struct {
		problem
		weight int64
	}
	var out []ranked
	for _, g := range groups {
		for _, s := range g.Topics {
			subject := g.Name + " in " + s.Topic
			if s.ParkedGroups > 0 {
				out = append(out, ranked{problem{"parked", subject, fmt.Sprintf("%s with %s wait after a failed message", count(s.ParkedGroups, "message group"), count(s.Parked, "message")),
					"tidegate parked list " + g.Name}, s.Parked})
			}
			if s.BlockedGroups > 0 {
				out = append(out, ranked{problem{"blocked", subject, count(s.BlockedGroups, "message group") + " blocked by a message that fails without end",
					"tidegate group show " + g.Name}, s.BlockedGroups})
			}
			if s.Ready > 0 && s.Inflight == 0 {
				out = append(out, ranked{problem{"backlog", subject, count(s.Ready, "message") + " ready and none in flight: does a consumer run?",
					"tidegate group show " + g.Name}, s.Ready})
			}
		}
		if n := deadLettersOf(g, stored); n > 0 {
			out = append(out, ranked{problem{"dead-letters", g.Name, count(n, "dead letter") + " of messages that failed in all attempts", "tidegate dead-letters top " + g.Name}, n})
		}
	}
	slices.SortStableFunc(out, func(a, b ranked) int { return int(min(max(b.weight-a.weight, -1), 1)) })
	list := make([]problem, len(out))
	for i, r := range out {
		list[i] = r.problem
	}
	return list
}

// deadLettersOf is the number of stored dead letters of a group.
func deadLettersOf(g status.Group, stored map[string]int64) int64 {
	var n int64
	for _, topic := range g.DeadLetterTopics {
		n += stored[topic]
	}
	return n
}

// count is a number with its noun: 1 message, 2 messages.
func count(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return output.Number(n) + " " + noun
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
	return printList(c, output.List[problem]{
		Rows: r.Problems,
		Columns: []output.Column[problem]{
			{Name: "WRONG NOW", Cell: func(p problem) any { return p.Kind }},
			{Name: "SUBJECT", Cell: func(p problem) any { return p.Subject }},
			{Name: "WHAT", Cell: func(p problem) any { return p.Text }},
			{Name: "NEXT", Cell: func(p problem) any { return p.Next }},
		},
	})
}
