package main

import (
	"math"
	"strings"
	"testing"
)

// The squares of the differences from the mean add up to 0.34, so the standard error of the mean is
// the root of 0.34/4/5, 0.130384; the quantile for 4 degrees of freedom is 2.776.
func TestInterval(t *testing.T) {
	mean, half := interval([]float64{2.1, 1.9, 2.4, 2.0, 2.6})
	if math.Abs(mean-2.2) > 1e-9 || math.Abs(half-2.776*0.130384) > 1e-5 {
		t.Errorf("%v ± %v, want 2.2 ± 0.36195", mean, half)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name           string
		more           bool
		ours, official []float64
		want           verdict
	}{
		{"less is better", false, []float64{1, 2, 1, 2}, []float64{5, 6, 5, 7}, better},
		{"more is worse", false, []float64{5, 6, 5, 7}, []float64{1, 2, 1, 2}, worse},
		{"more is better", true, []float64{5, 6, 5, 7}, []float64{1, 2, 1, 2}, better},
		{"less is worse", true, []float64{1, 2, 1, 2}, []float64{5, 6, 5, 7}, worse},
		{"the same", false, []float64{0, 0, 0}, []float64{0, 0, 0}, equal},
		{"noise", false, []float64{9, 1, 9, 1}, []float64{1, 2, 1, 2}, equal},
		{"the rounds differ more than the sides", false, []float64{11, 102, 51.5}, []float64{10, 101, 50}, worse},
		{"always worse by the same", false, []float64{2, 3}, []float64{1, 2}, worse},
		{"one round", false, []float64{9}, []float64{1}, unknown},
	} {
		if got := (measured{cell: cell{more: c.more}, ours: c.ours, official: c.official}).judge(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	late := measured{cell: cell{finest: 0.5}, ours: []float64{2.4, 3.4}, official: []float64{2, 3}}
	if got := late.judge(); got != equal {
		t.Errorf("below the finest difference: %s", got)
	}
	if late.finest = 0.25; late.judge() != worse {
		t.Errorf("above the finest difference: %s", late.judge())
	}
}

func TestTable(t *testing.T) {
	cells := []measured{
		{cell: failed, row: "rst", ours: []float64{0, 0}, official: []float64{0.5, 0.25}, runs: []string{"0 of 8 / 4 of 8", "0 of 8 / 2 of 8"}},
		{cell: pushRate, row: "push", ours: []float64{10, 10}, official: []float64{20, 20}, runs: []string{"10 / 20", "10 / 20"}},
		{cell: sendRate, row: "interrupted before its first round"},
	}
	table, good := format(cells)
	if good {
		t.Error("a table with a worse cell is good")
	}
	for _, want := range []string{
		"| rst | failed sends | 0.0 % ± 0.0 % | 37.5 % ± 158.8 % | equal |",
		"| push | deliveries a second | 10 ± 0 | 20 ± 0 | WORSE |",
		"rst, failed sends: 0 of 8 / 4 of 8; 0 of 8 / 2 of 8",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	if _, good := format(cells[:1]); !good {
		t.Error("a table without a worse cell is not good")
	}
}
