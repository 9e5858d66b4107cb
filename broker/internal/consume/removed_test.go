package consume

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// Retention keeps a message that is too old while a group is at work on it.
func TestNeeded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	for _, c := range []struct {
		state   State
		attempt int
		due     time.Duration // from now
		grace   time.Duration
		retain  bool // its message group was parked
		want    bool
	}{
		{Inflight, 1, -time.Hour, time.Second, false, true}, // before Expire
		{WaitingRetry, 3, time.Hour, time.Second, false, true},
		{DeadLetter, 17, -time.Hour, time.Second, false, true}, // on its way there
		{Parked, 17, -time.Hour, time.Second, false, true},
		{Held, 0, 0, time.Hour, false, false},
		{Ready, 0, 0, time.Hour, false, false}, // never delivered: it was held until now
		{Ready, 1, 0, time.Hour, false, true},
		{Ready, 1, 1 - time.Hour, time.Hour, false, true},
		{Ready, 1, -time.Hour, time.Hour, false, false},
		{Ready, 1, 1 - time.Minute, time.Minute, false, true},
		{Ready, 1, -time.Minute, time.Minute, false, false},
		{Ready, 0, -time.Hour, time.Minute, true, true}, // redriven, and not received since
		{Ready, 3, -time.Hour, time.Minute, true, true},
		{Held, 0, 0, time.Minute, true, true},
	} {
		l := &Lease{Lease: store.Lease{State: uint8(c.state), Attempt: c.attempt, Due: now.Add(c.due), Retain: c.retain}}
		if got := l.Needed(c.grace, now); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

// An idle subscription keeps no buffer of writes, and no lease alive by one. The test reads a
// buffer that others may take, so it does not run beside them.
func TestEffectsKeepNothing(t *testing.T) {
	p := New(Config{})
	p.AddQueue(store.Mark{})
	for range 10 {
		p.putLease(&Lease{cursor: p.cursors[0]})
	}
	if e := p.Effects(); len(e.Writes) != 10 {
		t.Fatalf("%d writes", len(e.Writes))
	}
	e := p.Effects()
	buffer := e.Writes
	if e.Reset(); cap(e.Writes) != 0 || e.buffer != nil {
		t.Errorf("a buffer of %d writes is kept", cap(e.Writes))
	}
	for _, w := range buffer {
		if w.Lease != nil {
			t.Fatal("a lease is kept alive")
		}
	}
}
