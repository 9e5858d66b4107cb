package pending

import (
	"math"
	"sync"
	"time"
)

// farAhead is after every time at which something is due.
var farAhead = time.Unix(0, math.MaxInt64)

// A lowerBound is a time before which nothing is due. A search for due messages begins there, so it
// does not scan the deletion markers of earlier messages. With the zero value it begins at the
// first message.
type lowerBound struct {
	mu sync.Mutex
	at time.Time // guarded by mu
}

// note lowers the bound to t. The caller notes a write once the write can be read. A search that
// begins at the bound then sees the write, or finds it noted afterwards.
func (l *lowerBound) note(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.Before(l.at) {
		l.at = t
	}
}

// take returns the bound for a search, and resets it to farAhead. After the search the caller notes
// the first due time that is left or, if the search failed, the returned bound.
func (l *lowerBound) take() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.at
	l.at = farAhead
	return at
}
