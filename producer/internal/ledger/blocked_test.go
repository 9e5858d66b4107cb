package ledger

import (
	"fmt"
	"testing"
)

// BenchmarkBlockedCallers measures one message of a full ledger: its result admits the next one.
// The time must not depend on the number of callers that wait.
func BenchmarkBlockedCallers(b *testing.B) {
	for _, callers := range []int{50, 5_000, 40_000} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			l := New[*Entry[int]](1, 1<<20)
			blocked := make([]*Entrant[*Entry[int]], 0, callers)
			first := &Entry[*Entry[int]]{}
			l.admit(first)
			for range callers {
				w := &Entrant[*Entry[int]]{entry: &Entry[*Entry[int]]{}, granted: make(chan struct{})}
				w.place.Value, w.spools.Value = w, w
				l.queue.PushBack(&w.place)
				blocked = append(blocked, w)
			}
			under := first
			one := make([]*Entry[int], 1)
			for i := 0; b.Loop(); i++ {
				e := under
				under = l.queue.First().entry
				l.Leave(one, func(*Entry[int]) (*Entry[*Entry[int]], Result, bool) { return e, Delivered, false })
				w := blocked[i%callers] // it waits again
				w.granted = make(chan struct{})
				l.queue.PushBack(&w.place)
			}
		})
	}
}
