package bench

import (
	"strings"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

// Columns are the columns of a table with one result a row, for several callers and rates.
var Columns = []output.Column[Result]{
	{Name: "CALLERS", Cell: func(r Result) any { return r.Arguments["callers"] }},
	{Name: "OFFERED", Cell: offered},
	{Name: "RATE", Cell: func(r Result) any { return output.Rate(Median(r.Rounds, achieved)) }},
	{Name: "FROM", Wide: true, Cell: func(r Result) any { low, _ := span(r.Rounds, achieved); return output.Rate(low) }},
	{Name: "TO", Wide: true, Cell: func(r Result) any { _, high := span(r.Rounds, achieved); return output.Rate(high) }},
	{Name: "LATENCY", Cell: func(r Result) any {
		return map[bool]string{true: "response", false: "service"}[r.Rounds[0].Response != nil]
	}},
	{Name: "P50", Cell: func(r Result) any { return median(r, func(l Latency) float64 { return l.P50 }) }},
	{Name: "P90", Wide: true, Cell: func(r Result) any { return median(r, func(l Latency) float64 { return l.P90 }) }},
	{Name: "P99", Cell: func(r Result) any { return median(r, func(l Latency) float64 { return l.P99 }) }},
	{Name: "P99.9", Cell: func(r Result) any { return median(r, func(l Latency) float64 { return l.P999 }) }},
	{Name: "MAX", Cell: func(r Result) any { return median(r, func(l Latency) float64 { return l.Max }) }},
	{Name: "CLIENT-CPU", Wide: true, Cell: func(r Result) any {
		return output.Rate(Median(r.Rounds, func(r Round) float64 { return r.Client.CPU / max(r.Client.Took, 1e-6) }))
	}},
	{Name: "NOTE", Least: 12, Cell: note},
}

func achieved(r Round) float64 { return r.Achieved }

// offered is the rate of an open loop; nil for a closed one.
func offered(r Result) any {
	if r.Rounds[0].Offered == 0 {
		return nil
	}
	return output.Rate(r.Rounds[0].Offered)
}

// median is the median over the rounds of a latency: of the response times of an open loop, or of
// the service times.
func median(r Result, of func(Latency) float64) string {
	return Micros(Median(r.Rounds, func(r Round) float64 {
		if r.Response != nil {
			return of(*r.Response)
		}
		return of(r.Service)
	}))
}

// note is why a row has no figures that one could quote, and how many messages failed.
func note(r Result) any {
	var parts []string
	failed := int64(0)
	for _, round := range r.Rounds {
		kind, _, _ := strings.Cut(round.Invalid, ":")
		if kind != "" && (len(parts) == 0 || parts[0] != kind) {
			parts = append([]string{kind}, parts...)
		}
		for _, n := range round.Failed {
			failed += n
		}
	}
	if failed > 0 {
		return output.Textf("%s%s failed", strings.Join(append(parts, ""), ", "), output.Number(failed))
	}
	return strings.Join(parts, ", ")
}
