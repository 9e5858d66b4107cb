package consumer

import (
	"slices"
	"time"
)

const (
	// maxReminders bounds the retries that are remembered for each run.
	maxReminders = 1024

	// reminderStep is how precisely: retries that are due within one step share a receive.
	reminderStep = 100 * time.Millisecond
)

// revivals are the times after the delay of a retry at which a RocketMQ is asked for it. 5.2.0 has
// it ready 2.0 s to 2.2 s late, at times more than 3 s. A receive that comes too early waits for
// 5 s and is not woken.
var revivals = [...]time.Duration{2500 * time.Millisecond, 4 * time.Second}

// A reminder is when a retry of this consumer is ready. On a RocketMQ a retry does not wake the
// receive that is parked, and so would come up to a whole poll late; another receive fetches it.
type reminder struct {
	at     time.Time
	source *source
}

// reminders are sorted by time.
type reminders []reminder

// add notes a retry that is ready at t. The latest ones are dropped if there are too many.
func (r *reminders) add(t time.Time, s *source) {
	m := reminder{t.Truncate(reminderStep).Add(reminderStep), s}
	i, _ := slices.BinarySearchFunc(*r, m, func(a, b reminder) int { return a.at.Compare(b.at) })
	for j := i; j < len(*r) && (*r)[j].at.Equal(m.at); j++ {
		if (*r)[j].source == s {
			return
		}
	}
	*r = slices.Insert(*r, i, m)
	*r = (*r)[:min(len(*r), maxReminders)]
}

// due removes the reminders up to now, and returns their queues.
func (r *reminders) due(now time.Time) (sources []*source) {
	n := 0
	for n < len(*r) && !(*r)[n].at.After(now) {
		sources = append(sources, (*r)[n].source)
		n++
	}
	*r = slices.Delete(*r, 0, n)
	return sources
}
