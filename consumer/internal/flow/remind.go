package flow

import (
	"slices"
	"time"
)

const (
	// remindMax bounds the reminders.
	remindMax = 1024

	// step is how precise reminders are: those of one queue within one step are one.
	step = 100 * time.Millisecond
)

// revivals are the times after the delay of a retry at which a RocketMQ is asked for it. 5.2.0 has
// it ready 2.0 s to 2.2 s late, at times more than 3 s. A receive that comes too early waits for
// 5 s and is not woken.
var revivals = [...]time.Duration{2500 * time.Millisecond, 4 * time.Second}

// A reminder is the time at which a retry of this consumer is ready. On a RocketMQ a retry does not
// wake the receive that waits, and so would come up to a whole poll late; another receive fetches
// it.
type reminder[S comparable] struct {
	At     time.Time
	source S
}

// Reminders are sorted by time. The zero value is empty.
type Reminders[S comparable] []reminder[S]

// Retry notes a retry that a RocketMQ delivers from the queue s after its due time.
func (r *Reminders[S]) Retry(due time.Time, s S) {
	for _, late := range revivals {
		r.add(due.Add(late), s)
	}
}

// add notes a time. The latest ones are dropped if there are too many.
func (r *Reminders[S]) add(t time.Time, s S) {
	m := reminder[S]{t.Truncate(step).Add(step), s}
	i, _ := slices.BinarySearchFunc(*r, m, func(a, b reminder[S]) int { return a.At.Compare(b.At) })
	for j := i; j < len(*r) && (*r)[j].At.Equal(m.At); j++ {
		if (*r)[j].source == s {
			return
		}
	}
	*r = slices.Insert(*r, i, m)
	*r = (*r)[:min(len(*r), remindMax)]
}

// Due removes the reminders up to now, and returns their queues.
func (r *Reminders[S]) Due(now time.Time) (sources []S) {
	n := 0
	for n < len(*r) && !(*r)[n].At.After(now) {
		sources = append(sources, (*r)[n].source)
		n++
	}
	*r = slices.Delete(*r, 0, n)
	return sources
}
