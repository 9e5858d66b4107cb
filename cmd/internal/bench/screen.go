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
func (r Round) Text() output.Text {
	more := ""
	if r.Response != nil {
		more += ", p99 " + Micros(r.Response.P99)
	}
	if r.Invalid != "" {
		more += ", " + r.Invalid
	}
	return output.Textf("%s a second%s", output.Number(r.Achieved), more)
}

// A page is a result for people. On a terminal its lines are wrapped.
type page struct {
	text strings.Builder
	o    output.Options
}

func (p *page) printf(format string, args ...any) {
	text := output.Textf(format, args...)
	line := text.String()
	if !p.o.Plain {
		line = text.Grouped()
	}
	if line = strings.TrimSuffix(line, "\n"); p.o.Width > 0 && output.Width(line) > p.o.Width {
		line = strings.ReplaceAll(output.Wrap(line, p.o.Width-2), "\n", "\n  ")
	}
	p.text.WriteString(line + "\n")
}

// A line of the table of latencies.
type latencyRow struct {
	name string
	of   func(Round) Latency
}

// Screen writes a result for people: medians over the rounds, with the range of the rate.
func (r Result) Screen(w io.Writer, o output.Options) error {
	if len(r.Rounds) == 0 {
		return nil
	}
	b := page{o: o}
	low, high := span(r.Rounds, achieved)
	loop := output.Textf("%s callers, closed loop", r.Arguments["callers"])
	rows := []latencyRow{{"service", func(r Round) Latency { return r.Service }}}
	open := r.Rounds[0].Response != nil
	if open {
		loop = output.Textf("open loop %s a second %s", output.Number(r.Rounds[0].Offered), r.Arguments["arrivals"])
		rows = append([]latencyRow{{"response", func(r Round) Latency { return *r.Response }}}, rows...)
	}
	b.printf("%s  %s, %s, %s × %s\n", r.Benchmark, r.Arguments["size"], loop, r.Arguments["duration"], output.Count(int64(len(r.Rounds)), "round"))
	r.invalid(&b)
	b.printf("rate      %s a second (%s to %s)\n", output.Number(Median(r.Rounds, achieved)), output.Number(low), output.Number(high))
	b.printf("%-9s %9s %9s %9s %9s %9s %9s\n", "", "p50", "p90", "p99", "p99.9", "p99.99", "max")
	for _, row := range rows {
		cells := []string{fmt.Sprintf("%-9s", row.name)}
		for _, at := range []func(Latency) float64{
			func(l Latency) float64 { return l.P50 }, func(l Latency) float64 { return l.P90 },
			func(l Latency) float64 { return l.P99 }, func(l Latency) float64 { return l.P999 },
			func(l Latency) float64 { return l.P9999 }, func(l Latency) float64 { return l.Max },
		} {
			cells = append(cells, fmt.Sprintf("%9s", Micros(Median(r.Rounds, func(r Round) float64 { return at(row.of(r)) }))))
		}
		b.printf("%s\n", strings.Join(cells, " "))
	}
	floor := Median(r.Rounds, func(r Round) float64 { return r.Floor })
	p50 := Median(r.Rounds, func(r Round) float64 { return rows[0].of(r).P50 })
	if p50 >= 0 && floor > 0 { // zero: the protocol has no empty request
		b.printf("floor     %s for an empty request: the p50 is %.1f × floor\n", Micros(floor), p50/max(floor, 1e-3))
	}
	if worst := slices.MaxFunc(r.Rounds, func(a, b Round) int { return int(a.WorstP99 - b.WorstP99) }); worst.WorstP99 > 0 {
		b.printf("worst second: p99 %s at second %d of a round\n", Micros(worst.WorstP99), worst.WorstAt)
	}
	if open {
		late := Micros(Median(r.Rounds, func(r Round) float64 { return r.Late.P99 })) + " (p99)"
		if r.Rounds[0].Late.P99 < 0 { // too few for a percentile
			late = "at most " + Micros(Median(r.Rounds, func(r Round) float64 { return r.Late.Max }))
		}
		b.printf("generator: late by %s, %.1f %% of the rate achieved\n", late, 100*Median(r.Rounds, achieved)/r.Rounds[0].Offered)
	}
	r.facts(&b)
	r.outcomes(&b)
	_, err := io.WriteString(w, b.text.String())
	return err
}

// invalid writes each cause of invalid rounds once, with its remedy.
func (r Result) invalid(b *page) {
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
		b.printf("%-12s %d of %d rounds: %s\n", c.verdict, n, len(r.Rounds), why)
		if busy := Busy(r.System); busy != "" {
			b.printf("%-12s %s\n", "likely cause", busy)
		}
		b.printf("%-12s %s\n", "remedy", c.remedy)
	}
}

// Facts writes the cost for the client and the broker, and the lost messages.
func (r Result) Facts(w io.Writer, o output.Options) error {
	b := page{o: o}
	r.facts(&b)
	r.truth(&b)
	_, err := io.WriteString(w, b.text.String())
	return err
}

func (r Result) facts(b *page) {
	cpu := Median(r.Rounds, func(r Round) float64 { return r.Client.CPU / max(r.Client.Took, 1e-6) })
	gcs := Median(r.Rounds, func(r Round) float64 { return float64(r.Client.GCs) })
	pause := Median(r.Rounds, func(r Round) float64 { return r.Client.GCPause })
	b.printf("client    %.2f processors of %s, %.0f garbage collections with %s of pauses in a round\n", cpu, cmp.Or(r.System["cpus"], "?"), gcs, Micros(pause))
	switch {
	case r.Broker == nil:
	case r.Broker.Disk == 0:
		b.printf("broker    %s, in memory\n", output.Safe(r.Broker.Version))
	default:
		b.printf("broker    %s, %v on disk, %s fsyncs in the rounds; since its start p50 %s, p99 %s\n", output.Safe(r.Broker.Version),
			output.Bytes(r.Broker.Disk), output.Number(r.Broker.Fsyncs), Micros(r.Broker.FsyncP50), Micros(r.Broker.FsyncP99))
	}
}

func (r Result) outcomes(b *page) {
	var done int64
	failed := map[string]int64{}
	for _, round := range r.Rounds {
		done += round.Done
		for cause, n := range round.Failed {
			failed[cause] += n
		}
	}
	text := output.Textf("%s done", output.Number(done))
	for _, cause := range slices.Sorted(maps.Keys(failed)) {
		text = output.Textf("%s, %s failed: %s", text, output.Number(failed[cause]), output.Safe(cause))
	}
	b.printf("%s\n", text)
	r.truth(b)
}

func (r Result) truth(b *page) {
	if v := r.Truth; v != nil {
		b.printf("accepted %s, delivered %s, lost %s, twice %s, out of order %s (with the warm-up)\n",
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
