package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// Fresh and retried messages share the workers: while both wait, of four messages three are fresh
// and one is retried, so that neither waits for the end of the other.
//
// Demand 38.
func TestFreshAndRetriedMessagesShareTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		s.settings.Retry = backoff.Steps{time.Second}
		for i := range 400 {
			s.add(0, &tidegate.Message{ID: fmt.Sprint("old", i), Topic: "orders", Body: []byte("old")})
		}
		var mu sync.Mutex
		var order []int // attempts, after the fresh messages came
		var full bool
		stop := start(t, s, Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			if string(d.Body) == "old" && d.Attempt == 1 {
				return errors.New("not yet")
			}
			mu.Lock()
			if full {
				order = append(order, d.Attempt)
			}
			mu.Unlock()
			time.Sleep(time.Millisecond)
			return nil
		}, PushOptions{Concurrency: 1, MaxBuffered: 1000})
		time.Sleep(999 * time.Millisecond) // they failed, and come again in a moment
		for i := range 400 {
			s.add(0, &tidegate.Message{ID: fmt.Sprint("new", i), Topic: "orders", Body: []byte("new")})
		}
		time.Sleep(20 * time.Millisecond)
		mu.Lock()
		full = true
		mu.Unlock()
		time.Sleep(200 * time.Millisecond)
		mu.Lock()
		some := order[:min(len(order), 120)]
		mu.Unlock()
		retried := 0
		for _, a := range some {
			if a > 1 {
				retried++
			}
		}
		if len(some) != 120 || retried < 24 || retried > 48 {
			t.Errorf("of %d messages handled while both kinds wait %d are retried, want a quarter to a third", len(some), retried)
		}
		time.Sleep(time.Minute)
		stop()
		if s.left() != 0 {
			t.Errorf("%d left", s.left())
		}
	})
}
