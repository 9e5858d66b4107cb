package retention

import (
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Cause is why a message was removed.
type Cause uint8

// The causes.
const (
	TooOld   Cause = iota // Policy.MaxAge
	TooMany               // Policy.MaxBytes
	Consumed              // Policy.Consumed, or a leftover that is done
	Purged

	Causes = 4 // their number
)

// A Queue is the state of retention in one queue between two rounds.
type Queue struct {
	// Removed is how far messages are removed and counted as such. It is before the beginning of
	// the queue during a round, and after one that failed.
	Removed store.Mark

	// Leftovers are the messages before the beginning that a group is not done with, by offset.
	Leftovers map[int64]*Leftover

	cause  Cause     // of what is between Removed and the beginning
	head   int64     // an offset that was the beginning
	headAt time.Time // when the message there was stored; zero if it is not known
}

// Restore returns the state of a queue that begins at a mark, and has messages before it.
func Restore(begin store.Mark, leftovers map[int64]store.Stored) Queue {
	q := Queue{Removed: begin, Leftovers: make(map[int64]*Leftover, len(leftovers))}
	for offset, m := range leftovers {
		q.Leftovers[offset] = &Leftover{Stored: m, known: true}
	}
	return q
}

// A Leftover is a message before the beginning of its queue that a group is not done with.
type Leftover struct {
	store.Stored
	known bool      // whether Stored is
	until time.Time // when to look again; zero if a group reports that it is done
}

// A QueuePlan is what a round does to one queue.
type QueuePlan struct {
	// Set by the caller of New.
	*Queue
	Number  uint16
	Begin   store.Mark // behind Removed if the round before failed
	End     int64      // the offset after the last message on disk, or where Waiting begins
	Waiting bool       // messages from End on wait behind one that is parked or blocked
	Done    int64      // ConsumedBefore, for a policy that removes what is consumed
	HasGaps bool       // messages after Removed were removed from between others

	// To is where the queue begins from now on.
	To store.Mark

	// Gaps is what was removed before from between Removed and To. Set by FindGaps.
	Gaps store.Removed

	floor   int64 // from here on the duplicate window keeps messages
	blocked bool  // by floor: without it, more would be removed now

	// Messages before these are too old, too old or too many, and consumed by all groups.
	old, many, consumed int64

	unfinished Cause // of what the round before did not remove, from Removed to Begin

	kept map[int64]*Leftover // from now on
}

// Keep notes that a group is not done with a message. The next round looks again at until.
func (q *QueuePlan) Keep(offset int64, until time.Time) {
	l := q.kept[offset]
	if l == nil {
		l = &Leftover{}
		if was := q.Leftovers[offset]; was != nil {
			l.Stored, l.known = was.Stored, true
		}
		q.kept[offset] = l
	}
	l.until = latest(l.until, until)
}

// Moves reports whether the round removes more than leftovers.
func (q *QueuePlan) Moves() bool { return q.To != q.Removed }

// Finished returns the offsets of the leftovers that no group needs any more.
func (q *QueuePlan) Finished() (offsets []int64) {
	for o := range q.Leftovers {
		if q.kept[o] == nil {
			offsets = append(offsets, o)
		}
	}
	return offsets
}

// Ranges returns the messages that are removed, without leftovers of earlier rounds.
func (q *QueuePlan) Ranges(topic uint32) []store.Range {
	if !q.Moves() {
		return nil
	}
	return q.in(topic, q.Removed.Offset, q.To.Offset).Without(slices.Sorted(maps.Keys(q.kept)))
}

func (q *QueuePlan) in(topic uint32, from, to int64) store.Range {
	return store.Range{Topic: topic, Queue: q.Number, From: from, To: to}
}

func latest(ts ...time.Time) time.Time { return slices.MaxFunc(ts, time.Time.Compare) }
