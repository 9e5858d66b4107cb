package measure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/tidegate/tidegate/cmd/internal/bench"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// report writes the files and prints the results of the rounds that have ended.
func (b *benchCommand) report() error {
	results := slices.DeleteFunc(b.results, func(r bench.Result) bool { return len(r.Rounds) == 0 })
	if len(results) == 0 {
		return nil // interrupted
	}
	var document any = results[0]
	if len(b.configs) > 1 {
		document = map[string]any{"schema": 1, "results": results}
	}
	var fileErr error // the figures are printed in any case
	for _, f := range []struct {
		path  string
		write func(io.Writer) error
	}{
		{b.file, func(w io.Writer) error { return output.Encode(w, document) }},
		{b.hdr, results[0].WriteHDR}, {b.chart, results[0].WriteChart},
	} {
		fileErr = errors.Join(fileErr, writeFile(f.path, f.write))
	}
	if warning := bench.Busy(results[0].System); warning != "" {
		b.Note("%s", warning)
	}
	if err := errors.Join(fileErr, b.print(results, document)); err != nil {
		return err
	}
	return b.verdict(results)
}

func (b *benchCommand) print(results []bench.Result, document any) error {
	if b.Format.Format == output.JSON || len(b.configs) == 1 && b.JSON() {
		return output.Encode(b.Out, document)
	}
	if len(b.configs) == 1 {
		return results[0].Screen(b.Out, b.Call.Options())
	}
	if err := call.PrintList(b.Call, output.List[bench.Result]{
		Rows: results, Columns: bench.Columns,
		Name: func(r bench.Result) string { return r.Arguments["callers"] + " " + r.Arguments["rate"] },
	}); err != nil || !b.Tables() {
		return err
	}
	return results[0].Facts(b.Out, b.Call.Options())
}

// verdict returns the error of invalid results.
func (b *benchCommand) verdict(results []bench.Result) error {
	failed, rounds := 0, 0
	for _, r := range results {
		for _, round := range r.Rounds {
			rounds++
			if round.Invalid != "" {
				failed++
				b.Note("%s callers: %s", r.Arguments["callers"], round.Invalid)
			}
		}
	}
	truth := results[0].Truth
	switch {
	case truth != nil && truth.Lost+truth.OutOfOrder > 0:
		return fmt.Errorf("%d messages were lost and %d were out of order", truth.Lost, truth.OutOfOrder)
	case failed > 0:
		return fmt.Errorf("%d of %d rounds have no valid figures: %w", failed, rounds, command.ErrPartly)
	}
	return nil
}

// writeFile writes a file anew; an empty path means none.
func writeFile(path string, write func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
