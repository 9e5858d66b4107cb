package consumer

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
)

// blockHere is a handler that does not return: its name is in the stack.
func blockHere(release <-chan struct{}) { <-release }

// A handler past its deadline is reported with its stack, and
// another one takes its place.
func TestStuckHandlersAreReplaced(t *testing.T) {
	const concurrency = 2
	for name, end := range map[string]func(){
		"they return":      func() {},
		"they call Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				s.caps = ours
				release := make(chan struct{})
				var mu sync.Mutex
				running, most, handled := 0, 0, 0
				var reports []StuckHandler
				var seen outcomes
				stop := start(t, s, Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
					if string(d.Body) == "stuck" && d.Attempt == 1 {
						blockHere(release)
						end()
						return nil
					}
					mu.Lock()
					running++
					most = max(most, running)
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					running--
					handled++
					mu.Unlock()
					return nil
				}, PushOptions{
					Concurrency: concurrency, StuckAfter: time.Minute, OnDelivery: seen.add, MaxExtension: 24 * time.Hour,
					OnStuck: func(h StuckHandler) { mu.Lock(); reports = append(reports, h); mu.Unlock() },
				})
				send := func(body string, n int) {
					for range n {
						s.add(0, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte(body)})
					}
				}
				send("stuck", concurrency)
				time.Sleep(time.Second)
				send("quick", 20)
				time.Sleep(58 * time.Second)
				mu.Lock()
				if handled > 0 || len(reports) > 0 {
					t.Errorf("%d handled, %d reports before the deadline", handled, len(reports))
				}
				mu.Unlock()
				time.Sleep(12 * time.Second)
				mu.Lock()
				if handled != 20 || most != concurrency || len(reports) != concurrency {
					t.Errorf("%d handled, %d at a time, %d reports", handled, most, len(reports))
				}
				for _, h := range reports {
					if h.Took != time.Minute || string(h.Delivery.Body) != "stuck" || !strings.Contains(h.Stack, "blockHere") || strings.Count(h.Stack, "goroutine ") > 2 {
						t.Errorf("report of %q after %v with the stack %s", h.Delivery.Body, h.Took, h.Stack)
					}
				}
				mu.Unlock()
				close(release) // and no more run at a time than before
				send("quick", 20)
				time.Sleep(12 * time.Second)
				mu.Lock()
				if handled < 40 || most != concurrency || len(reports) != concurrency {
					t.Errorf("in the end %d handled, %d at a time, %d reports", handled, most, len(reports))
				}
				mu.Unlock()
				time.Sleep(time.Minute)
				stop()
				if s.left() != 0 {
					t.Errorf("%d messages are left; outcomes %+v", s.left(), seen.all())
				}
			})
		})
	}
}

// Handlers are replaced once: when as many are stuck as may run, and their replacements are too,
// nothing more is begun.
func TestStuckHandlersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		s.fill(100)
		release := make(chan struct{})
		var mu sync.Mutex
		begun, reports := 0, 0
		stop := start(t, s, Subscription{}, func(context.Context, *tidegate.Delivery) error {
			mu.Lock()
			begun++
			mu.Unlock()
			blockHere(release)
			return nil
		}, PushOptions{
			Concurrency: 3, StuckAfter: time.Minute, MaxExtension: 24 * time.Hour,
			OnStuck: func(StuckHandler) { mu.Lock(); reports++; mu.Unlock() },
		})
		time.Sleep(time.Hour)
		mu.Lock()
		if begun != 6 || reports != 6 {
			t.Errorf("%d calls and %d reports, want 6 of both", begun, reports)
		}
		mu.Unlock()
		close(release)
		time.Sleep(time.Minute)
		stop()
		if s.left() != 0 {
			t.Errorf("%d messages are left", s.left())
		}
	})
}

func TestStackOfAnotherGoroutine(t *testing.T) {
	numbers, release := make(chan string), make(chan struct{})
	defer close(release)
	for range 3 {
		go parkedForTheTest(numbers, release)
	}
	for range 3 {
		number := <-numbers
		got := stackOf(number)
		if !strings.HasPrefix(got, number) || !strings.Contains(got, "parkedForTheTest") || strings.Contains(got, "TestStackOfAnotherGoroutine(") {
			t.Errorf("the stack of %q is %q", number, got)
		}
	}
	for _, number := range []string{"", "goroutine 999999999 "} {
		if got := stackOf(number); got != "" {
			t.Errorf("%q has the stack %q", number, got)
		}
	}
}

func parkedForTheTest(numbers chan<- string, release <-chan struct{}) {
	numbers <- goroutine()
	<-release
}

func TestPoolRunsAllJobsWithinItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		p := newPool(3, goroutines.Go)
		var running, most, done atomic.Int64
		for range 20 {
			p.Do(func() {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(time.Second)
				running.Add(-1)
				done.Add(1)
			})
		}
		begin := time.Now()
		goroutines.Wait() // they end when nothing is to be done
		if done.Load() != 20 || most.Load() != 3 || time.Since(begin) != 7*time.Second {
			t.Errorf("%d jobs, %d at a time, in %v; want 20, 3 and 7s", done.Load(), most.Load(), time.Since(begin))
		}
	})
}
