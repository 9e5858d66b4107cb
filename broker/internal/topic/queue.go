package topic

import (
	"sync/atomic"

	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Queue is one sequence of messages.
type Queue struct {
	number uint16
	low    atomic.Pointer[store.Mark]

	// Retention has the leftovers before the beginning of the queue. It is used by the holder
	// of the task of retention, and before the topic is in use.
	Retention retention.Queue

	// Messages that were removed from the middle, from low on. Changed only within the message
	// log's Add.
	removedMessages, removedBytes atomic.Int64

	nextOffset, nextBytes int64 // of the next message; changed only within the message log's Add

	end atomic.Int64 // offset after the last message that is on disk
}

func newQueue(number uint16) *Queue {
	q := &Queue{number: number}
	q.low.Store(&store.Mark{})
	return q
}

// Number returns the number of the queue in its topic.
func (q *Queue) Number() uint16 { return q.number }

// Low returns the beginning of the queue. No group has its cursor before it.
func (q *Queue) Low() store.Mark { return *q.low.Load() }

// SetLow moves the beginning of the queue. The caller holds the lock of the
// catalog's Directory, and does not change at afterwards.
func (q *Queue) SetLow(at *store.Mark) { q.low.Store(at) }

// End returns the offset after the last message that is on disk. Groups receive messages before it.
func (q *Queue) End() int64 { return q.end.Load() }

// Publish sets End.
func (q *Queue) Publish(end int64) { q.end.Store(end) }

// Next returns the offset of the next message, and the size of all bodies before it. Only called
// within the message log's Add.
func (q *Queue) Next() store.Mark { return store.Mark{Offset: q.nextOffset, Bytes: q.nextBytes} }

// Gaps returns how many messages were removed from the middle of the queue.
func (q *Queue) Gaps() Amount {
	return Amount{Messages: q.removedMessages.Load(), Bytes: q.removedBytes.Load()}
}

// CloseGaps subtracts gaps that are now before the beginning of the queue. Only called within the
// message log's Add.
func (q *Queue) CloseGaps(gaps store.Removed) {
	q.removedMessages.Add(-gaps.Messages)
	q.removedBytes.Add(-gaps.Bytes)
}

// Removed returns the record of the gaps. Only called within the message log's Add.
func (q *Queue) Removed() store.Removed {
	return store.Removed{Messages: q.removedMessages.Load(), Bytes: q.removedBytes.Load(), End: q.nextOffset, Sum: q.nextBytes}
}
