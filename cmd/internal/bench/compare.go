package bench

import (
	"math/rand/v2"
	"slices"
)

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
