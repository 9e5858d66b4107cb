package flow

import (
	"container/heap"
	"time"
)

// A Schedule has entries by time. The zero value is empty.
type Schedule[T any] struct{ entries entries[T] }

// An Entry is a field of the scheduled value, so that scheduling takes no allocation. It is in one
// schedule at most.
type Entry[T any] struct {
	Value T         // the scheduled value
	At    time.Time // when it is due; only Schedule changes it

	place int // in the heap, from 1; 0 if it is not there
}

// Set schedules e at t, instead of its earlier time if it has one.
func (s *Schedule[T]) Set(e *Entry[T], t time.Time) {
	e.At = t
	if e.place > 0 {
		heap.Fix(&s.entries, e.place-1)
	} else {
		heap.Push(&s.entries, e)
	}
}

// Remove takes e out of the schedule, if it is there.
func (s *Schedule[T]) Remove(e *Entry[T]) {
	if e.place > 0 {
		heap.Remove(&s.entries, e.place-1)
	}
}

// First returns the entry that is due first, nil if there is none.
func (s *Schedule[T]) First() *Entry[T] {
	if len(s.entries) == 0 {
		return nil
	}
	return s.entries[0]
}

// All returns the values of all entries, in no particular order.
func (s *Schedule[T]) All() []T {
	list := make([]T, len(s.entries))
	for i, e := range s.entries {
		list[i] = e.Value
	}
	return list
}

// entries implements heap.Interface.
type entries[T any] []*Entry[T]

func (h entries[T]) Len() int           { return len(h) }
func (h entries[T]) Less(i, j int) bool { return h[i].At.Before(h[j].At) }

func (h entries[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

// Push adds an entry; see package heap.
func (h *entries[T]) Push(x any) {
	e := x.(*Entry[T])
	e.place = len(*h) + 1
	*h = append(*h, e)
}

// Pop removes the last entry; see package heap.
func (h *entries[T]) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.place = 0
	return e
}
