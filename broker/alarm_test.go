package broker

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAlarmLooksAtTheClockAgain(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	for ahead, want := range map[time.Duration]time.Duration{
		-time.Hour: -time.Hour, 0: 0, 1: 1, time.Minute: time.Minute, time.Minute + 1: time.Minute, 24 * time.Hour: time.Minute,
	} {
		if got := waitFor(now.Add(ahead), now); got != want {
			t.Errorf("%v ahead: the clock is looked at after %v, want %v", ahead, got, want)
		}
	}
}

// An alarm calls once, and not before its time; where the clock is set, a minute late at most.
func TestAlarmWhenTheClockIsSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls []time.Time
		a := newAlarm(func() { calls = append(calls, time.Now()) })
		at := time.Now().Add(3*time.Hour + time.Second).Round(0)
		a.set(at.Add(time.Hour))
		a.set(at)
		a.set(at.Add(time.Minute)) // it calls earlier
		elapse(5 * time.Hour)
		if len(calls) != 1 || !calls[0].Equal(at) {
			t.Fatalf("called at %v, want %v", calls, at)
		}
		at = time.Now().Add(3 * time.Hour).Round(0)
		a.set(at)
		elapse(10 * time.Minute)
		// What is three hours ahead is so no more: as if the clock were set ahead by that.
		a.mu.Lock()
		a.at = a.at.Add(-3 * time.Hour)
		a.mu.Unlock()
		elapse(lookAgain)
		if len(calls) != 2 {
			t.Errorf("called at %v", calls)
		}
		a.set(time.Now().Add(time.Second))
		a.stop()
		a.set(time.Now().Add(time.Second))
		elapse(time.Hour)
		if len(calls) != 2 {
			t.Errorf("called at %v although it was stopped", calls)
		}
	})
}
