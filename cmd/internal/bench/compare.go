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
