package retention

import (
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Cause is the reason for which a message was removed.
type Cause uint8

// The causes.
const (
	TooOld   Cause = iota // Policy.MaxAge
	TooMany               // Policy.MaxBytes
	Consumed              // Policy.Consumed, or a leftover that all groups have finished
	Purged

	Causes = 4 // their number
)

// String returns the name of the cause in metrics.
func (c Cause) String() string { return [Causes]string{"time", "bytes", "consumed", "purge"}[c] }

// A Queue is the state of retention in one queue between two rounds.
type Queue struct {
	// Removed is the mark before which messages are removed and counted as removed. It is before
	// the beginning of the queue during a round, and after a round that failed.
	Removed store.Mark

	// Leftovers are the messages before the beginning that a group has not finished, by offset.
	Leftovers map[int64]*Leftover

	cause  Cause     // of the messages between Removed and the beginning
	head   int64     // the offset for which headAt was read
	headAt time.Time // when the first message from head on was stored; zero if unknown
}

// Restore returns the state of a queue that begins at a mark and has leftovers before it.
func Restore(begin store.Mark, leftovers map[int64]store.Stored) Queue {
	q := Queue{Removed: begin, Leftovers: make(map[int64]*Leftover, len(leftovers))}
	for offset, m := range leftovers {
		q.Leftovers[offset] = &Leftover{Stored: m, known: true}
	}
	return q
}

// A Leftover is a message before the beginning of its queue that a group has not finished.
type Leftover struct {
	store.Stored
	known bool      // Stored is set
	until time.Time // when to check it again; zero if messages never expire
}

// A QueuePlan is the part of a round for one queue.
type QueuePlan struct {
	// Set by the caller of New.
	*Queue
	Number  uint16
	Begin   store.Mark // the beginning; after Removed if the last round failed
	End     int64      // the offset after the last message on disk, or where Waiting begins
	Waiting bool       // messages from End on wait behind one that is parked or blocked
	Done    int64      // result of ConsumedBefore; used if Policy.Consumed is set
	HasGaps bool       // messages after Removed were removed from between others

	// To is the new beginning of the queue.
	To store.Mark

	// Gaps counts the messages between Removed and To that were removed before. FindGaps sets it.
	Gaps store.Removed

	floor   int64 // the duplicate window keeps messages from this offset on
	blocked bool  // without floor, the round would remove more

	// Messages before old are too old, messages before many are too old or too many, and messages
	// before consumed are consumed by all groups.
	old, many, consumed int64

	unfinished Cause // of the messages from Removed to Begin, which the last round did not remove

	retained map[int64]*Leftover // the leftovers from now on
}

// Retain records that a group has not finished a message. If messages expire, a later round checks
// the message again at until, or when it expires if that is later.
func (q *QueuePlan) Retain(offset int64, until time.Time) {
	l := q.retained[offset]
	if l == nil {
		l = &Leftover{}
		if was := q.Leftovers[offset]; was != nil {
			l.Stored, l.known = was.Stored, true
		}
		q.retained[offset] = l
	}
	l.until = latest(l.until, until)
}

// Moves reports whether the round removes messages besides leftovers.
func (q *QueuePlan) Moves() bool { return q.To != q.Removed }

// Finished returns the offsets of the leftovers that no group needs any more.
func (q *QueuePlan) Finished() (offsets []int64) {
	for o := range q.Leftovers {
		if q.retained[o] == nil {
			offsets = append(offsets, o)
		}
	}
	return offsets
}

// Ranges returns the ranges of messages that the round removes, without the leftovers of earlier
// rounds.
func (q *QueuePlan) Ranges(topic uint32) []store.Range {
	if !q.Moves() {
		return nil
	}
	return q.in(topic, q.Removed.Offset, q.To.Offset).Without(slices.Sorted(maps.Keys(q.retained)))
}

func (q *QueuePlan) in(topic uint32, from, to int64) store.Range {
	return store.Range{Topic: topic, Queue: q.Number, From: from, To: to}
}

func latest(ts ...time.Time) time.Time { return slices.MaxFunc(ts, time.Time.Compare) }

// Counts are the results of a round in one queue.
type Counts struct {
	Removed [Causes]int64 // messages, by cause

	// Advanced and AdvancedBytes are how far the beginning has moved, in messages and bytes of
	// bodies. Leftovers and LeftoversBytes are the change of the leftovers; they can be negative.
	Advanced, AdvancedBytes   int64
	Leftovers, LeftoversBytes int64

	// From and To bound the offsets of the removed messages, if there are any. Bytes is the size of
	// their bodies.
	From, To, Bytes int64
}

// Commit records that the round was carried out in a queue, and returns its results.
func (p *Plan) Commit(q *QueuePlan) (c Counts) {
	at := q.Removed.Offset
	upTo := func(to int64, cause Cause) {
		if to > at {
			c.Removed[cause] += to - at
			at = to
		}
	}
	if p.Purge {
		upTo(q.To.Offset, Purged)
	}
	upTo(q.Begin.Offset, q.unfinished)
	upTo(q.consumed, Consumed)
	upTo(q.old, TooOld)
	upTo(q.To.Offset, TooMany)
	for i, left := 0, q.Gaps.Messages; i < len(c.Removed); i++ {
		n := min(left, c.Removed[i])
		c.Removed[i], left = c.Removed[i]-n, left-n
	}
	c.Bytes = q.To.Bytes - q.Removed.Bytes - q.Gaps.Bytes
	for o, l := range q.retained {
		if q.Leftovers[o] == nil {
			c.Removed[p.causeOf(q, o)]--
			c.Bytes -= l.Size
			c.Leftovers++
			c.LeftoversBytes += l.Size
		}
	}
	c.From, c.To = q.Removed.Offset, q.To.Offset
	for _, o := range q.Finished() {
		size := q.Leftovers[o].Size
		c.From = min(c.From, o)
		c.Removed[p.causeOfFinished()]++
		c.Bytes += size
		c.Leftovers--
		c.LeftoversBytes -= size
	}
	c.Advanced, c.AdvancedBytes = q.To.Offset-q.Removed.Offset, q.To.Bytes-q.Removed.Bytes
	q.Leftovers, q.Removed = q.retained, q.To
	return c
}

// causeOf returns the cause for which a message is removed.
func (p *Plan) causeOf(q *QueuePlan, offset int64) Cause {
	switch {
	case p.Purge:
		return Purged
	case offset < q.Begin.Offset:
		return q.unfinished
	case offset < q.consumed:
		return Consumed
	case offset < q.old:
		return TooOld
	}
	return TooMany
}

func (p *Plan) causeOfFinished() Cause {
	if p.Purge {
		return Purged
	}
	return Consumed
}
