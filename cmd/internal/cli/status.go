package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/console"
)

func newStatus(a *App) *cobra.Command {
	var every time.Duration
	c := &cobra.Command{
		Use: "status", GroupID: seeGroup,
		Short: "Show whether the server works, and its present problems",
		Long: `Shows whether the server works, its totals, and its present problems: throttles,
parked and blocked message groups, groups whose messages have waited a minute or
longer for a delivery, and dead letters that were neither sent back nor purged. It
exits with 0 also if something is wrong; 'tidegate check' has exit codes for monitoring.
The broker counts at most once a second.`,
		Example: `  tidegate status
  tidegate status --watch -o jsonl | head -n 2`,
	}
	a.Leaf(c, nil, func(ctx context.Context, c *Call) error {
		return c.Watch(ctx, every, func(ctx context.Context) error { return overview(ctx, c) })
	})
	watchFlag(c.Flags(), &every)
	return c
}

// overview prints the state of the server once.
func overview(ctx context.Context, c *Call) error {
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
func pinged(ctx context.Context, c *Call) error {
	t, s, err := c.Transport(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(t.Ping(ctx), t.Close()); err != nil {
		return err
	}
	more := "mqadmin clusterList shows its brokers"
	if f := s.support(); f != nil {
		more = f.State
	}
	return c.Show(map[string]any{"server": s.Address(), "ready": true}, s.Address(),
		[]output.Field{{Name: "server", Value: s.Address()}, {Name: "state", Value: "it responds; " + more}})
}

func showStatus(c *Call, server string, o status.Overview) error {
	err := c.Show(o, server, statusFields(server, o))
	if err != nil || c.JSON() || c.Format.Chosen == output.Name {
		return err
	}
	problems := wrong(o)
	for i := range problems {
		problems[i].Next = c.Here(problems[i].Next)
	}
	if len(problems) == 0 {
		_, err = fmt.Fprintln(c.Out, "\nNothing is wrong.")
		return err
	}
	if c.Columns > 0 && !c.Selected() {
		_, err = fmt.Fprintf(c.Out, "\nWrong now:\n%s", problemText(problems, c.Columns))
		return err
	}
	fmt.Fprintln(c.Out)
	return printList(c, output.List[viewProblem]{Rows: problems, Columns: problemColumns})
}

func newMetrics(a *App) *cobra.Command {
	var match string
	var totals bool
	c := &cobra.Command{
		Use: "metrics", GroupID: seeGroup,
		Short: "Print the metrics that Prometheus reads",
		Example: `  tidegate metrics --totals
  tidegate metrics --match 'group_.*group="billing"'`,
		Annotations: map[string]string{mqAdmin: "brokerStatus -b BROKER"},
	}
	a.Leaf(c, nil, asking(func(ctx context.Context, c *Call, client *admin.Client) error {
		if _, err := metrics("", match); err != nil {
			return c.Usage(err)
		}
		read := client.Metrics
		if totals {
			read = client.MetricTotals
		}
		text, err := read(ctx)
		if err != nil {
			return err
		}
		rows, _ := metrics(text, match) // the expression is valid
		return printList(c, output.List[metric]{
			Rows: rows,
			Columns: []output.Column[metric]{
				{Name: "SERIES", Cell: func(m metric) any { return m.Series }},
				{Name: "VALUE", Cell: func(m metric) any { return m.Number() }},
			},
			Document: func(ms []metric) any { return map[string]any{"metrics": notNil(ms)} },
			Empty:    "no metric matches",
		})
	}))
	c.Flags().StringVar(&match, "match", "", "regular `expression` of names and labels")
	c.Flags().BoolVar(&totals, "totals", false, "sums instead of the series of each topic and group")
	return c
}

func newConsole(a *App) *cobra.Command {
	o := console.FrontOptions{Out: a.Out, Err: a.Err}
	cmd := &cobra.Command{
		Use: "console", GroupID: seeGroup, Short: "Serve the web console on this machine, for the broker of the context",
		Long: `Serves the web console on 127.0.0.1 until Ctrl-C and forwards its requests to the
broker of the context, with the credentials of the context. It also works if the
broker's own console is off. The printed link works once and for one browser.`,
		Example: "  tidegate console\n  tidegate console --read-only --open",
	}
	f := a.Leaf(cmd, nil, func(ctx context.Context, c *Call) error {
		api, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		s, err := c.Server()
		if err = errors.Join(err, c.within(ctx, api.Healthy)); err != nil {
			return err
		}
		broker, err := s.Raw(ctx)
		if err != nil {
			return err
		}
		defer broker.Close()
		o.Name, o.JSON = s.HTTP, c.JSON()
		return console.RunFront(ctx, broker, o)
	}).Flags()
	f.Uint16Var(&o.Port, "port", 0, "`port` of 127.0.0.1; 0 for a free one")
	f.BoolVar(&o.Open, "open", false, "open the console in the browser")
	f.BoolVar(&o.ReadOnly, "read-only", false, "forward only requests that change nothing")
	return cmd
}
