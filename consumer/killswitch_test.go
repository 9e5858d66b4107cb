package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
)

// An outage of a dependency for ten minutes causes no dead letters, and costs only the attempts
// that detected it. The consumer has its full speed again within 30 s after the outage.
func TestOutageOfADependency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		s.settings.MaxAttempts, s.settings.Retry = 3, backoff.Steps{time.Second}
		const messages, concurrency = 16_000, 64
		s.fill(messages)
		var away atomic.Bool
		var handled, calls atomic.Int64
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			calls.Add(1)
			time.Sleep(50 * time.Millisecond)
			if away.Load() {
				return errors.New("the database is away")
			}
			handled.Add(1)
			return nil
		}, consumer.PushOptions{Concurrency: concurrency, KillSwitch: consumer.KillSwitch{FailureRatio: 0.5}})
		time.Sleep(time.Second)
		away.Store(true)
		begin, before := time.Now(), calls.Load()
		time.Sleep(10 * time.Minute)
		if n := calls.Load() - before; n > 60*10/5+5*concurrency {
			t.Errorf("%d handlers were called during the outage", n)
		}
		if spent := s.spent(); spent > 3*concurrency {
			t.Errorf("%d attempts were spent", spent)
		}
		away.Store(false)
		time.Sleep(15 * time.Second)
		n := handled.Load()
		time.Sleep(time.Second)
		if rate := handled.Load() - n; rate < concurrency*20*8/10 {
			t.Errorf("%d messages in a second, %v after the outage began; %d left", rate, time.Since(begin), s.left())
		}
		time.Sleep(time.Minute)
		if n := s.left(); n > messages/100 {
			t.Errorf("%d messages left a minute after the outage", n)
		}
		time.Sleep(5 * time.Minute) // probes that failed repeatedly
		stop()
		if len(s.dead) != 0 || s.left() != 0 || s.handed != 0 {
			t.Errorf("%d dead letters, %d messages left", len(s.dead), s.left())
		}
		for _, e := range s.entries {
			if e.attempt > 2 {
				t.Errorf("message %s took %d attempts", e.msg.ID, e.attempt)
			}
		}
	})
}

func TestPauseAndResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		s.fillQuick()
		var handled atomic.Int64
		p, err := consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
			if slow(d) {
				time.Sleep(100 * time.Millisecond)
			}
			handled.Add(1)
			return nil
		}, consumer.PushOptions{Concurrency: 10})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		s.fillSlow(500)
		time.Sleep(time.Second)
		p.Pause()
		p.Pause()
		time.Sleep(time.Second)
		n := handled.Load()
		if s.inHand() != 0 || n >= 800 || n == 0 {
			t.Errorf("%d in hand, %d handled after a pause of 1 s", s.inHand(), n)
		}
		time.Sleep(time.Hour)
		if handled.Load() != n {
			t.Errorf("%d handled during the pause", handled.Load()-n)
		}
		p.Resume()
		time.Sleep(time.Minute)
		if s.left() != 0 {
			t.Errorf("%d left after the pause", s.left())
		}
		p.Pause() // a paused consumer stops as others do
		s.fill(3)
		cancel()
		if err := <-done; err != nil || s.handed != 0 {
			t.Errorf("Run: %v, %d in hand", err, s.handed)
		}
		for _, e := range s.entries {
			if e.attempt > 1 {
				t.Errorf("message %s spent %d attempts", e.msg.ID, e.attempt)
			}
		}
	})
}

// The switch judges by MinMessages handled messages at least: before that, failures do not trip it.
func TestKillSwitchTakesItsTime(t *testing.T) {
	for _, least := range []int{5, 50} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			s.caps = ours
			s.settings.Retry = backoff.Steps{time.Hour}
			s.fill(200)
			var calls atomic.Int64
			stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
				calls.Add(1)
				return errors.New("the database is away")
			}, consumer.PushOptions{Concurrency: 1, KillSwitch: consumer.KillSwitch{FailureRatio: 0.5, MinMessages: least, Probe: time.Minute}})
			time.Sleep(time.Second)
			synctest.Wait()
			if got := calls.Load(); got != int64(least) {
				t.Errorf("%d handlers were called before the switch tripped, want %d", got, least)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := calls.Load(); got != int64(least)+1 {
				t.Errorf("%d handlers were called with the first probe, want %d", got, least+1)
			}
			stop()
		})
	}
}
