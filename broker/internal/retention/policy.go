package retention

import (
	"math"
	"time"
)

// Forever is the maximal age of messages that are never too old.
const Forever = time.Duration(math.MaxInt64)

const (
	// ReadyGrace is how long a message that was delivered, and is ready again, is kept for a
	// consumer although it is too old.
	ReadyGrace = time.Hour

	// Pause is the least time between two looks at a topic for messages that are consumed, or too
	// many.
	Pause = time.Second

	// MaxAgePause is the most that passes between two looks at a topic for messages that are too
	// old; for short maximal ages it is less.
	MaxAgePause = time.Minute

	// StepOver is how many messages of a queue may be done behind one that is not before that one
	// becomes a leftover.
	StepOver = 1024
)

// A Policy says which messages of a topic are removed.
type Policy struct {
	MaxAge   time.Duration // Forever for no limit
	MaxBytes int64         // of all bodies; 0 for no limit
	Consumed bool          // what all groups have consumed is removed

	// Window is how long messages are kept to recognize duplicates; 0 for not at all.
	// WindowMessages bounds how many of a queue are.
	Window         time.Duration
	WindowMessages int64
}

// AgePause returns the least time between two looks for messages that are too old.
func (p Policy) AgePause() time.Duration {
	return min(max(p.MaxAge/64, time.Millisecond), MaxAgePause)
}

// Grace returns how long a message that is ready again is kept although it is too old.
func (p Policy) Grace() time.Duration { return min(ReadyGrace, p.MaxAge) }

// Expires returns when a message that was stored at a time is too old; false for never.
func (p Policy) Expires(stored time.Time) (time.Time, bool) {
	return stored.Add(p.MaxAge), p.MaxAge != Forever
}

// ConsumedBefore returns the offset before which a queue is consumed. undone is the first offset
// that a group is not done with, next the first one that a group has not received, both of all
// groups.
func ConsumedBefore(begin, undone, next int64) int64 {
	undone = min(undone, next)
	if next-undone >= StepOver {
		undone = next
	}
	return max(undone, begin)
}
