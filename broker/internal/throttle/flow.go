package throttle

import (
	"math"
	"sync"
	"time"
)

// A Flow measures messages and bytes per second, as a moving average with a time constant of 5 s.
// Goroutines may share a Flow. The zero value is ready for use; its rate is 0.
type Flow struct {
	mu              sync.Mutex
	messages, bytes float64   // guarded by mu: decayed sums
	at              time.Time // guarded by mu: when the sums were last decayed
	start           time.Time // guarded by mu: when this measurement began
}

// Add counts messages and bytes at now.
func (f *Flow) Add(messages, bytes int64, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decay(now)
	f.messages += float64(messages)
	f.bytes += float64(bytes)
}

func (f *Flow) decay(now time.Time) {
	if f.start.IsZero() {
		f.start, f.at = now, now
	}
	k := math.Exp(-now.Sub(f.at).Seconds() / drainWindow.Seconds())
	f.messages, f.bytes, f.at = f.messages*k, f.bytes*k, now
	if f.messages < 0.5 { // a pause of many windows: measure anew
		f.messages, f.bytes, f.start = 0, 0, now
	}
}

// Rate returns messages and bytes per second. A measurement that began less than a second ago is
// treated as one second long. Soon after the beginning the sums do not cover a whole window yet;
// the divisor corrects the rate for that.
func (f *Flow) Rate(now time.Time) (messages, bytes float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decay(now)
	elapsed := max(now.Sub(f.start).Seconds(), 1)
	window := drainWindow.Seconds() * (1 - math.Exp(-elapsed/drainWindow.Seconds()))
	return f.messages / window, f.bytes / window
}
