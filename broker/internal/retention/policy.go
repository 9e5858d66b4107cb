package retention

import (
	"math"
	"time"
)

// Forever is the maximum age of messages that are never too old.
const Forever = time.Duration(math.MaxInt64)

const (
	// ReadyGrace is how long a message that is too old is kept for redelivery. It applies to a
	// message that was delivered and is ready again.
	ReadyGrace = time.Hour

	// Pause is the least time between two rounds in a topic that search for consumed messages or
	// for too many messages.
	Pause = time.Second

	// MaxAgePause is the upper bound of AgePause.
	MaxAgePause = time.Minute

	// StepOver bounds the part of a queue from the first unfinished message of a group to the first
	// message that a group has not received. When the part has this many messages, the unfinished
	// messages in it become leftovers.
	StepOver = 1024
)

// A Policy selects the messages of a topic that are removed.
type Policy struct {
	MaxAge   time.Duration // Forever means no limit
	MaxBytes int64         // of all bodies; 0 means no limit
	Consumed bool          // messages that all groups have consumed are removed

	// Window is how long messages are kept to recognize duplicates. Zero means that they are not
	// kept for it. WindowMessages bounds the number of messages of a queue that are kept for it.
	Window         time.Duration
	WindowMessages int64
}

// AgePause returns the least time between two rounds that search for messages that are too old: a
// 64th of MaxAge, at least 1 ms and at most MaxAgePause.
func (p Policy) AgePause() time.Duration {
	return min(max(p.MaxAge/64, time.Millisecond), MaxAgePause)
}

// Grace returns how long a message that is too old, and is ready again, is kept: ReadyGrace, but at
// most MaxAge.
func (p Policy) Grace() time.Duration { return min(ReadyGrace, p.MaxAge) }

// Expires returns when a message becomes too old that was stored at stored; false means never.
func (p Policy) Expires(stored time.Time) (time.Time, bool) {
	return stored.Add(p.MaxAge), p.MaxAge != Forever
}

// ConsumedBefore returns the offset before which all groups have consumed a queue, apart from
// leftovers. begin is the beginning of the queue. undone is the first offset that any group has not
// finished. next is the first offset that any group has not received. See [StepOver].
func ConsumedBefore(begin, undone, next int64) int64 {
	undone = min(undone, next)
	if next-undone >= StepOver {
		undone = next
	}
	return max(undone, begin)
}
