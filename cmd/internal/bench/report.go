package bench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

// A Latency describes a distribution, in microseconds. A percentile that fewer than ten operations
// exceed is -1: it would be the time of a few.
type Latency struct {
	P50   float64 `json:"p50_us"`
	P90   float64 `json:"p90_us"`
	P99   float64 `json:"p99_us"`
	P999  float64 `json:"p99_9_us"`
	P9999 float64 `json:"p99_99_us"`
	Max   float64 `json:"max_us"`
	HDR   string  `json:"hdr,omitempty"` // the whole histogram in HDR's V2 form, which can be merged
}

func latencyOf(h *hdrhistogram.Histogram) Latency {
	l := Latency{P50: -1, P90: -1, P99: -1, P999: -1, P9999: -1, Max: micros(h.Max())}
	for _, p := range []struct {
		at       *float64
		quantile float64
	}{{&l.P50, 50}, {&l.P90, 90}, {&l.P99, 99}, {&l.P999, 99.9}, {&l.P9999, 99.99}} {
		if float64(h.TotalCount())*(100-p.quantile)/100 >= 10-1e-6 {
			*p.at = micros(h.ValueAtQuantile(p.quantile))
		}
	}
	if text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase); err == nil {
		l.HDR = string(text)
	}
	return l
}

func micros(ns int64) float64 { return float64(ns) / 1e3 }

// A Round is the result of one run.
type Round struct {
	Offered  float64          `json:"offered,omitempty"` // operations a second; 0 in a closed loop
	Achieved float64          `json:"achieved"`
	Done     int64            `json:"done"`
	Failed   map[string]int64 `json:"failed,omitempty"` // by cause
	Response *Latency         `json:"response,omitempty"`
	Service  Latency          `json:"service"`
	Late     *Latency         `json:"late,omitempty"`
	Series   []Second         `json:"series,omitempty"`
	WorstP99 float64          `json:"worst_second_p99_us"`
	WorstAt  int              `json:"worst_second"` // seconds after the start
	Invalid  string           `json:"invalid,omitempty"`
	Floor    float64          `json:"floor_p50_us,omitempty"` // of an empty request
	Client   Client           `json:"client"`
}

// A Second has the operations that were due in one second of a round. A round leaves out the
// seconds with fewer than ten operations.
type Second struct {
	Second int     `json:"second"` // after the start
	Done   int64   `json:"done"`
	P99    float64 `json:"p99_us"`
	Max    float64 `json:"max_us"`
}

// The bounds of a valid run.
const (
	minAchieved  = 0.99 // of the offered rate
	maxLateShare = 0.05 // of the response's median
	maxLate      = time.Millisecond
)

// round turns the records of a run into a result.
func (r *recorder) round(o Options, overloaded bool) Round {
	all := r.sum()
	took := max(all.ended.Sub(r.started), time.Microsecond)
	out := Round{Offered: o.Rate, Done: all.done, Failed: all.failed, Service: latencyOf(all.service)}
	out.Achieved = float64(all.done) / took.Seconds()
	for second, h := range r.seconds {
		if h == nil || h.TotalCount() < 10 {
			continue
		}
		s := Second{second, h.TotalCount(), micros(h.ValueAtQuantile(99)), micros(h.Max())}
		out.Series = append(out.Series, s)
		if s.P99 > out.WorstP99 {
			out.WorstP99, out.WorstAt = s.P99, second
		}
	}
	if o.Rate > 0 {
		response, late := latencyOf(all.response), latencyOf(r.late)
		out.Response, out.Late = &response, &late
		out.Invalid = invalid(o, out, time.Duration(r.late.ValueAtQuantile(99)), time.Duration(all.response.ValueAtQuantile(50)), overloaded)
	}
	return out
}

// invalid returns why the figures of an open loop are none; empty if they are.
func invalid(o Options, r Round, late, median time.Duration, overloaded bool) string {
	switch {
	case overloaded:
		return fmt.Sprintf("OVERLOADED: %d operations were due and not begun; the callers or the server cannot keep %.0f a second", o.Outstanding, o.Rate)
	case late > maxLate && float64(late) > maxLateShare*float64(median):
		return fmt.Sprintf("NOT VALID: the generator, not the server, was the limit: it began %s late (p99)", Micros(micros(int64(late))))
	case r.Achieved < minAchieved*o.Rate:
		return fmt.Sprintf("OVERLOADED: %.0f of %.0f operations a second were done", r.Achieved, o.Rate)
	}
	return ""
}

