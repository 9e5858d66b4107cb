// Package tally bounds the log lines about events that can come in any number, such as dead
// letters.
package tally

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// Interval is the time between two lines about one class of events.
	Interval = time.Minute

	// maxClasses bounds the classes of one text that have lines of their own.
	maxClasses = 50
)

// noRequest is the context of all lines: a line can be about the events of many requests.
var noRequest = context.Background() // no request's

// A Log logs the first event of a class at once. At the end of each interval it logs one line with
// the number of the further ones and the last of them. The class is the text and some attributes,
// for example a group and a topic. Beyond 50 classes of a text at a time, the other events of this
// text are one class without attributes. Goroutines may share a Log.
//
// The timer of a Log is set while it has a class, and each run of it logs at most one line a class
// and forgets the classes without further events. So a Log without events has no timer.
type Log struct {
	logger *slog.Logger

	mu      sync.Mutex
	classes map[string]*class // guarded by mu: with an event in this interval or the one before
	ofText  map[string]int    // guarded by mu: how many classes a text has
	timer   *time.Timer       // guarded by mu: nil if there is no class
	closed  bool              // guarded by mu
	ticking sync.WaitGroup    // the timer, and its function
}

type class struct {
	level   slog.Level
	text    string
	attrs   []slog.Attr
	further int         // events since the last line
	last    []slog.Attr // of the last of these
}

// New returns a Log that writes to logger. The caller must call Close.
func New(logger *slog.Logger) *Log {
	return &Log{logger: logger, classes: map[string]*class{}, ofText: map[string]int{}}
}

// Note logs or counts an event. of are the attributes of its class, and detail are further ones.
func (l *Log) Note(level slog.Level, text string, of, detail []slog.Attr) {
	if l.logger.Enabled(noRequest, level) && l.isFirst(level, text, of, detail) {
		l.logger.LogAttrs(noRequest, level, text, slices.Concat(of, detail)...)
	}
}

// isFirst reports whether an event is logged at once. It counts the others.
func (l *Log) isFirst(level slog.Level, text string, of, detail []slog.Attr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return true
	}
	key := keyOf(text, of)
	c := l.classes[key]
	if c == nil && l.ofText[text] >= maxClasses {
		key, of = text, nil
		c = l.classes[key]
	}
	if c != nil {
		c.further, c.last = c.further+1, detail
		return false
	}
	l.classes[key] = &class{level: level, text: text, attrs: of}
	l.ofText[text]++
	if l.timer == nil {
		l.armLocked()
	}
	return true
}

func keyOf(text string, of []slog.Attr) string {
	var b strings.Builder
	b.WriteString(text)
	for _, a := range of {
		b.WriteString("\x00" + a.Key + "\x00" + a.Value.String())
	}
	return b.String()
}

func (l *Log) armLocked() {
	l.ticking.Add(1)
	l.timer = time.AfterFunc(Interval, func() {
		defer l.ticking.Done()
		l.flush()
	})
}

// flush logs the counts of an interval. It begins the next interval if there were any.
func (l *Log) flush() {
	l.mu.Lock()
	lines := l.takeLocked()
	l.timer = nil
	if len(l.classes) > 0 && !l.closed {
		l.armLocked()
	}
	l.mu.Unlock()
	l.write(lines)
}

// takeLocked returns the classes with further events, and forgets the others.
func (l *Log) takeLocked() (lines []class) {
	for _, key := range slices.Sorted(maps.Keys(l.classes)) {
		c := l.classes[key]
		if c.further > 0 {
			lines = append(lines, *c)
			c.further, c.last = 0, nil
			continue
		}
		delete(l.classes, key)
		if l.ofText[c.text]--; l.ofText[c.text] == 0 {
			delete(l.ofText, c.text)
		}
	}
	return lines
}

func (l *Log) write(lines []class) {
	for _, c := range lines {
		count := []slog.Attr{slog.Int("further", c.further), slog.Duration("within", Interval)}
		l.logger.LogAttrs(noRequest, c.level, c.text, slices.Concat(c.attrs, count, c.last)...)
	}
}

// Close logs the events that no line has counted yet, and stops the timer. Events that are noted
// afterwards are logged at once.
func (l *Log) Close() {
	l.mu.Lock()
	l.closed = true
	if l.timer != nil && l.timer.Stop() {
		l.ticking.Done()
	}
	l.timer = nil
	lines := l.takeLocked()
	l.mu.Unlock()
	l.ticking.Wait()
	l.write(lines)
}
