package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// An outage of a dependency for ten minutes causes no dead letters, and costs only the attempts
// that detected it. The consumer has its full speed again within 30 s after the outage.
func TestOutageOfADependency(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
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
		assert.That(t, len(s.dead) == 0 && s.left() == 0 && s.handed == 0, "%d dead letters, %d messages left", len(s.dead), s.left())
		for _, e := range s.entries {
			assert.That(t, e.attempt <= 2, "message %s took %d attempts", e.msg.ID, e.attempt)
		}
	})
}

func TestPauseAndResume(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fillQuick()
		var handled atomic.Int64
		p := assert.Value(consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
			if slow(d) {
				time.Sleep(100 * time.Millisecond)
			}
			handled.Add(1)
			return nil
		}, consumer.PushOptions{Concurrency: 10}))(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		p.Pause()
		go func() { done <- p.Run(ctx) }()
		time.Sleep(time.Hour)
		s.mu.Lock()
		assert.That(t, len(s.polls) == 0, "%d receives of a consumer that was paused before Run", len(s.polls))
		s.mu.Unlock()
		p.Resume()
		s.fillSlow(500)
		time.Sleep(time.Second)
		p.Pause()
		p.Pause()
		time.Sleep(time.Second)
		n := handled.Load()
		assert.That(t, s.inHand() == 0 && n < 800 && n != 0, "%d in hand, %d handled after a pause of 1 s", s.inHand(), n)
		time.Sleep(time.Hour)
		assert.That(t, handled.Load() == n, "%d handled during the pause", handled.Load()-n)
		p.Resume()
		time.Sleep(time.Minute)
		assert.That(t, s.left() == 0, "%d left after the pause", s.left())
		p.Pause() // a paused consumer stops as others do
		s.fill(3)
		cancel()
		err := <-done
		assert.That(t, err == nil && s.handed == 0, "Run: %v, %d in hand", err, s.handed)
		for _, e := range s.entries {
			assert.That(t, e.attempt <= 1, "message %s spent %d attempts", e.msg.ID, e.attempt)
		}
	})
}

// Messages that always fail reach their last attempt, and the others are handled, with and without
// an outage of a dependency.
func TestKillSwitchEndsWithPoison(t *testing.T) {
	const messages, maxAttempts = 200, 5
	for _, outage := range []time.Duration{0, time.Minute} {
		withBroker(t, func(t *testing.T, s *server) {
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
				assert.MustThat(t, good.Load() >= messages-10 || time.Since(begin) <= outage+10*time.Minute,
					"outage %v: %d messages are not handled 10 min after its end", outage, messages-10-good.Load())
				time.Sleep(time.Second)
			}
			t.Logf("outage %v: everything ended after %v", outage, time.Since(begin))
			stop()
			assert.That(t, s.left() == 0 && len(s.dead) == len(poison), "outage %v: %d messages left, %d dead letters, want %d", outage, s.left(), len(s.dead), len(poison))
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
	withBroker(t, func(t *testing.T, s *server) {
		s.fill(4)
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			return consumer.DeadLetterNow(errors.New("not an order"))
		}, consumer.PushOptions{Concurrency: 1, KillSwitch: consumer.KillSwitch{FailureRatio: 0.5, MinMessages: 2, Probe: time.Minute}})
		time.Sleep(time.Second)
		s.mu.Lock()
		n := len(s.dead)
		s.mu.Unlock()
		assert.That(t, n == 2, "%d dead letters when the switch has tripped, want 2", n)
		time.Sleep(2 * time.Minute)
		stop()
		if n := len(s.dead); n != 4 || len(s.snoozes) != 0 {
			t.Errorf("%d dead letters after two probes, want 4; %d messages postponed", n, len(s.snoozes))
		}
	})
}

