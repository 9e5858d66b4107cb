package consumer_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
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
				var reports []consumer.StuckHandler
				var seen outcomes
				stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
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
				}, consumer.PushOptions{
					Concurrency: concurrency, StuckAfter: time.Minute, OnDelivery: seen.add, MaxExtension: 24 * time.Hour,
					OnStuck: func(h consumer.StuckHandler) { mu.Lock(); reports = append(reports, h); mu.Unlock() },
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
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			mu.Lock()
			begun++
			mu.Unlock()
			blockHere(release)
			return nil
		}, consumer.PushOptions{
			Concurrency: 3, StuckAfter: time.Minute, MaxExtension: 24 * time.Hour,
			OnStuck: func(consumer.StuckHandler) { mu.Lock(); reports++; mu.Unlock() },
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
