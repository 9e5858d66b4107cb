package pending

import (
	"math"
	"sync"
	"time"
)

// farAhead is after every time at which something is due.
var farAhead = time.Unix(0, math.MaxInt64)

// A lowerBound is a time before which nothing is due. A look for due messages begins there, so it
// does not pass the traces of all that was removed before. The zero value knows nothing.
type lowerBound struct {
	mu sync.Mutex
	at time.Time // guarded by mu
}

// note notes that something can be due from that time on. A write is noted once it can be read: a
// look that begins at the bound sees the write, or finds it noted afterwards.
func (l *lowerBound) note(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.Before(l.at) {
		l.at = t
	}
}

// take returns the bound for a look at everything that is due from there on. The caller notes what
// is left; if the look failed, the returned bound.
func (l *lowerBound) take() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.at
	l.at = farAhead
	return at
}