// Each trip and each return is reported once, in order, and Tripped reports the state in between.
func TestKillSwitchReportsItsState(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fill(1000)
		var p *consumer.Push
		var away atomic.Bool
		var events []consumer.KillSwitchEvent
		var log strings.Builder
		p = assert.Value(consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error {
			time.Sleep(100 * time.Millisecond)
			if away.Load() {
				return errors.New("the database is away")
			}
			return nil
		}, consumer.PushOptions{
			Concurrency: 4, KillSwitch: consumer.KillSwitch{FailureRatio: 1, MinMessages: 2, Probe: time.Minute},
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo})),
			OnKillSwitch: func(e consumer.KillSwitchEvent) {
				assert.That(t, e.Tripped == p.Tripped(), "the state differs from event %+v", e)
				events = append(events, e)
				panic("by the test")
			},
		}))(t)
		assert.That(t, !p.Tripped(), "a consumer that does not run has tripped")
		stop := runPush(t, p)
		time.Sleep(time.Second + 50*time.Millisecond)
		away.Store(true)
		time.Sleep(2*time.Minute + 30*time.Second) // two failed probes
		away.Store(false)
		assert.That(t, p.Tripped(), "Tripped is false during the outage")
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
	withBroker(t, func(t *testing.T, s *server) {
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
		assert.Equal(t, "handlers at a time after the switch returned", most.Load(), 3)
	})
}

// A probe whose handler is stuck gives its place to the next message, also on a server to which the
// consumer cannot return the messages that wait.
func TestStuckProbeIsReplaced(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
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
		assert.Equal(t, "messages were handled beside a stuck probe", good.Load(), 3)
		stop()
	})
}

// On a server that takes messages back but cannot postpone them, a failed probe costs an attempt:
// the next probe handles another message instead of the same one.
func TestProbesWithoutSnoozeHandleDifferentMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const probes = 4
		s := newServer(t)
		s.caps = transport.Capabilities{Suspend: true, RepeatReceive: true}
		s.settings.Retry = backoff.Steps{time.Hour}
		s.fill(20)
		runFor(t, probes*time.Minute+time.Second, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			return errors.New("the database is away")
		}, consumer.PushOptions{Concurrency: 1, KillSwitch: consumer.KillSwitch{FailureRatio: 1, MinMessages: 2, Probe: time.Minute}})
		var failed []string
		for _, c := range s.retries {
			failed = append(failed, c.id)
		}
		slices.Sort(failed)
		// The first failure and each probe cost an attempt; the failure that trips the switch does
		// not.
		if distinct := len(slices.Compact(slices.Clone(failed))); len(failed) != 1+probes || distinct != len(failed) {
			t.Errorf("retries of %q, want those of %d different messages", failed, 1+probes)
		}
	})
}

// The kill switch postpones a message by 4 × Probe. Failures of an earlier outage, whose messages
// were all consumed, do not make it longer.
func TestExcusesEndWithTheirMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const concurrency, probe = 100, 5 * time.Second
		s := newServer(t)
		s.caps = ours
		s.fill(concurrency)
		var away atomic.Bool
		away.Store(true)
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			time.Sleep(100 * time.Millisecond)
			if away.Load() {
				return errors.New("the database is away")
			}
			return nil
		}, consumer.PushOptions{Concurrency: concurrency, KillSwitch: consumer.KillSwitch{FailureRatio: 1, MinMessages: 1, Probe: probe}})
		time.Sleep(time.Second)
		away.Store(false)
		time.Sleep(10 * time.Minute)
		s.mu.Lock()
		postponed := len(s.snoozes)
		s.mu.Unlock()
		assert.MustThat(t, postponed >= concurrency*9/10 && s.left() == 0, "%d messages postponed and %d left, want most and none", postponed, s.left())
		away.Store(true)
		s.add(0, &tidegate.Message{ID: "late", Topic: "orders"})
		time.Sleep(time.Second)
		s.mu.Lock()
		got := slices.Clone(s.snoozes[postponed:])
		s.mu.Unlock()
		assert.That(t, len(got) == 1 && got[0].id == "late" && got[0].delay == 4*probe, "postponed: %+v, want the late message by %v", got, 4*probe)
		away.Store(false)
		stop()
	})
}
