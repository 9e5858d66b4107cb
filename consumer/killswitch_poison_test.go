package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
)

// Messages that always fail reach their last attempt, and the others are handled, with and without
// an outage of a dependency.
func TestKillSwitchEndsWithPoison(t *testing.T) {
	const messages, maxAttempts = 200, 5
	for _, outage := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			s.caps = ours
			s.settings.MaxAttempts, s.settings.Retry = maxAttempts, backoff.Steps{10 * time.Second}
			s.fill(messages)
			poison := map[string]*atomic.Int64{}
			for i := 0; i < messages; i += messages / 10 {
				poison[s.entries[i].msg.ID] = &atomic.Int64{}
			}
			begin := time.Now()
			var good atomic.Int64
			stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
				time.Sleep(10 * time.Millisecond)
				if calls := poison[d.ID]; calls != nil {
					calls.Add(1)
					return errors.New("poison")
				}
				if time.Since(begin) < outage {
					return errors.New("the database is away")
				}
				good.Add(1)
				return nil
			}, consumer.PushOptions{KillSwitch: consumer.KillSwitch{FailureRatio: 0.5}})
			for s.left() > 0 && time.Since(begin) < 3*time.Hour {
				if good.Load() < messages-10 && time.Since(begin) > outage+10*time.Minute {
					t.Fatalf("outage %v: %d messages are not handled 10 min after its end", outage, messages-10-good.Load())
				}
				time.Sleep(time.Second)
			}
			t.Logf("outage %v: everything ended after %v", outage, time.Since(begin))
			stop()
			if s.left() != 0 || len(s.dead) != len(poison) {
				t.Errorf("outage %v: %d messages left, %d dead letters, want %d", outage, s.left(), len(s.dead), len(poison))
			}
			for id, calls := range poison {
				if n := calls.Load(); n < maxAttempts || n > 2*maxAttempts || s.dead[id] == "" { // at most 5 excuses
					t.Errorf("outage %v: message %s was handled %d times and its end is %q", outage, id, n, s.dead[id])
				}
			}
		})
	}
}

// The handler's DeadLetter is carried out, also for the failure that trips the switch and for
// probes.
func TestKillSwitchCarriesOutDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		s.fill(4)
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			return consumer.DeadLetterNow(errors.New("not an order"))
		}, consumer.PushOptions{Concurrency: 1, KillSwitch: consumer.KillSwitch{FailureRatio: 0.5, MinMessages: 2, Probe: time.Minute}})
		time.Sleep(time.Second)
		s.mu.Lock()
		n := len(s.dead)
		s.mu.Unlock()
		if n != 2 {
			t.Errorf("%d dead letters when the switch has tripped, want 2", n)
		}
		time.Sleep(2 * time.Minute)
		stop()
		if n := len(s.dead); n != 4 || len(s.snoozes) != 0 {
			t.Errorf("%d dead letters after two probes, want 4; %d messages postponed", n, len(s.snoozes))
		}
	})
}

// Each trip and each return is reported once, in order, and Tripped reports the state in between.
func TestKillSwitchReportsItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		s.fill(1000)
		var p *consumer.Push
		var away atomic.Bool
		var events []consumer.KillSwitchEvent
		var log strings.Builder
		p, err := consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error {
			time.Sleep(100 * time.Millisecond)
			if away.Load() {
				return errors.New("the database is away")
			}
			return nil
		}, consumer.PushOptions{
			Concurrency: 4, KillSwitch: consumer.KillSwitch{FailureRatio: 1, MinMessages: 2, Probe: time.Minute},
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo})),
			OnKillSwitch: func(e consumer.KillSwitchEvent) {
				if e.Tripped != p.Tripped() {
					t.Errorf("the state differs from event %+v", e)
				}
				events = append(events, e)
				panic("by the test")
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if p.Tripped() {
			t.Error("a consumer that does not run has tripped")
		}
		stop := runPush(t, p)
		time.Sleep(time.Second + 50*time.Millisecond)
		away.Store(true)
		time.Sleep(2*time.Minute + 30*time.Second) // two failed probes
		away.Store(false)
		if !p.Tripped() {
			t.Error("Tripped is false during the outage")
		}
		time.Sleep(time.Minute)
		stop()
		// The probe after 3 min and its 100 ms succeeds; the concurrency is 4 two seconds later.
		if len(events) != 2 || !events[0].Tripped || events[0].Failed != events[0].Handled || events[0].Failed < 2 || events[1].Tripped ||
			events[1].Lasted.Round(time.Second) != 3*time.Minute+2*time.Second || events[1].Group != "billing" {
			t.Errorf("events %+v", events)
		}
		if n := strings.Count(log.String(), "kill switch tripped"); n != 1 || strings.Count(log.String(), "kill switch returned") != 1 {
			t.Errorf("%d trips logged, want 1, and 1 return:\n%s", n, log.String())
		}
	})
}

