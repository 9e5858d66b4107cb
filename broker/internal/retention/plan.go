// Package retention plans which messages of a topic are removed. It has no lock and no clock, and
// writes nothing: callers pass the state of the queues and the progress of the groups, read the
// stored messages through [Messages], and carry the plan out.
//
// Retention moves the beginning of a queue. Messages before the beginning that a group is not done
// with stay; they are leftovers. Each round of retention makes one [Plan] for a topic:
//
//  1. [New] decides where each queue begins from now on.
//  2. The groups move to the new beginnings. [QueuePlan.Retain] notes the messages that they still
//     need.
//  3. [Plan.Complete] reads these messages, as far as they are not known.
//  4. The caller removes [QueuePlan.Ranges] and [QueuePlan.Finished]; [Plan.Commit] counts.
//  5. [Plan.Next] returns when the next round is due.
//
// A round that fails after step 1 is continued by the next one.
package retention

import (
	"math"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
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

// Messages reads the stored messages of a topic.
type Messages interface {
	// FirstIn, LastIn, FirstThat, Live and Gaps are the methods of [store.Store].
	FirstIn(r store.Range) (m store.Stored, ok bool, err error)
	LastIn(r store.Range) (m store.Stored, ok bool, err error)
	FirstThat(r store.Range, f func(store.Stored) bool) (int64, error)
	Live(r store.Range, enough int64) (bytes, next int64, err error)
	Gaps(r store.Range, bytes int64) (store.Removed, error)

	// BodiesBefore returns the bytes of all bodies of a queue before an offset. It includes
	// removed messages.
	BodiesBefore(queue uint16, offset int64) (int64, error)
}

// A Plan is one round of retention of a topic.
type Plan struct {
	Policy
	Topic  uint32
	Now    time.Time
	Purge  bool // removes all messages before End, regardless of Policy
	Queues []QueuePlan

	// Distrusted means that the wall clock may be wrong. Then no message is removed because of its
	// age, and New counts in Kept the messages that are older than MaxAge at Wall, the time of the
	// wall clock. Now is a time at which no message looks older than it is.
	Distrusted bool
	Wall       time.Time
	Kept       int64

	read Messages
}

// New plans a round: it sets To of all queues. held is the number of bytes of bodies that the topic
// has from the beginnings of its queues on.
func New(p Plan, held int64, read Messages) (*Plan, error) {
	p.read = read
	for i := range p.Queues {
		q := &p.Queues[i]
		begin := q.Begin.Offset
		q.old, q.many, q.consumed, q.floor, q.retained, q.unfinished = begin, begin, begin, q.End, map[int64]*Leftover{}, q.cause
		if p.Purge {
			q.many = q.End
		} else if err := p.planQueue(q); err != nil {
			return nil, err
		}
	}
	if p.MaxBytes > 0 && !p.Purge {
		if err := p.planBytes(held - p.MaxBytes); err != nil {
			return nil, err
		}
	}
	for i := range p.Queues {
		q := &p.Queues[i]
		q.To = q.Begin
		if to := max(q.old, q.many, q.consumed); to > q.Begin.Offset {
			bytes, err := p.bodiesBefore(q, to)
			if err != nil {
				return nil, err
			}
			q.To = store.Mark{Offset: to, Bytes: bytes}
		}
	}
	return &p, nil
}

// planQueue finds the messages of a queue that are too old or consumed.
func (p *Plan) planQueue(q *QueuePlan) error {
	oldest, ok, err := p.oldest(q, q.Begin.Offset, q.End)
	if err != nil {
		return err
	}
	if p.Distrusted {
		if err := p.countKept(q, oldest, ok); err != nil {
			return err
		}
	} else if ok && p.MaxAge != Forever && p.Now.Sub(oldest) >= p.MaxAge {
		if q.old, err = p.firstAfter(q, q.Begin.Offset, q.End, p.Now.Add(-p.MaxAge)); err != nil {
			return err
		}
	}
	if p.Consumed {
		q.consumed = q.Done
	}
	if max(q.old, q.consumed) > q.Begin.Offset || p.MaxBytes > 0 {
		if err := p.limitToFloor(q); err != nil {
			return err
		}
	}
	q.many = q.old
	return nil
}

// countKept counts the messages of a queue that are too old for a wall clock that is not trusted.
// Messages that were removed from between others count too.
func (p *Plan) countKept(q *QueuePlan, oldest time.Time, some bool) error {
	if p.MaxAge == Forever {
		return nil
	}
	for _, l := range q.Leftovers {
		if p.Wall.Sub(l.At) >= p.MaxAge {
			p.Kept++
		}
	}
	if !some || p.Wall.Sub(oldest) < p.MaxAge {
		return nil
	}
	to, err := p.firstAfter(q, q.Begin.Offset, q.End, p.Wall.Add(-p.MaxAge))
	p.Kept += to - q.Begin.Offset
	return err
}

// limitToFloor finds the offset from which the duplicate window keeps messages, and limits the
// removals to the messages before that offset.
func (p *Plan) limitToFloor(q *QueuePlan) error {
	if p.Window > 0 {
		floor, err := p.firstAfter(q, max(q.Begin.Offset, q.End-p.WindowMessages), q.End, p.Now.Add(-p.Window))
		if err != nil {
			return err
		}
		q.floor = floor
	}
	q.blocked = q.consumed > q.floor
	q.old, q.consumed = min(q.old, q.floor), min(q.consumed, q.floor)
	return nil
}

// Begun records that the queues begin at To now.
func (p *Plan) Begun() {
	for i := range p.Queues {
		if q := &p.Queues[i]; q.To != q.Begin {
			q.cause = p.causeOf(q, q.To.Offset-1)
		}
	}
}

// Changes reports whether the round has anything to do besides moving the beginnings.
func (p *Plan) Changes() bool {
	for i := range p.Queues {
		if q := &p.Queues[i]; q.Moves() || len(q.Leftovers) > 0 {
			return true
		}
	}
	return false
}

// Waits reports whether messages of a queue wait behind one that is parked or blocked.
func (p *Plan) Waits() bool {
	for i := range p.Queues {
		if p.Queues[i].Waiting {
			return true
		}
	}
	return false
}

// Expired reports whether a message is to be removed, consumed or not.
func (p *Plan) Expired(q *QueuePlan, offset int64) bool {
	if offset >= q.Begin.Offset {
		return offset < max(q.old, q.many)
	}
	l := q.Leftovers[offset]
	return l != nil && !p.Distrusted && p.Now.Sub(l.At) >= p.MaxAge
}

// AddsLeftovers reports whether the round turns a message into a leftover.
func (p *Plan) AddsLeftovers() bool {
	for i := range p.Queues {
		for o := range p.Queues[i].retained {
			if p.Queues[i].Leftovers[o] == nil {
				return true
			}
		}
	}
	return false
}

// Complete reads the leftovers that are not known yet, and sets when they must be checked again.
func (p *Plan) Complete() error {
	for i := range p.Queues {
		q := &p.Queues[i]
		for o, l := range q.retained {
			m, ok, err := l.Stored, true, error(nil)
			if !l.known {
				m, ok, err = p.read.FirstIn(q.in(p.Topic, o, o+1))
			}
			if err != nil {
				return err
			}
			if !ok { // it was removed from between others
				delete(q.retained, o)
				continue
			}
			l.Stored, l.known = m, true
			if at, ok := p.Expires(m.At); ok {
				l.until = latest(l.until, at)
			} else {
				l.until = time.Time{}
			}
		}
	}
	return nil
}

// FindGaps finds the gaps in the range that this round removes: messages that were removed before,
// from between others. No message may be removed from between others meanwhile.
func (p *Plan) FindGaps() (err error) {
	for i := range p.Queues {
		q := &p.Queues[i]
		if !q.Moves() || !q.HasGaps {
			continue
		}
		if q.Gaps, err = p.read.Gaps(q.in(p.Topic, q.Removed.Offset, q.To.Offset), q.To.Bytes-q.Removed.Bytes); err != nil {
			return err
		}
	}
	return nil
}

// Next returns when the next round is due; false if no round is due at a known time. end returns
// the offset after the last message of a queue that is on disk.
func (p *Plan) Next(end func(queue uint16) int64) (next time.Time, ok bool, err error) {
	due := func(at time.Time) {
		if !ok || at.Before(next) {
			next, ok = at, true
		}
	}
	for i := range p.Queues {
		q := &p.Queues[i]
		until := q.End
		if q.Waiting { // nothing reports when messages from End on can be removed
			until = end(q.Number)
		}
		oldest, some, err := p.oldest(q, q.To.Offset, until)
		if err != nil {
			return next, false, err
		}
		if at, expires := p.Expires(oldest); some && expires {
			due(latest(at, oldest.Add(p.Window), p.Now.Add(p.AgePause())))
		}
		if some && q.blocked {
			due(latest(oldest.Add(p.Window), p.Now.Add(Pause)))
		}
		for _, l := range q.retained {
			if !l.until.IsZero() {
				due(latest(l.until, p.Now.Add(p.AgePause())))
			}
		}
	}
	return next, ok, nil
}

// oldest returns when the first message of a queue between two offsets was stored; false if there
// is no message. from is the beginning of the queue.
func (p *Plan) oldest(q *QueuePlan, from, to int64) (time.Time, bool, error) {
	if from >= to {
		return time.Time{}, false, nil
	}
	if q.headAt.IsZero() || q.head != from {
		m, ok, err := p.read.FirstIn(q.in(p.Topic, from, to))
		if err != nil || !ok {
			return time.Time{}, false, err
		}
		q.head, q.headAt = from, m.At
	}
	return q.headAt, true, nil
}

// firstAfter returns the offset of the first message that was stored after at, among those between
// the two offsets.
func (p *Plan) firstAfter(q *QueuePlan, from, to int64, at time.Time) (int64, error) {
	return p.read.FirstThat(q.in(p.Topic, from, to), func(m store.Stored) bool { return m.At.After(at) })
}

// bodiesBefore returns the bytes of the queue's bodies before an offset that is not before its
// beginning.
func (p *Plan) bodiesBefore(q *QueuePlan, offset int64) (int64, error) {
	if offset == q.Begin.Offset {
		return q.Begin.Bytes, nil
	}
	return p.read.BodiesBefore(q.Number, offset)
}
