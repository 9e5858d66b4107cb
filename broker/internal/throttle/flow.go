package throttle

import (
	"math"
	"sync"
	"time"
)

// A Flow measures how much passes a second, in the last 5 s or so. Goroutines
// may share it. Its zero value is ready for use.
type Flow struct {
	mu              sync.Mutex
	messages, bytes float64   // guarded by mu: decayed sums
	at              time.Time // guarded by mu: of the sums
	start           time.Time // guarded by mu: since when the sums gather
}

// Add notes that so much passes.
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

// Rate returns messages and bytes a second. What passed in less than a second
// is taken for what passes in one. Early on, the sums have not gathered
// for a whole window yet; the divisor corrects that.
func (f *Flow) Rate(now time.Time) (messages, bytes float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decay(now)
	elapsed := max(now.Sub(f.start).Seconds(), 1)
	window := drainWindow.Seconds() * (1 - math.Exp(-elapsed/drainWindow.Seconds()))
	return f.messages / window, f.bytes / window
}
