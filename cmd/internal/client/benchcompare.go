package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/bench"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

func (a *App) benchCompare() *cobra.Command {
	var most string
	c := &cobra.Command{
		Use:     "compare",
		Short:   "Compare two results of bench --json, with an interval",
		Example: "  tidegate bench compare before.json after.json --max-regression 5%",
	}
	r := a.local(c, []string{"BEFORE", "AFTER"}, func(_ context.Context, c *call) error { return c.compare(most) })
	r.command.Flags().StringVar(&most, "max-regression", "", "exit with 7 if a figure is shown to be worse by more than this `share`, for example 5%")
	return c
}

// minRounds is the number of rounds from which a bootstrap has more than a few different samples.
const minRounds = 3

// A comparisonRow is one compared figure.
type comparisonRow struct {
	Figure string `json:"figure"`
	bench.Comparison
	Verdict string  `json:"verdict"`
	worse   float64 // the share by which it is worse at least; 0 if no difference is shown
}

func (c *call) compare(most string) error {
	bound := -1.0
	if most != "" {
		var percent float64
		if _, err := fmt.Sscanf(strings.TrimSuffix(most, "%")+"%", "%f%%", &percent); err != nil || percent < 0 {
			return command.Usagef(c.command, "--max-regression is %q; it is a share such as 5%%", most)
		}
		bound = percent / 100
	}
	var results [2]bench.Result
	for i, path := range c.args {
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &results[i])
		}
		if err == nil && len(results[i].Rounds) == 0 {
			err = errors.New("it has no rounds: it is no result of bench --json")
		}
		if err != nil {
			return command.Usagef(c.command, "%s: %v", path, err)
		}
	}
	if a, b := results[0].Benchmark, results[1].Benchmark; a != b {
		return command.Usagef(c.command, "%s is a result of bench %s, and %s one of bench %s", c.args[0], a, c.args[1], b)
	}
	for i, r := range results {
		for _, round := range r.Rounds {
			if round.Invalid != "" {
				return command.Usagef(c.command, "%s has a round without valid figures: %s", c.args[i], round.Invalid)
			}
		}
		if len(r.Rounds) < minRounds {
			return command.Usagef(c.command, "%s has %s; an interval needs at least %d (--rounds)", c.args[i], output.Count(int64(len(r.Rounds)), "round"), minRounds)
		}
	}
	for name, value := range results[0].Arguments {
		if other := results[1].Arguments[name]; other != value {
			c.note("the results differ in --%s: %s and %s", name, value, other)
		}
	}
	rows := compared(results[0].Rounds, results[1].Rounds)
	err := printList(c, output.List[comparisonRow]{
		Rows: rows,
		Columns: []output.Column[comparisonRow]{
			{Name: "FIGURE", Cell: func(r comparisonRow) any { return r.Figure }},
			{Name: "RATIO", Cell: func(r comparisonRow) any { return fmt.Sprintf("%.3f", r.Ratio) }},
			{Name: "INTERVAL", Cell: func(r comparisonRow) any { return fmt.Sprintf("%.3f to %.3f", r.Low, r.High) }},
			{Name: "VERDICT", Cell: func(r comparisonRow) any { return r.Verdict }},
		},
		Name:     func(r comparisonRow) string { return r.Figure },
		Document: func(rs []comparisonRow) any { return map[string]any{"figures": rs} },
	})
	for _, r := range rows {
		if err == nil && bound >= 0 && r.worse > bound {
			err = fmt.Errorf("the %s is worse by at least %.1f %%; the bound is %s: %w", r.Figure, r.worse*100, most, command.ErrPartly)
		}
	}
	return err
}

func compared(before, after []bench.Round) []comparisonRow {
	row := func(name string, moreIsBetter bool, figure func(bench.Round) float64) comparisonRow {
		r := comparisonRow{Figure: name, Comparison: bench.Compare(before, after, figure), Verdict: "no difference shown"}
		better := r.Low > 1 == moreIsBetter
		switch {
		case !r.Different():
		case better:
			r.Verdict = "better"
		case moreIsBetter:
			r.Verdict, r.worse = "worse", 1-r.High
		default:
			r.Verdict, r.worse = "worse", r.Low-1
		}
		return r
	}
	var rows []comparisonRow
	if before[0].Offered == 0 { // the rate of an open loop is given
		rows = append(rows, row("rate", true, func(r bench.Round) float64 { return r.Achieved }))
	}
	rows = append(rows,
		row("service p50", false, func(r bench.Round) float64 { return r.Service.P50 }),
		row("service p99", false, func(r bench.Round) float64 { return r.Service.P99 }),
	)
	if before[0].Response != nil && after[0].Response != nil {
		rows = append(rows,
			row("response p50", false, func(r bench.Round) float64 { return r.Response.P50 }),
			row("response p99", false, func(r bench.Round) float64 { return r.Response.P99 }))
	}
	return rows
}
