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

// A reminder is when a retry of this consumer is due. On a RocketMQ a retry does not wake the
// receive that is parked, and so would come up to a whole poll late; another receive fetches it.
type reminder struct {
	at     time.Time
	source *source
}

// reminders are sorted by time.
type reminders []reminder

// add notes a retry that is due at t. The latest ones are dropped if there are too many.
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
