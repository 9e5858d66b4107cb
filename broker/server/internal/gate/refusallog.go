package gate

import (
	"sync"
	"time"

	"github.com/tidegate/tidegate/broker/internal/access"
)

const (
	// refusalLines is how many refusals for one reason are logged in a
	// refusalWindow; all are counted in the metrics.
	refusalLines  = 5
	refusalWindow = 10 * time.Second
)

// A refusalLog keeps those who are refused from filling the log. Each reason
// has its own share, so that noise of one kind does not hide another.
type refusalLog struct {
	mu      sync.Mutex
	windows map[access.Reason]refusalCount // guarded by mu
}

// A refusalCount is what was logged, and left out, since begin.
type refusalCount struct {
	begin        time.Time
	lines, other int
}

// next returns what follows a refusal at now, whether it is logged, and if so
// how many were left out since the last that was.
func (c refusalCount) next(now time.Time) (after refusalCount, unlogged int, log bool) {
	if now.Sub(c.begin) >= refusalWindow {
		c.begin, c.lines = now, 0
	}
	if c.lines >= refusalLines {
		c.other++
		return c, 0, false
	}
	unlogged = c.other
	c.lines, c.other = c.lines+1, 0
	return c, unlogged, true
}

func (l *refusalLog) take(reason access.Reason, now time.Time) (unlogged int, log bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.windows == nil {
		l.windows = map[access.Reason]refusalCount{}
	}
	c, unlogged, log := l.windows[reason].next(now)
	l.windows[reason] = c
	return unlogged, log
}
