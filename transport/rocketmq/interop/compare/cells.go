package main

import (
	"fmt"
	"slices"
	"time"
)

// A cell is one measure of a row.
type cell struct {
	name   string
	more   bool    // more is better
	finest float64 // the smallest difference that the cell can measure
	most   float64 // the largest median that ours may have; 0 for no bound
	value  func(run) float64
	format func(float64) string
	// detail replaces format for a single run; nil for none.
	detail func(run) string
}

// A run is one side's part of a row in one round.
type run struct {
	result
	faultBegan, faultEnded time.Time
}

var failed = cell{
	name: "failed sends",
	value: func(r run) float64 {
		n, all := r.failures()
		return share(n, all)
	},
	format: func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) },
	detail: func(r run) string {
		n, all := r.failures()
		return fmt.Sprintf("%d of %d", n, all)
	},
}

func (r run) failures() (n, all int) {
	for _, s := range r.Sends {
		if s.Err != "" {
			n++
		}
	}
	return n, len(r.Sends)
}

func share(n, all int) float64 {
	if all == 0 {
		return 0
	}
	return float64(n) / float64(all)
}

// longestSend is the time of one send among thousands, which one pause of the machine lengthens. A
// difference that the table does not show is none.
var longestSend = cell{
	name:   "longest send",
	finest: 0.1,
	format: seconds,
	value: func(r run) float64 {
		var longest time.Duration
		for _, s := range r.Sends {
			longest = max(longest, s.Took)
		}
		return longest.Seconds()
	},
}

// longestGap is the longest time within the run in which no send succeeded.
var longestGap = cell{
	name:   "longest time without a success",
	format: seconds,
	value: func(r run) float64 {
		ends := []time.Time{r.Began, r.Ended}
		for _, s := range r.Sends {
			if end := s.At.Add(s.Took); s.Err == "" && end.Before(r.Ended) {
				ends = append(ends, end)
			}
		}
		slices.SortFunc(ends, time.Time.Compare)
		var gap time.Duration
		for i, end := range ends[1:] {
			gap = max(gap, end.Sub(ends[i]))
		}
		return gap.Seconds()
	},
}

// acceptedRate is the rate of accepted sends during the fault. Its edges cut off a few of some 600
// sends, so a difference that the table does not show is none.
var acceptedRate = cell{
	name:   "accepted a second",
	more:   true,
	finest: 0.1,
	format: oneDigit,
	value: func(r run) float64 {
		return float64(r.accepted(r.faultBegan, r.faultEnded)) / r.faultEnded.Sub(r.faultBegan).Seconds()
	},
}

// accepted returns the number of sends that succeeded between two times.
func (r run) accepted(from, to time.Time) (n int) {
	for _, s := range r.Sends {
		if end := s.At.Add(s.Took); s.Err == "" && !end.Before(from) && end.Before(to) {
			n++
		}
	}
	return n
}

// firstDelivery is the time from the end of the fault to the first delivery. Without a delivery it
// is the time to the end of the run. A message follows the one before it by feedInterval.
var firstDelivery = cell{
	name:   "first push delivery after the return",
	finest: feedInterval.Seconds(),
	format: seconds,
	value: func(r run) float64 {
		first := r.Ended
		for _, d := range r.Deliveries {
			if d.At.After(r.faultEnded) && d.At.Before(first) {
				first = d.At
			}
		}
		return first.Sub(r.faultEnded).Seconds()
	},
}

// outOfOrder counts the messages whose first delivery came after that of a later message of the
// same message group. A repeated delivery is not out of order.
var outOfOrder = cell{
	name:   "out of order",
	format: func(v float64) string { return fmt.Sprintf("%.1f", v) },
	value: func(r run) float64 {
		n := 0
		latest := map[int]int{}            // sender → largest number delivered, plus 1
		delivered := map[[2]int]struct{}{} // sender and number
		for _, d := range r.Deliveries {
			key := [2]int{d.Sender, d.Seq}
			if _, again := delivered[key]; again {
				continue
			}
			delivered[key] = struct{}{}
			if d.Seq+1 < latest[d.Sender] {
				n++
			}
			latest[d.Sender] = max(latest[d.Sender], d.Seq+1)
		}
		return float64(n)
	},
}

var sendRate = cell{
	name:   "accepted a second",
	more:   true,
	format: whole,
	value:  func(r run) float64 { return float64(r.accepted(r.Began, r.Ended)) / r.Ended.Sub(r.Began).Seconds() },
}

var pushRate = cell{
	name:   "deliveries a second",
	more:   true,
	format: whole,
	value:  func(r run) float64 { return float64(len(r.Deliveries)) / r.Ended.Sub(r.Began).Seconds() },
}

var (
	cpuOfSends = cpu(func(r run) int { return r.accepted(r.Began, r.Ended) })
	cpuOfPush  = cpu(func(r run) int { return len(r.Deliveries) })
)

func cpu(messages func(run) int) cell {
	return cell{
		name:   "CPU a message",
		format: func(v float64) string { return fmt.Sprintf("%.0f µs", v) },
		value: func(r run) float64 {
			return float64(r.CPU.Microseconds()) / float64(max(1, messages(r)))
		},
	}
}

func seconds(v float64) string  { return fmt.Sprintf("%.1f s", v) }
func oneDigit(v float64) string { return fmt.Sprintf("%.1f", v) }
func whole(v float64) string    { return fmt.Sprintf("%.0f", v) }
