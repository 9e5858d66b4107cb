package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
)

// What runs is finished and settled, what has not begun is given back.
func TestShutdownIsOrderly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.queues = []int{0, 1, 2, 3}
		for q := range 4 {
			s.add(q, &tidegate.Message{ID: fmt.Sprint(q), Topic: "orders", Body: []byte("x")})
		}
		var seen outcomes
		stop := start(t, s, Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
			time.Sleep(5 * time.Second)
			return ctx.Err()
		}, PushOptions{Concurrency: 1, OnDelivery: seen.add})
		time.Sleep(time.Second)
		begin := time.Now()
		if err := stop(); err != nil || time.Since(begin) != 4*time.Second {
			t.Errorf("Run: %v, after %v; want nil when the handler was done, after 4s", err, time.Since(begin))
		}
		got := map[Disposition]int{}
		for _, o := range seen.list {
			got[o.Disposition]++
		}
		if got[Acked] != 1 || got[Released] != 3 || len(s.released) != 3 || s.left() != 3 {
			t.Errorf("outcomes %v, released %q, %d left", got, s.released, s.left())
		}
	})
}

func TestShutdownTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.fill(1)
		var seen outcomes
		begin := time.Now()
		stop := start(t, s, Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
			<-ctx.Done()
			if cause := context.Cause(ctx); cause != ErrShutdown {
				t.Errorf("cause %v", cause)
			}
			time.Sleep(time.Second)
			return ctx.Err()
		}, PushOptions{ShutdownTimeout: 7 * time.Second, OnDelivery: seen.add})
		synctest.Wait()
		if err := stop(); err != nil || time.Since(begin) != 8*time.Second {
			t.Errorf("Run: %v after %v, want nil after 8s", err, time.Since(begin))
		}
		if len(seen.list) != 1 || seen.list[0].Disposition != Released || len(s.retries) != 0 {
			t.Errorf("outcomes %+v, retries %v; want the message given back, not failed", seen.list, s.retries)
		}
	})
}

// A success is a success, even if the handler was told to hurry up.
func TestShutdownKeepsSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.fill(1)
		stop := start(t, s, Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
			<-ctx.Done()
			return nil
		}, PushOptions{ShutdownTimeout: time.Second})
		synctest.Wait()
		stop()
		if s.left() != 0 {
			t.Error("not acknowledged")
		}
	})
}

func TestShutdownWithoutAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.fill(1)
		s.onAck = func(*tidegate.Delivery) error { return errors.New("connection lost") }
		stop := start(t, s, Subscription{}, func(context.Context, *tidegate.Delivery) error {
			time.Sleep(time.Second)
			return nil
		}, PushOptions{})
		begin := time.Now()
		stop()
		if d := time.Since(begin); d > DefaultInvisibleDuration {
			t.Errorf("Run took %v to return, longer than the lease", d)
		}
	})
}

// Seed 000: "Obtain and consume messages at a later time if the current consumption rate is higher than limited"
func TestConcurrencyIsBounded(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			limit, queues := 1+rand.IntN(8), 1+rand.IntN(4)
			s.queues = nil
			for q := range queues {
				s.queues = append(s.queues, q)
			}
			const n = 60
			for i := range n {
				s.add(i%queues, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", Body: []byte("x")})
			}
			var now, most atomic.Int64
			var mu sync.Mutex
			stop := start(t, s, Subscription{}, func(context.Context, *tidegate.Delivery) error {
				k := now.Add(1)
				defer now.Add(-1)
				mu.Lock()
				most.Store(max(most.Load(), k))
				d := time.Duration(1 + rand.Int64N(int64(time.Second)))
				mu.Unlock()
				time.Sleep(d)
				return nil
			}, PushOptions{Concurrency: limit})
			time.Sleep(2 * time.Minute)
			stop()
			if most.Load() > int64(limit) || s.left() != 0 {
				t.Errorf("%d handlers at once, limit %d; %d messages left", most.Load(), limit, s.left())
			}
			if limit >= queues && most.Load() < int64(limit) {
				t.Errorf("never more than %d handlers at once, limit %d, %d queues", most.Load(), limit, queues)
			}
			share := (limit + queues - 1) / queues
			if s.maxHand > share*queues || queues == 1 && s.maxHand > limit {
				t.Errorf("%d in hand, limit %d, %d queues", s.maxHand, limit, queues)
			}
		})
	}
}

func TestStartsAndStopsLeakNothing(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) { // a goroutine that is left fails the bubble
			s := newServer(t)
			s.fill(rand.IntN(40))
			stop := start(t, s, Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Duration(rand.Int64N(int64(time.Minute)))):
					return nil
				}
			}, PushOptions{Concurrency: 1 + rand.IntN(30), ShutdownTimeout: time.Second})
			time.Sleep(time.Duration(rand.Int64N(int64(30 * time.Second))))
			if err := stop(); err != nil {
				t.Error(err)
			}
			if s.handed != 0 {
				t.Errorf("%d deliveries were neither settled nor given back", s.handed)
			}
		})
	}
}
