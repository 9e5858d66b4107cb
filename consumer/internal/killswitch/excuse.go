package killswitch

import "time"

// MaxExcuses is the number of failures of one message that a consumer excuses.
const MaxExcuses = 5

// Choice is the number of messages that a probe chooses from if messages were excused.
const Choice = 32

// excused is the number of messages after which the oldest excuses are forgotten, at the earliest.
const excused = 4096

// A Key identifies a message.
type Key struct{ Topic, ID string }

// Excuses count the excused failures of messages. The zero value is empty.
//
// They are bounded: an excuse is forgotten once some thousand other messages were excused after it,
// because another consumer of the group may have handled the message in the meantime.
type Excuses struct{ current, before map[Key]int }

// Count returns the number of excuses of a message.
func (e *Excuses) Count(k Key) int { return max(e.current[k], e.before[k]) }

// Len returns the number of excused messages.
func (e *Excuses) Len() int { return len(e.current) + len(e.before) }

// Excuse excuses a failure of a message unless the message has no excuse left. It returns the delay
// of the next delivery, which doubles with each further excuse of the message.
func (e *Excuses) Excuse(k Key, probe time.Duration) (delay time.Duration, ok bool) {
	n := e.Count(k)
	if n >= MaxExcuses {
		return 0, false
	}
	delete(e.before, k)
	if len(e.current) >= excused {
		e.current, e.before = nil, e.current
	}
	if e.current == nil {
		e.current = map[Key]int{}
	}
	e.current[k] = n + 1
	return max(probe<<(n+2), e.Delay(probe)), true
}

// Delay returns the time after which an excused message may be received again. It is so long that
// the probes of that time, which receive up to [Choice] messages each, also receive messages
// without an excuse.
func (e *Excuses) Delay(probe time.Duration) time.Duration {
	return probe * time.Duration(max(4, e.Len()/(Choice/2)))
}

// Forget removes the excuses of a message that has ended.
func (e *Excuses) Forget(k Key) {
	delete(e.current, k)
	delete(e.before, k)
}