// A trip by a dead letter whose message group has a further message keeps the full concurrency for
// the time after the return.
func TestFullConcurrencyAfterDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		s.settings.FIFO = true
		s.onDead = func(*tidegate.Delivery) error { time.Sleep(time.Second); return nil }
		for _, id := range []string{"bad", "next"} {
			s.add(0, &tidegate.Message{ID: id, Topic: "orders", MessageGroup: "g"})
		}
		var running, most atomic.Int64
		stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			if d.ID == "bad" {
				return consumer.DeadLetterNow(errors.New("not an order"))
			}
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(10 * time.Second)
			return nil
		}, consumer.PushOptions{Concurrency: 3, KillSwitch: consumer.KillSwitch{DeadLetters: 1}})
		time.Sleep(500 * time.Millisecond)
		s.fill(1) // the only worker takes it while the dead letter is settled
		time.Sleep(time.Minute)
		s.fill(10)
		time.Sleep(time.Minute)
		stop()
		if n := most.Load(); n != 3 {
			t.Errorf("%d handlers at a time after the switch returned, want 3", n)
		}
	})
}

// A probe whose handler is stuck gives its place to the next message, also on a server to which the
// consumer cannot return the messages that wait.
func TestStuckProbeIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.settings.Retry = backoff.Steps{12 * time.Hour}
		s.fill(12)
		var calls, good atomic.Int64
		stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
			switch n := calls.Add(1); {
			case n <= 8:
				time.Sleep(time.Second)
				return errors.New("the database is away")
			case n == 9: // the probe
				select {
				case <-time.After(30 * time.Minute):
				case <-ctx.Done():
				}
				return nil
			}
			good.Add(1)
			return nil
		}, consumer.PushOptions{Concurrency: 4, StuckAfter: time.Minute, KillSwitch: consumer.KillSwitch{FailureRatio: 0.5, MinMessages: 8}})
		time.Sleep(3 * time.Minute)
		if n := good.Load(); n != 3 {
			t.Errorf("%d messages were handled beside a stuck probe, want 3", n)
		}
		stop()
	})
}

// The next message does not wait for a handler whose goroutine ended while the concurrency grows.
func TestGoexitDuringTheRamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.settings.Retry = backoff.Steps{12 * time.Hour}
		s.fillQuick()
		var calls atomic.Int64
		var ended time.Time
		begin := time.Now()
		stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			switch {
			case !slow(d):
				return nil
			case time.Since(begin) < 3*time.Second:
				time.Sleep(time.Second)
				return errors.New("the database is away")
			}
			switch calls.Add(1) {
			case 2: // after the probe
				time.Sleep(100 * time.Millisecond)
				ended = time.Now()
				runtime.Goexit()
			case 3:
				if d := time.Since(ended); d != 0 {
					t.Errorf("the next message waited for %v", d)
				}
			}
			return nil
		}, consumer.PushOptions{Concurrency: 4, KillSwitch: consumer.KillSwitch{FailureRatio: 0.5, MinMessages: 4}})
		s.fillSlow(10)
		time.Sleep(time.Minute)
		stop()
		if n := calls.Load(); n < 3 {
			t.Errorf("%d handlers were called after the outage, want 3", n)
		}
	})
}
