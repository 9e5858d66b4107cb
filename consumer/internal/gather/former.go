// Package gather collects the messages that handlers wait with into batches, and lets one of the
// waiting goroutines handle each batch.
package gather

import (
	"slices"
	"time"
)

// Limits are the limits of batches, all of them positive but Wait.
type Limits struct {
	Items   int           // of one batch
	Bytes   int           // of one batch with more than one item
	Wait    time.Duration // for a fuller batch, from its first item; 0 or less means none
	Batches int           // that are handled at the same time
}

// A former decides which items make the next batch. It has no clock, locks or goroutines.
type former[T comparable] struct {
	limits  Limits
	waiting []waiting[T] // in the order of their arrival
	running int          // batches
	hurry   bool         // do not wait for fuller batches
}

type waiting[T comparable] struct {
	item  T
	size  int
	since time.Time
}

func (f *former[T]) add(item T, size int, now time.Time) {
	f.waiting = append(f.waiting, waiting[T]{item, size, now})
}

// remove removes an item that is in no batch yet, and reports whether it was there.
func (f *former[T]) remove(item T) bool {
	i := slices.IndexFunc(f.waiting, func(w waiting[T]) bool { return w.item == item })
	if i < 0 {
		return false
	}
	f.waiting = slices.Delete(f.waiting, i, i+1)
	return true
}

// next returns the batch that begins at now, nil for none. Then wake is the time at which the next
// one is due, zero if there is none before another event.
func (f *former[T]) next(now time.Time) (batch []T, wake time.Time) {
	if len(f.waiting) == 0 || f.running >= f.limits.Batches {
		return nil, wake
	}
	n, bytes := 0, 0
	for n < len(f.waiting) && n < f.limits.Items && (n == 0 || f.waiting[n].size <= f.limits.Bytes-bytes) {
		bytes += f.waiting[n].size
		n++
	}
	full := n == f.limits.Items || n < len(f.waiting) || bytes >= f.limits.Bytes
	if due := f.waiting[0].since.Add(f.limits.Wait); !full && !f.hurry && now.Before(due) {
		return nil, due
	}
	for _, w := range f.waiting[:n] {
		batch = append(batch, w.item)
	}
	f.waiting = slices.Delete(f.waiting, 0, n)
	f.running++
	return batch, wake
}