// Median returns the median of a figure over rounds.
func Median(rounds []Round, figure func(Round) float64) float64 {
	var all []float64
	for _, r := range rounds {
		all = append(all, figure(r))
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

// A Result is the document of a benchmark. Files of it can be compared.
type Result struct {
	Schema    int               `json:"schema"`    // 1
	Benchmark string            `json:"benchmark"` // send, receive or e2e
	Arguments map[string]string `json:"arguments"`
	System    map[string]string `json:"system"`
	Searched  []Searched        `json:"searched,omitempty"` // by --max-p99
	Rounds    []Round           `json:"rounds"`
	Truth     *Truth            `json:"truth,omitempty"`
	Broker    *Broker           `json:"broker,omitempty"` // nil if it is not known
}

// A Broker is the report of a broker about itself and its storage.
type Broker struct {
	Version  string  `json:"version"`
	Disk     int64   `json:"disk_bytes"` // after the rounds; 0 for a broker in memory
	Fsyncs   int64   `json:"fsyncs"`     // during the rounds
	FsyncP50 float64 `json:"fsync_p50_us"`
	FsyncP99 float64 `json:"fsync_p99_us"` // since the start of the broker, as upper bounds
}

// A Searched is one rate that a search for the highest one tried.
type Searched struct {
	Rate  float64 `json:"rate"`
	P99   float64 `json:"p99_us"`
	Holds bool    `json:"holds"`
}

// Latencies returns the latencies of all rounds: the response times of an open loop, or else the
// service times.
func (r Result) Latencies() (*hdrhistogram.Histogram, error) {
	all := newHistogram()
	for n, round := range r.Rounds {
		l := round.Service
		if round.Response != nil {
			l = *round.Response
		}
		h, err := hdrhistogram.Decode([]byte(l.HDR))
		if err != nil {
			return nil, fmt.Errorf("the histogram of round %d cannot be read: %w", n+1, err)
		}
		all.Merge(h)
	}
	return all, nil
}

// WriteHDR writes the distribution of all rounds as HdrHistogram's text of percentiles, in
// milliseconds.
func (r Result) WriteHDR(w io.Writer) error {
	h, err := r.Latencies()
	if err != nil {
		return err
	}
	_, err = h.PercentilesPrint(w, 5, 1e6)
	return err
}

// A Comparison is the ratio of two figures, the second to the first, with the interval that has the
// true ratio with 95 % confidence.
type Comparison struct {
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Different reports whether a difference is shown: the interval does not contain 1.
func (c Comparison) Different() bool { return c.Low > 1 || c.High < 1 }

// resamples is the number of samples of the bootstrap.
const resamples = 10_000

// Compare compares the medians of a figure over the rounds of two results by a bootstrap: rounds
// are drawn again and again, with repetition.
func Compare(before, after []Round, figure func(Round) float64) Comparison {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same result each time
	draw := func(rounds []Round) float64 {
		sample := make([]Round, len(rounds))
		for i := range sample {
			sample[i] = rounds[random.IntN(len(rounds))]
		}
		return Median(sample, figure)
	}
	ratios := make([]float64, resamples)
	for i := range ratios {
		ratios[i] = draw(after) / draw(before)
	}
	slices.Sort(ratios)
	return Comparison{
		Ratio: Median(after, figure) / Median(before, figure),
		Low:   ratios[resamples*25/1000],
		High:  ratios[resamples*975/1000],
	}
}

// A Compared is one compared figure.
type Compared struct {
	Figure string `json:"figure"`
	Comparison
	Verdict string  `json:"verdict"`
	Worse   float64 `json:"-"` // the share by which it is worse at least; 0 if no difference is shown
}

// CompareAll compares the figures of two results.
func CompareAll(before, after []Round) []Compared {
	row := func(name string, moreIsBetter bool, figure func(Round) float64) Compared {
		r := Compared{Figure: name, Comparison: Compare(before, after, figure), Verdict: "no difference shown"}
		better := r.Low > 1 == moreIsBetter
		switch {
		case !r.Different():
		case better:
			r.Verdict = "better"
		case moreIsBetter:
			r.Verdict, r.Worse = "worse", 1-r.High
		default:
			r.Verdict, r.Worse = "worse", r.Low-1
		}
		return r
	}
	var rows []Compared
	if before[0].Offered == 0 { // the rate of an open loop is given
		rows = append(rows, row("rate", true, func(r Round) float64 { return r.Achieved }))
	}
	rows = append(rows,
		row("service p50", false, func(r Round) float64 { return r.Service.P50 }),
		row("service p99", false, func(r Round) float64 { return r.Service.P99 }),
	)
	if before[0].Response != nil && after[0].Response != nil {
		rows = append(rows,
			row("response p50", false, func(r Round) float64 { return r.Response.P50 }),
			row("response p99", false, func(r Round) float64 { return r.Response.P99 }))
	}
	return rows
}

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
