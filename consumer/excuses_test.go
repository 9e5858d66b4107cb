package consumer_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// On a server that takes messages back but cannot postpone them, a failed probe costs an attempt:
// the next probe handles another message instead of the same one.
func TestProbesWithoutSnoozeHandleDifferentMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const probes = 4
		s := newServer(t)
		s.caps = transport.Capabilities{Suspend: true, RepeatReceive: true}
		s.settings.Retry = backoff.Steps{time.Hour}
		s.fill(20)
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			return errors.New("the database is away")
		}, consumer.PushOptions{Concurrency: 1, KillSwitch: consumer.KillSwitch{FailureRatio: 1, MinMessages: 2, Probe: time.Minute}})
		time.Sleep(probes*time.Minute + time.Second)
		stop()
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
		if postponed < concurrency*9/10 || s.left() != 0 {
			t.Fatalf("%d messages postponed and %d left, want most and none", postponed, s.left())
		}
		away.Store(true)
		s.add(0, &tidegate.Message{ID: "late", Topic: "orders"})
		time.Sleep(time.Second)
		s.mu.Lock()
		got := slices.Clone(s.snoozes[postponed:])
		s.mu.Unlock()
		if len(got) != 1 || got[0].id != "late" || got[0].delay != 4*probe {
			t.Errorf("postponed: %+v, want the late message by %v", got, 4*probe)
		}
		away.Store(false)
		stop()
	})
}
