package bench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

// Micros is a number of microseconds: .31 ms, 4.87 ms, 1.20 s; "-" for none.
func Micros(us float64) string {
	d := time.Duration(us * 1e3)
	switch {
	case us < 0:
		return "-"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", us/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", us/1e3)
	}
	return fmt.Sprintf("%.2f s", us/1e6)
}

// Text is a round in one line.
func (r Round) Text() string {
	text := fmt.Sprintf("%s a second", output.Number(int64(r.Achieved)))
	if r.Response != nil {
		text += ", p99 " + Micros(r.Response.P99)
	}
	if r.Invalid != "" {
		text += ", " + r.Invalid
	}
	return text
}

// A line of the table of latencies.
type latencyRow struct {
	name string
	of   func(Round) Latency
}

// Screen writes a result for people: medians over the rounds, with the range of the rate.
func (r Result) Screen(w io.Writer) error {
	if len(r.Rounds) == 0 {
		return nil
	}
	var b strings.Builder
	low, high := span(r.Rounds, achieved)
	loop := r.Arguments["callers"] + " callers, closed loop"
	rows := []latencyRow{{"service", func(r Round) Latency { return r.Service }}}
	open := r.Rounds[0].Response != nil
	if open {
		loop = fmt.Sprintf("open loop %s a second %s", output.Number(int64(r.Rounds[0].Offered)), r.Arguments["arrivals"])
		rows = append([]latencyRow{{"response", func(r Round) Latency { return *r.Response }}}, rows...)
	}
	fmt.Fprintf(&b, "%s  %s, %s, %s × %s\n", r.Benchmark, r.Arguments["size"], loop, r.Arguments["duration"], output.Count(int64(len(r.Rounds)), "round"))
	r.invalid(&b)
	fmt.Fprintf(&b, "rate      %s a second (%s to %s)\n", output.Number(int64(Median(r.Rounds, achieved))), output.Number(int64(low)), output.Number(int64(high)))
	fmt.Fprintf(&b, "%-9s %9s %9s %9s %9s %9s %9s\n", "", "p50", "p90", "p99", "p99.9", "p99.99", "max")
	for _, row := range rows {
		cells := []string{fmt.Sprintf("%-9s", row.name)}
		for _, at := range []func(Latency) float64{
			func(l Latency) float64 { return l.P50 }, func(l Latency) float64 { return l.P90 },
			func(l Latency) float64 { return l.P99 }, func(l Latency) float64 { return l.P999 },
			func(l Latency) float64 { return l.P9999 }, func(l Latency) float64 { return l.Max },
		} {
			cells = append(cells, fmt.Sprintf("%9s", Micros(Median(r.Rounds, func(r Round) float64 { return at(row.of(r)) }))))
		}
		fmt.Fprintln(&b, strings.Join(cells, " "))
	}
	floor := Median(r.Rounds, func(r Round) float64 { return r.Floor })
	p50 := Median(r.Rounds, func(r Round) float64 { return rows[0].of(r).P50 })
	if p50 >= 0 && floor > 0 { // zero: the protocol has no empty request
		fmt.Fprintf(&b, "floor     %s for an empty request: the p50 is %.1f × floor\n", Micros(floor), p50/max(floor, 1e-3))
	}
	if worst := slices.MaxFunc(r.Rounds, func(a, b Round) int { return int(a.WorstP99 - b.WorstP99) }); worst.WorstP99 > 0 {
		fmt.Fprintf(&b, "worst second: p99 %s at second %d of a round\n", Micros(worst.WorstP99), worst.WorstAt)
	}
	if open {
		late := Micros(Median(r.Rounds, func(r Round) float64 { return r.Late.P99 })) + " (p99)"
		if r.Rounds[0].Late.P99 < 0 { // too few for a percentile
			late = "at most " + Micros(Median(r.Rounds, func(r Round) float64 { return r.Late.Max }))
		}
		fmt.Fprintf(&b, "generator: late by %s, %.1f %% of the rate achieved\n", late, 100*Median(r.Rounds, achieved)/r.Rounds[0].Offered)
	}
	r.facts(&b)
	r.outcomes(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// invalid writes each cause of invalid rounds once, with its remedy.
func (r Result) invalid(b *strings.Builder) {
	for _, c := range []struct{ verdict, remedy string }{
		{"NOT VALID", "end other programs on this machine, run the benchmark on another machine, or give a lower --rate"},
		{"OVERLOADED", "give a lower --rate or more --callers; --max-p99 searches the highest rate"},
	} {
		n, why := 0, ""
		for _, round := range r.Rounds {
			if strings.HasPrefix(round.Invalid, c.verdict) {
				n, why = n+1, cmp.Or(why, strings.TrimPrefix(round.Invalid, c.verdict+": "))
			}
		}
		if n == 0 {
			continue
		}
		fmt.Fprintf(b, "%-12s %d of %d rounds: %s\n", c.verdict, n, len(r.Rounds), why)
		if busy := Busy(r.System); busy != "" {
			fmt.Fprintf(b, "%-12s %s\n", "likely cause", busy)
		}
		fmt.Fprintf(b, "%-12s %s\n", "remedy", c.remedy)
	}
}

// Facts writes the cost for the client and the broker, and the lost messages.
func (r Result) Facts(w io.Writer) error {
	var b strings.Builder
	r.facts(&b)
	r.truth(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Result) facts(b *strings.Builder) {
	cpu := Median(r.Rounds, func(r Round) float64 { return r.Client.CPU / max(r.Client.Took, 1e-6) })
	gcs := Median(r.Rounds, func(r Round) float64 { return float64(r.Client.GCs) })
	pause := Median(r.Rounds, func(r Round) float64 { return r.Client.GCPause })
	fmt.Fprintf(b, "client    %.2f processors of %s, %.0f garbage collections with %s of pauses in a round\n", cpu, cmp.Or(r.System["cpus"], "?"), gcs, Micros(pause))
	switch {
	case r.Broker == nil:
	case r.Broker.Disk == 0:
		fmt.Fprintf(b, "broker    %s, in memory\n", output.Safe(r.Broker.Version))
	default:
		fmt.Fprintf(b, "broker    %s, %v on disk, %s fsyncs in the rounds; since its start p50 %s, p99 %s\n", output.Safe(r.Broker.Version),
			output.Bytes(r.Broker.Disk), output.Number(r.Broker.Fsyncs), Micros(r.Broker.FsyncP50), Micros(r.Broker.FsyncP99))
	}
}

func (r Result) outcomes(b *strings.Builder) {
	var done int64
	failed := map[string]int64{}
	for _, round := range r.Rounds {
		done += round.Done
		for cause, n := range round.Failed {
			failed[cause] += n
		}
	}
	parts := []string{output.Number(done) + " done"}
	for _, cause := range slices.Sorted(maps.Keys(failed)) {
		parts = append(parts, fmt.Sprintf("%s failed: %s", output.Number(failed[cause]), output.Safe(cause)))
	}
	b.WriteString(strings.Join(parts, ", ") + "\n")
	r.truth(b)
}

func (r Result) truth(b *strings.Builder) {
	if v := r.Truth; v != nil {
		fmt.Fprintf(b, "accepted %s, delivered %s, lost %s, twice %s, out of order %s (with the warm-up)\n",
			output.Number(v.Accepted), output.Number(v.Delivered), output.Number(v.Lost), output.Number(v.Twice), output.Number(v.OutOfOrder))
	}
}

func span(rounds []Round, figure func(Round) float64) (low, high float64) {
	low, high = figure(rounds[0]), figure(rounds[0])
	for _, r := range rounds {
		low, high = min(low, figure(r)), max(high, figure(r))
	}
	return low, high
}
