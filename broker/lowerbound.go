package broker

import (
	"math"
	"sync"
	"time"
)

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
