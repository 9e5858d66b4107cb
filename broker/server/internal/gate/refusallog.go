package gate

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate/internal/access"
)

const (
	// refusalLines is how many refusals for one reason are logged at once, and refusalPause the
	// time until the next one is; all are counted in the metrics.
	refusalLines = 5
	refusalPause = 2 * time.Second
)

// A refusalLog bounds the log lines about rejected clients. Each reason has its own share, so that
// noise of one kind does not hide another.
type refusalLog struct {
	mu      sync.Mutex
	reasons map[access.Reason]*refusals // guarded by mu
}

// refusals are those for one reason.
type refusals struct {
	lines *rate.Limiter
	other int // that were not logged since the last one that was
}

// take reports whether a rejection at now is logged, and if so how many were not logged since the
// last one.
func (l *refusalLog) take(reason access.Reason, now time.Time) (unlogged int, log bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reasons == nil {
		l.reasons = map[access.Reason]*refusals{}
	}
	r := l.reasons[reason]
	if r == nil {
		r = &refusals{lines: rate.NewLimiter(rate.Every(refusalPause), refusalLines)}
		l.reasons[reason] = r
	}
	if !r.lines.AllowN(now, 1) {
		r.other++
		return 0, false
	}
	unlogged, r.other = r.other, 0
	return unlogged, true
}
