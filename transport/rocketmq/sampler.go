package rocketmq

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// maxLines bounds the log lines of one kind in a second. A broken server can cause one with each
// message and each command.
const maxLines = 32

// A sampler logs the lines of one kind, at most maxLines in a second. The next line after that has
// the number of the skipped ones. The zero value is ready.
type sampler struct {
	mu      sync.Mutex
	began   time.Time // of the second
	lines   int       // in it
	skipped int       // since the last line
}

// allow reports whether a line may be logged at now, and how many were skipped since the last one.
func (s *sampler) allow(now time.Time) (skipped int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.began) >= time.Second {
		s.began, s.lines = now, 0
	}
	if s.lines == maxLines {
		s.skipped++
		return 0, false
	}
	s.lines++
	skipped, s.skipped = s.skipped, 0
	return skipped, true
}

// log logs a line, unless there were too many.
func (s *sampler) log(l *slog.Logger, level slog.Level, text string, args ...any) {
	skipped, ok := s.allow(time.Now())
	if !ok {
		return
	}
	if skipped > 0 {
		args = append(args, "skipped_lines", skipped)
	}
	l.Log(context.Background(), level, text, args...) // the line belongs to no request
}
