package main

import (
	"testing"
	"time"
)

// at returns the time a number of milliseconds after the start of a run.
func at(ms int) time.Time { return time.Unix(1_000_000, 0).Add(time.Duration(ms) * time.Millisecond) }

func TestCells(t *testing.T) {
	ms := time.Millisecond
	r := run{
		result: result{
			Began: at(0), Ended: at(10_000), CPU: 30 * ms,
			Sends: []send{
				{at(0), 1000 * ms, ""},
				{at(1000), 500 * ms, "lost"},
				{at(1500), 3500 * ms, ""},       // accepted at 5 s
				{at(1600), 100 * ms, "lost"},    // at 1.7 s
				{at(6000), 7 * time.Second, ""}, // after the end
				{at(5000), 1000 * ms, ""},       // accepted at 6 s
			},
			Deliveries: []delivery{
				{at(1000), 1, 0}, {at(5900), 1, 2}, {at(7500), 1, 1}, // 1 is out of order
				{at(7600), 2, 7}, {at(7700), 1, 0}, {at(7800), 1, 2}, // repeated ones are not
				{at(7900), 1, 3}, {at(8000), 2, 9}, {at(8100), 2, 8}, // 8 is
			},
		},
		faultBegan: at(2000), faultEnded: at(6000),
	}
	for _, c := range []struct {
		cell cell
		want float64
		text string
	}{
		{failed, 2.0 / 6, "2 of 6"},
		{longestSend, 7, "7.0 s"},
		{longestGap, 4, "4.0 s"}, // from 1 s to 5 s, and from 6 s to 10 s
		{acceptedRate, 1.0 / 4, "0.2"},
		{firstDelivery, 1.5, "1.5 s"},
		{outOfOrder, 2, "2.0"},
		{sendRate, 3.0 / 10, "0"},
		{pushRate, 9.0 / 10, "1"},
		{cpuOfSends, 10_000, "10000 µs"},
		{cpuOfPush, 30_000.0 / 9, "3333 µs"},
	} {
		m := &measured{cell: c.cell}
		if got := m.add(c.cell, []run{r, r}); got != c.text+" / "+c.text || m.ours[0] != c.want || m.official[0] != c.want {
			t.Errorf("%s: %v, %v in words %q; want %v and %q", c.cell.name, m.ours, m.official, got, c.want, c.text)
		}
	}
}

// A run in which nothing succeeds has the worst values, not the best.
func TestCellsOfNothing(t *testing.T) {
	r := run{result: result{Began: at(0), Ended: at(10_000)}, faultBegan: at(1000), faultEnded: at(4000)}
	for _, c := range []struct {
		cell cell
		want float64
	}{{failed, 0}, {longestSend, 0}, {longestGap, 10}, {acceptedRate, 0}, {firstDelivery, 6}, {sendRate, 0}, {pushRate, 0}} {
		if got := c.cell.value(r); got != c.want {
			t.Errorf("%s is %v, want %v", c.cell.name, got, c.want)
		}
	}
}
