package state

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

func newMetrics(a *call.App) *cobra.Command {
	var match string
	var totals bool
	c := &cobra.Command{
		Use: "metrics", GroupID: call.SeeGroup,
		Short: "Print the metrics that Prometheus reads",
		Example: `  tidegate metrics --totals
  tidegate metrics --match 'group_.*group="billing"'`,
		Annotations: map[string]string{call.MQAdmin: "brokerStatus -b BROKER"},
	}
	a.Leaf(c, nil, func(ctx context.Context, c *call.Call) error {
		if _, err := view.Metrics("", match); err != nil {
			return c.Usage(err)
		}
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := c.Bounded(ctx)
		defer cancel()
		read := client.Metrics
		if totals {
			read = client.MetricTotals
		}
		text, err := read(ctx)
		if err != nil {
			return err
		}
		rows, _ := view.Metrics(text, match) // the expression is valid
		return call.PrintList(c, output.List[view.Metric]{
			Rows: rows,
			Columns: []output.Column[view.Metric]{
				{Name: "SERIES", Cell: func(m view.Metric) any { return m.Series }},
				{Name: "VALUE", Cell: func(m view.Metric) any { return m.Number() }},
			},
			Name:     func(m view.Metric) string { return m.Series },
			Document: func(ms []view.Metric) any { return map[string]any{"metrics": call.NotNil(ms)} },
			Empty:    "no metric matches",
		})
	})
	c.Flags().StringVar(&match, "match", "", "regular `expression` of names and labels")
	c.Flags().BoolVar(&totals, "totals", false, "sums instead of the series of each topic and group")
	return c
}
