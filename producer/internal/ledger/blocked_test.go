package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// BenchmarkBlockedCallers measures one message of a full ledger: its result admits the next one.
// The time must not depend on the number of callers that wait.
func BenchmarkBlockedCallers(b *testing.B) {
	for _, callers := range []int{50, 5_000, 40_000} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			l := New[*Entry[int]](1, 1<<20)
			blocked := make([]*entrant[*Entry[int]], 0, callers)
			first := &Entry[*Entry[int]]{}
			l.admit(first)
			for range callers {
				w := &entrant[*Entry[int]]{entry: &Entry[*Entry[int]]{}, granted: make(chan struct{})}
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

// In each state of a ledger, each caller waits only while it has to: the first does not fit, and
// none that may go to the spool could. Every caller ends.
func TestNoCallerWaitsInVain(t *testing.T) {
	seed := rand.Uint64()
	for round := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed+round, 1))
		const most, bytes = 4, 1000
		l := New[int](most, bytes)
		var wg sync.WaitGroup
		var mu sync.Mutex
		pending := map[int]*Entry[int]{} // guarded by mu, as is functions
		functions := map[int]*Entry[int]{}
		check := func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if w := l.queue.First(); w != nil && l.fits(w.entry) {
				t.Errorf("seed %d, round %d: the first caller waits, although its message fits", seed, round)
			}
			if l.spooling.Len() > 0 && l.backlog < most {
				t.Errorf("seed %d, round %d: %d callers wait, although the spool may take their messages", seed, round, l.spooling.Len())
			}
			if l.spooling.Len() > l.queue.Len() {
				t.Errorf("seed %d, round %d: %d of %d callers may go to the spool", seed, round, l.spooling.Len(), l.queue.Len())
			}
		}
		// leave ends a pending message, and call returns from a function.
		leave := func(called bool) bool {
			mu.Lock()
			defer mu.Unlock()
			for m, e := range pending {
				delete(pending, m)
				l.Leave([]int{m}, func(int) (*Entry[int], Result, bool) { return e, Delivered, called })
				if called {
					functions[m] = e
				}
				return true
			}
			return false
		}
		call := func() bool {
			mu.Lock()
			defer mu.Unlock()
			for m, e := range functions {
				delete(functions, m)
				l.calling()
				l.called(e)
				return true
			}
			return false
		}
		for m := range 60 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			e, when := &Entry[int]{}, []WhenFull{Wait, Reject, Spool}[rnd.IntN(3)]
			size := 1 + rnd.IntN(500)
			began := make(chan struct{})
			wg.Go(func() {
				begin := sync.OnceFunc(func() { close(began) })
				defer begin()
				if a, _ := l.Enter(ctx, m, e, size, when, begin); a == Admitted || a == Forced {
					mu.Lock()
					pending[m] = e
					mu.Unlock()
				}
			})
			<-began
			switch rnd.IntN(4) {
			case 0:
				cancel()
			case 1:
				leave(true)
			case 2:
				leave(false)
			case 3:
				call()
			}
			check()
		}
		ended := make(chan struct{})
		go func() { wg.Wait(); close(ended) }()
		for open := true; open; {
			select {
			case <-ended:
				open = false
			default:
				for leave(false) || call() {
					check()
				}
			}
		}
	}
}
