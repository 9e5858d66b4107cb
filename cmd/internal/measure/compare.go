package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/bench"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

func newBenchCompare(a *call.App) *cobra.Command {
	var most string
	c := &cobra.Command{
		Use:     "compare",
		Short:   "Compare two results of bench --json, with an interval",
		Example: "  tidegate bench compare before.json after.json --max-regression 5%",
	}
	r := a.Local(c, []string{"BEFORE", "AFTER"}, func(_ context.Context, c *call.Call) error { return compare(c, most) })
	r.Command.Flags().StringVar(&most, "max-regression", "", "exit with 7 if a figure is shown to be worse by more than this `share`, for example 5%")
	return c
}

// minRounds is the number of rounds from which a bootstrap has more than a few different samples.
const minRounds = 3

func compare(c *call.Call, most string) error {
	bound := -1.0
	if most != "" {
		var percent float64
		if _, err := fmt.Sscanf(strings.TrimSuffix(most, "%")+"%", "%f%%", &percent); err != nil || percent < 0 {
			return command.Usagef(c.Command, "--max-regression is %q; it is a share such as 5%%", most)
		}
		bound = percent / 100
	}
	var results [2]bench.Result
	for i, path := range c.Args {
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &results[i])
		}
		if err == nil && len(results[i].Rounds) == 0 {
			err = errors.New("it has no rounds: it is no result of bench --json, or one of several values of --callers or --rate, which cannot be compared")
		}
		if err != nil {
			return command.Usagef(c.Command, "%s: %v", path, err)
		}
	}
	if a, b := results[0].Benchmark, results[1].Benchmark; a != b {
		return command.Usagef(c.Command, "%s is a result of bench %s, and %s one of bench %s", c.Args[0], a, c.Args[1], b)
	}
	for i, r := range results {
		for _, round := range r.Rounds {
			if round.Invalid != "" {
				return command.Usagef(c.Command, "%s has a round without valid figures: %s", c.Args[i], round.Invalid)
			}
		}
		if len(r.Rounds) < minRounds {
			return command.Usagef(c.Command, "%s has %s; an interval needs at least %d (--rounds)", c.Args[i], output.Count(int64(len(r.Rounds)), "round"), minRounds)
		}
	}
	for name, value := range results[0].Arguments {
		if other := results[1].Arguments[name]; other != value {
			c.Note("the results differ in --%s: %s and %s", name, value, other)
		}
	}
	rows := bench.CompareAll(results[0].Rounds, results[1].Rounds)
	err := call.PrintList(c, output.List[bench.Compared]{
		Rows: rows,
		Columns: []output.Column[bench.Compared]{
			{Name: "FIGURE", Cell: func(r bench.Compared) any { return r.Figure }},
			{Name: "RATIO", Cell: func(r bench.Compared) any { return fmt.Sprintf("%.3f", r.Ratio) }},
			{Name: "INTERVAL", Cell: func(r bench.Compared) any { return fmt.Sprintf("%.3f to %.3f", r.Low, r.High) }},
			{Name: "VERDICT", Cell: func(r bench.Compared) any { return r.Verdict }},
		},
		Name:     func(r bench.Compared) string { return r.Figure },
		Document: func(rs []bench.Compared) any { return map[string]any{"figures": rs} },
	})
	for _, r := range rows {
		if err == nil && bound >= 0 && r.Worse > bound {
			err = fmt.Errorf("the %s is worse by at least %.1f %%; the bound is %s: %w", r.Figure, r.Worse*100, most, command.ErrPartly)
		}
	}
	return err
}
