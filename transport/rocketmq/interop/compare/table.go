package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A measured is one cell of a row with the runs of all rounds.
type measured struct {
	cell
	row            string
	ours, official []float64 // one for each round
	runs           []string  // one for each round, "ours / official"
}

// A verdict compares the two sides of a cell.
type verdict string

const (
	worse   verdict = "WORSE"
	better  verdict = "better"
	equal   verdict = "equal"
	unknown verdict = "one round" // no interval
)

// judge returns the verdict on ours. It is worse or better if the 95 % interval of the mean of the
// differences between the rounds excludes zero and all differences below the resolution of the
// cell.
func (m measured) judge() verdict {
	if len(m.ours) < 2 {
		return unknown
	}
	differences := make([]float64, len(m.ours))
	for i := range m.ours {
		differences[i] = m.ours[i] - m.official[i]
		if m.more {
			differences[i] = -differences[i]
		}
	}
	mean, half := interval(differences)
	switch {
	case mean-half > m.finest:
		return worse
	case mean+half < -m.finest:
		return better
	}
	return equal
}

// quantiles are those of Student's t distribution for 95 % on both sides, by the degrees of freedom
// from 1.
var quantiles = []float64{
	12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
	2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
}

// interval returns the mean of at least two values and half of the width of its 95 % interval.
func interval(values []float64) (mean, half float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += v / n
	}
	var squares float64
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	t := 1.96
	if len(values)-2 < len(quantiles) {
		t = quantiles[len(values)-2]
	}
	return mean, t * math.Sqrt(squares/(n-1)/n)
}

// median returns the median of values and the bounds of its 95 % interval, which assumes nothing
// about their distribution: the k-th smallest and the k-th largest value for the largest k that
// covers the median with 95 %. Less than six values have no such k, and the bounds are the smallest
// and the largest value.
func median(values []float64) (middle, low, high float64) {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	k, outside := 1, math.Pow(2, -float64(n)) // outside: the chance that fewer than k values are below the median
	ways := outside
	for k < n/2 {
		ways *= float64(n-k+1) / float64(k) // exactly k values are below it
		if outside+ways > 0.025 {
			break
		}
		outside += ways
		k++
	}
	return (s[(n-1)/2] + s[n/2]) / 2, s[k-1], s[n-k]
}

// format returns the table of the cells that have runs, and below it all runs. good is true if no
// cell is worse or above its bound.
func format(cells []measured) (table string, good bool) {
	good = true
	cells = slices.DeleteFunc(slices.Clone(cells), func(m measured) bool { return len(m.ours) == 0 })
	var out strings.Builder
	fmt.Fprintln(&out, "\n| row | cell | ours | official | ours is |\n|---|---|--:|--:|---|")
	for _, m := range cells {
		v := m.judge()
		good = good && v != worse
		words := string(v)
		if middle, _, _ := median(m.ours); m.most > 0 && middle > m.most {
			good = false
			words += ", ABOVE " + m.format(m.most)
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n", m.row, m.name, m.summary(m.ours), m.summary(m.official), words)
	}
	fmt.Fprintln(&out, "\nall runs, ours / official:")
	for _, m := range cells {
		fmt.Fprintf(&out, "%s, %s:", m.row, m.name)
		for i, r := range m.runs {
			if i > 0 {
				fmt.Fprint(&out, ";")
			}
			fmt.Fprintf(&out, " %s", r)
		}
		fmt.Fprintln(&out)
	}
	return out.String(), good
}

// summary returns the median, with its interval if there are several rounds.
func (m measured) summary(values []float64) string {
	middle, low, high := median(values)
	if len(values) < 2 {
		return m.format(middle)
	}
	return fmt.Sprintf("%s (%s to %s)", m.format(middle), m.format(low), m.format(high))
}
