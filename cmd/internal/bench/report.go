package bench

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"maps"
	"math"
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

// Responses returns the latencies of all rounds from the due times; nil for a closed loop.
func (r Result) Responses() (*hdrhistogram.Histogram, error) {
	return r.merged(func(r Round) *Latency { return r.Response })
}

// Services returns the latencies of all rounds from the begin of the operations.
func (r Result) Services() (*hdrhistogram.Histogram, error) {
	return r.merged(func(r Round) *Latency { return &r.Service })
}

func (r Result) merged(of func(Round) *Latency) (*hdrhistogram.Histogram, error) {
	var all *hdrhistogram.Histogram
	for n, round := range r.Rounds {
		l := of(round)
		if l == nil {
			return nil, nil
		}
		h, err := hdrhistogram.Decode([]byte(l.HDR))
		if err != nil {
			return nil, fmt.Errorf("the histogram of round %d cannot be read: %w", n+1, err)
		}
		if all == nil {
			all = newHistogram()
		}
		all.Merge(h)
	}
	return all, nil
}

// WriteHDR writes the distribution of all rounds as HdrHistogram's text of percentiles, in
// milliseconds: the response times of an open loop, or else the service times.
func (r Result) WriteHDR(w io.Writer) error {
	h, err := r.Responses()
	if err == nil && h == nil {
		h, err = r.Services()
	}
	if err != nil || h == nil {
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

// The places of a chart, in pixels.
const (
	chartWidth  = 800.0
	panelHeight = 260.0
	panelTop    = 50.0
	panelLeft   = 80.0
	panelRight  = 20.0
	panelGap    = 70.0
)

// A chart has the lines of an SVG picture.
type chart struct{ b strings.Builder }

// WriteChart writes an SVG picture: the percentiles on an axis of nines, and the worst p99 of each
// second over the rounds.
func (r Result) WriteChart(w io.Writer) error {
	response, err := r.Responses()
	if err != nil {
		return err
	}
	service, err := r.Services()
	if err != nil || service == nil {
		return err
	}
	c := &chart{}
	height := 2*panelHeight + panelTop + panelGap + 40
	fmt.Fprintf(&c.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="12">`+"\n", chartWidth, height)
	fmt.Fprintf(&c.b, `<rect width="%.0f" height="%.0f" fill="white"/>`+"\n", chartWidth, height)
	c.text(panelLeft, 20, "start", fmt.Sprintf("bench %s: %.0f operations a second, %d rounds", r.Benchmark, Median(r.Rounds, func(r Round) float64 { return r.Achieved }), len(r.Rounds)))
	c.spectrum(response, service)
	c.series(r.Rounds)
	c.b.WriteString("</svg>\n")
	_, err = io.WriteString(w, c.b.String())
	return err
}

func (c *chart) text(x, y float64, anchor, text string) {
	fmt.Fprintf(&c.b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(text))
}

func (c *chart) line(x1, y1, x2, y2 float64, color string) {
	fmt.Fprintf(&c.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, color)
}

func (c *chart) path(points [][2]float64, color string) {
	var p strings.Builder
	for _, at := range points {
		fmt.Fprintf(&p, "%.1f,%.1f ", at[0], at[1])
	}
	fmt.Fprintf(&c.b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.TrimSpace(p.String()), color)
}

// An axis maps latencies to heights of a panel, by their logarithm.
type axis struct{ low, high, top float64 } // nanoseconds

func newAxis(low, high int64, top float64) axis {
	decade := func(v int64, round func(float64) float64) float64 {
		return math.Pow(10, round(math.Log10(float64(max(v, 1000)))))
	}
	a := axis{decade(low, math.Floor), decade(high, math.Ceil), top}
	if a.high <= a.low {
		a.high = a.low * 10
	}
	return a
}

func (a axis) y(ns float64) float64 {
	share := math.Log(max(ns, a.low)/a.low) / math.Log(a.high/a.low)
	return a.top + panelHeight*(1-share)
}

// draw draws a line and a label at each power of ten.
func (a axis) draw(c *chart) {
	for v := a.low; v <= a.high*1.001; v *= 10 {
		c.line(panelLeft, a.y(v), chartWidth-panelRight, a.y(v), "#dddddd")
		c.text(panelLeft-6, a.y(v)+4, "end", time.Duration(math.Round(v)).String())
	}
}

// nines are the labels of the axis of percentiles, at equal distances.
var nines = []string{"0", "90", "99", "99.9", "99.99", "99.999"}

// nineX is the place of a percentile: each further nine is as wide as the one before.
func nineX(percentile float64) float64 {
	n := math.Log10(100 / max(100-percentile, 1e-9))
	width := (chartWidth - panelLeft - panelRight) / float64(len(nines)-1)
	return panelLeft + width*min(n, float64(len(nines)-1))
}

func (c *chart) spectrum(response, service *hdrhistogram.Histogram) {
	low, high := service.Min(), service.Max()
	if response != nil {
		low, high = min(low, response.Min()), max(high, response.Max())
	}
	a := newAxis(low, high, panelTop)
	a.draw(c)
	for n, label := range nines {
		x := nineX(100 - 100*math.Pow(10, -float64(n)))
		c.line(x, panelTop, x, panelTop+panelHeight, "#dddddd")
		c.text(x, panelTop+panelHeight+16, "middle", label)
	}
	c.text(panelLeft, panelTop-8, "start", "latency by percentile")
	for i, l := range []struct {
		name, color string
		h           *hdrhistogram.Histogram
	}{{"response, from the due time", "#c0392b", response}, {"service", "#2471a3", service}} {
		if l.h == nil || l.h.TotalCount() == 0 {
			continue
		}
		var points [][2]float64
		for _, p := range percentiles(l.h.TotalCount()) {
			points = append(points, [2]float64{nineX(p), a.y(float64(l.h.ValueAtQuantile(p)))})
		}
		c.path(points, l.color)
		fmt.Fprintf(&c.b, `<rect x="%.0f" y="%.0f" width="10" height="10" fill="%s"/>`+"\n", panelLeft+170+float64(i)*210, panelTop-17, l.color)
		c.text(panelLeft+185+float64(i)*210, panelTop-8, "start", l.name)
	}
}

// percentiles are those that ten operations exceed, close enough for a line.
func percentiles(count int64) []float64 {
	var out []float64
	most := math.Log10(max(float64(count)/10, 1))
	for n := 0.0; n <= min(most, float64(len(nines)-1)); n += 0.05 {
		out = append(out, 100-100*math.Pow(10, -n))
	}
	return out
}

// series draws the largest p99 of each second over the rounds.
func (c *chart) series(rounds []Round) {
	var worst []float64 // microseconds
	for _, r := range rounds {
		for _, s := range r.Series {
			for len(worst) <= s.Second {
				worst = append(worst, 0)
			}
			worst[s.Second] = max(worst[s.Second], s.P99)
		}
	}
	top := panelTop + panelHeight + panelGap
	c.text(panelLeft, top-8, "start", "the largest p99 of each second, over the rounds")
	if len(worst) == 0 {
		return
	}
	low, high := math.MaxFloat64, 0.0
	for _, v := range worst {
		if v > 0 {
			low, high = min(low, v), max(high, v)
		}
	}
	a := newAxis(int64(low*1e3), int64(high*1e3), top)
	a.draw(c)
	width := (chartWidth - panelLeft - panelRight) / float64(max(len(worst)-1, 1))
	var points [][2]float64
	for second, v := range worst {
		if v > 0 {
			points = append(points, [2]float64{panelLeft + width*float64(second), a.y(v * 1e3)})
		}
	}
	c.path(points, "#c0392b")
	c.text(panelLeft, top+panelHeight+16, "middle", "0 s")
	c.text(chartWidth-panelRight, top+panelHeight+16, "end", fmt.Sprintf("%d s", len(worst)-1))
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
