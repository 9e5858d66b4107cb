package throttle

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// An Age is the age of the oldest message of a backlog. Sends update it by Look; there is no timer.
// Goroutines may share an Age. The zero value has not been updated yet; its age is 0.
type Age struct {
	looking atomic.Bool  // one goroutine updates; the others use the last value
	at      atomic.Int64 // time of the last update, in nanoseconds since 1970
	stored  atomic.Int64 // when the oldest message was stored; 0 for none

	mu       sync.Mutex
	progress progress // guarded by mu
}

// Look updates the age. oldest returns when the oldest message was stored, in nanoseconds since
// 1970; 0 means that the backlog is empty. oldest may read from a store.
//
// Look does not call oldest if the last update is less than a fiftieth of limit ago; this interval
// is at least 1 ms and at most 100 ms. While one goroutine is in oldest, Look returns at once in
// the other goroutines.
func (a *Age) Look(now time.Time, limit time.Duration, oldest func() int64) {
	if d := now.UnixNano() - a.at.Load(); d >= 0 && d < int64(ageEvery(limit)) || !a.looking.CompareAndSwap(false, true) {
		return
	}
	defer a.looking.Store(false)
	a.stored.Store(oldest())
	a.at.Store(now.UnixNano())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.progress.observe(a.stored.Load(), now)
}

// ageEvery returns the least time between two updates of an age for a limit.
func ageEvery(limit time.Duration) time.Duration {
	return min(max(limit/50, time.Millisecond), 100*time.Millisecond)
}

// At returns the age of the oldest message at now; 0 for an empty backlog.
func (a *Age) At(now time.Time) time.Duration {
	stored := a.stored.Load()
	if stored == 0 {
		return 0
	}
	return max(0, time.Duration(now.UnixNano()-stored))
}

// Fall returns how fast the age falls, in seconds per second. It is negative while the age grows.
func (a *Age) Fall() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.progress.rate() - 1
}

// progress measures how fast consumers proceed to newer messages, in seconds of stored time per
// second. For example, it is 2 while consumers take one second for the messages of two seconds.
// The zero value is ready for use.
type progress struct {
	at       time.Time
	stored   int64
	came, in float64 // decayed sums, in seconds: progress in stored time, and elapsed time
}

// observe records that the oldest message at now was stored at stored; 0 for an empty backlog.
func (p *progress) observe(stored int64, now time.Time) {
	dt := now.Sub(p.at).Seconds()
	if dt <= 0 {
		return
	}
	if p.stored == 0 || stored == 0 {
		p.came, p.in = 0, 0 // the backlog was empty, or is empty now
	} else {
		w := math.Exp(-dt / drainWindow.Seconds())
		if p.came *= w; p.came < 1e-3 { // a pause of many windows: measure anew
			p.came, p.in = 0, 0
		}
		p.came += max(0, time.Duration(stored-p.stored).Seconds())
		p.in = p.in*w + dt
	}
	p.at, p.stored = now, stored
}

// rate returns the progress of the consumers, in seconds of stored time per second.
func (p *progress) rate() float64 {
	if p.in == 0 {
		return 0
	}
	return p.came / p.in
}
