package broker

import (
	"math"
	"sync"
	"time"
)

// lookAgain is the most that an alarm waits before it looks at the clock again.
const lookAgain = time.Minute

// An alarm calls a function at the earliest of the times that it was set to. A
// time without a monotonic reading, as what is stored has, is one of the wall clock: where that is
// set ahead, or the machine was suspended, the alarm is at most lookAgain late.
type alarm struct {
	f func()

	mu      sync.Mutex
	at      time.Time // guarded by mu: when to call f; zero for never
	timer   *time.Timer
	stopped bool // guarded by mu
}

func newAlarm(f func()) *alarm {
	a := &alarm{f: f}
	a.timer = time.AfterFunc(time.Hour, a.look)
	a.timer.Stop()
	return a
}

// set has the function called at that time, or earlier.
func (a *alarm) set(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.stopped && (a.at.IsZero() || at.Before(a.at)) {
		a.at = at
		a.timer.Reset(waitFor(at, time.Now()))
	}
}

// waitFor returns how long to wait for a time before looking at the clock
// again, which may be set meanwhile.
func waitFor(at, now time.Time) time.Duration { return min(at.Sub(now), lookAgain) }

// look calls the function if it is time. The timer calls it.
func (a *alarm) look() {
	if a.isTime() {
		a.f()
	}
}

func (a *alarm) isTime() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	switch {
	case a.at.IsZero():
		return false
	case a.at.After(now):
		a.timer.Reset(waitFor(a.at, now))
		return false
	}
	a.at = time.Time{}
	return true
}

// stop ends it for good. A call under way is not waited for.
func (a *alarm) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at, a.stopped = time.Time{}, true
	a.timer.Stop()
}

// farAhead is after every time at which something is due.
var farAhead = time.Unix(0, math.MaxInt64)

// A lowerBound is a time before which nothing is due, so that who looks for what is due need not
// pass over the traces of all that was there before. The zero value knows nothing.
type lowerBound struct {
	mu sync.Mutex
	at time.Time // guarded by mu
}

// note notes that something can be due from that time on. What is written is
// noted once it can be read: who takes the bound sees it, or finds it noted afterwards.
func (l *lowerBound) note(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.Before(l.at) {
		l.at = t
	}
}

// take returns the bound to who looks for everything that is due from there
// on, and notes what is left; the whole of it if the look failed.
func (l *lowerBound) take() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.at
	l.at = farAhead
	return at
}
