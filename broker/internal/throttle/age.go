package throttle

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// An Age is how old a backlog is, as it was looked at last. It is looked at when
// something is sent, and not by a timer. Goroutines may share it. Its zero value
// was never looked at.
type Age struct {
	looking atomic.Bool // one at a time; the others take what is there
	at      atomic.Int64
	stored  atomic.Int64 // of the oldest message; 0 for none

	mu       sync.Mutex
	progress progress // guarded by mu
}

// Look has the age up to date for a limit: oldest, which may read from a store,
// is asked when the oldest message was stored, in nanoseconds since 1970 (0 for
// none), unless it was asked less than a fiftieth of the limit ago, 1 ms to
// 100 ms. While one goroutine asks, others do not wait for it.
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

// ageEvery is how often an age is looked at for a limit.
func ageEvery(limit time.Duration) time.Duration {
	return min(max(limit/50, time.Millisecond), 100*time.Millisecond)
}

// At returns how old the oldest message is; 0 for none.
func (a *Age) At(now time.Time) time.Duration {
	stored := a.stored.Load()
	if stored == 0 {
		return 0
	}
	return max(0, time.Duration(now.UnixNano()-stored))
}

// Fall returns how many seconds the age falls in a second; below 0 while it grows.
func (a *Age) Fall() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.progress.rate() - 1
}

// progress measures how fast consumers come to newer messages: seconds of
// stored time in a second. Its zero value is ready for use.
type progress struct {
	at       time.Time
	stored   int64
	came, in float64 // decayed sums of seconds
}

// observe notes when the oldest message was stored at a moment; 0 for none.
func (p *progress) observe(stored int64, now time.Time) {
	dt := now.Sub(p.at).Seconds()
	if dt <= 0 {
		return
	}
	if p.stored == 0 || stored == 0 {
		p.came, p.in = 0, 0 // there was nothing to come to, or there is no more
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

// rate returns the seconds of stored time that consumers pass in a second.
func (p *progress) rate() float64 {
	if p.in == 0 {
		return 0
	}
	return p.came / p.in
}
