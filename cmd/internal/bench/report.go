package bench

import (
	"fmt"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
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
