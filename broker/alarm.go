package broker

import (
	"sync"
	"time"
)

// An alarm calls a function at the earliest of the times that it was set to.
type alarm struct {
	mu    sync.Mutex
	at    time.Time // guarded by mu: what timer is set to; zero if it is not
	timer *time.Timer
}

func newAlarm(f func()) *alarm {
	a := &alarm{}
	a.timer = time.AfterFunc(time.Hour, func() {
		a.mu.Lock()
		a.at = time.Time{}
		a.mu.Unlock()
		f()
	})
	a.timer.Stop()
	return a
}

// set has the function called at that time, or earlier.
func (a *alarm) set(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at.IsZero() || at.Before(a.at) {
		a.at = at
		a.timer.Reset(time.Until(at))
	}
}

// stop forgets the time. A call under way is not waited for.
func (a *alarm) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = time.Time{}
	a.timer.Stop()
}
