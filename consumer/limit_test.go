package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// A limiter delays receiving. The messages above the rate stay at the server, without a lease of
// this consumer, and none of them is retried.
//
// RocketMQ: consumption retry: "Obtain and consume messages at a later time if the current
// consumption rate is higher than limited"
func TestLimiterDelaysTheFetch(t *testing.T) {
	for name, tt := range map[string]struct {
		limiter *rate.Limiter
		queues  int
		atOnce  int // handled in any moment
	}{
		"one by one":        {rate.NewLimiter(10, 1), 1, 1},
		"in fives":          {rate.NewLimiter(10, 5), 1, 5},
		"more than a batch": {rate.NewLimiter(10, 50), 1, 50},
		"of four queues":    {rate.NewLimiter(10, 1), 4, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				s.caps, s.queues = ours, []int{0, 1, 2, 3}[:tt.queues]
				for i := range 400 {
					s.add(i%tt.queues, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")})
				}
				begin := time.Now()
				var handled atomic.Int64
				stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
					n := handled.Add(1)
					if allowed := int64(tt.limiter.Burst()+tt.queues) + int64(10*time.Since(begin).Seconds()); n > allowed {
						t.Errorf("%d messages after %v, at most %d are allowed", n, time.Since(begin), allowed)
					}
					return nil
				}, consumer.PushOptions{Limiter: tt.limiter})
				time.Sleep(20 * time.Second)
				if n := handled.Load(); n < 190 {
					t.Errorf("%d messages in 20 s, want 10 a second", n)
				}
				stop()
				if s.maxHand > tt.atOnce {
					t.Errorf("%d messages in hand", s.maxHand)
				}
				if len(s.retries) > 0 || len(s.changes) > 0 || s.spent() > 0 {
					t.Errorf("%d retries, %d extensions, %d spent attempts", len(s.retries), len(s.changes), s.spent())
				}
			})
		})
	}
}

// A receive that brings nothing keeps its permission: an idle consumer handles a new message at
// once.
func TestLimiterDoesNotDelayAnIdleConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		var at time.Time
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { at = time.Now(); return nil },
			consumer.PushOptions{Limiter: rate.NewLimiter(rate.Every(time.Hour), 1)})
		time.Sleep(50 * time.Minute) // 150 polls that bring nothing
		added := time.Now()
		s.fill(1)
		time.Sleep(time.Second)
		stop()
		if !at.Equal(added) {
			t.Errorf("it was handled %v after it came", at.Sub(added))
		}
	})
}

// brokenLimiter rejects.
type brokenLimiter struct{ asked atomic.Int64 }

var errLimiter = errors.New("the limiter's store is away")

func (l *brokenLimiter) WaitN(context.Context, int) error {
	if l.asked.Add(1) > 3 {
		return nil
	}
	return errLimiter
}

// A limiter that fails stops receiving until it permits it again, and is reported.
func TestLimiterThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.fill(1)
		var reported []consumer.ReceiveFailure
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{Limiter: &brokenLimiter{}, OnReceiveFailure: func(f consumer.ReceiveFailure) { reported = append(reported, f) }})
		time.Sleep(500 * time.Millisecond)
		s.mu.Lock()
		if len(s.polls) > 0 {
			t.Error("it received without permission")
		}
		s.mu.Unlock()
		time.Sleep(time.Minute)
		stop()
		if s.left() != 0 || len(reported) != 3 || !errors.Is(reported[2].Err, errLimiter) || reported[2].Failures != 3 {
			t.Errorf("%d messages left, reported %+v", s.left(), reported)
		}
	})
}

// Run ends while the limiter holds it.
func TestLimiterEndsWithTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.fill(10)
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{Limiter: rate.NewLimiter(rate.Every(time.Hour), 1)})
		time.Sleep(time.Minute)
		begin := time.Now()
		if err := stop(); err != nil || time.Since(begin) > 6*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}
