package pending

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Topic is the topic of pending messages. The methods except ID, Name, Deleted and Schedule are
// only called within the message log's Add.
type Topic interface {
	ID() uint32
	Name() string
	Deleted() bool
	Counters() *Counters
	Schedule() Schedule // of transaction checks, as it is now

	// Deliver writes a message as the next one of a queue. The returned function makes the message
	// visible once the message is on disk.
	Deliver(w *store.Batch, m *store.Message, now time.Time) (publish func(error))

	// Remember notes where a message is, for the duplicate check. It sets the hash of its ID.
	Remember(m *store.Message, at Location, now time.Time)

	// HashID sets the hash of a message's ID.
	HashID(m *store.Message)

	// Forget ends Remember.
	Forget(idHash uint64)
}

// A Config holds the parts of the broker that Delayed and Transactions use.
type Config struct {
	Store  *store.Store
	Loop   *maintain.Loop
	Logger *slog.Logger
	Host

	Damaged *atomic.Int64    // counts messages that cannot be read
	Late    *store.Histogram // times from the delivery time of a delayed message to its queue, in seconds
}

// A Host is the broker as this package sees it.
type Host interface {
	// Topics returns a function that finds the topic of a number, nil if there is none.
	Topics() func(id uint32) Topic

	// ShortOfDisk reports whether the disk has no space for messages.
	ShortOfDisk() bool

	// Room waits until the message log has room for that number of bytes, and reserves them.
	Room(ctx context.Context, bytes int64) error

	// GivenUp returns the topic for the messages of transactions that are given up, and nil if the
	// topic does not exist. CreateGivenUp creates it.
	GivenUp() Topic
	CreateGivenUp() error

	// Ask passes a check on to a producer of the topic. It returns false if there is none.
	Ask(c Check) bool
}

// Counters count the pending messages and the transactions of one topic. Delayed and Half change
// only within the message log's Add.
type Counters struct {
	delayedMessages, delayedBytes atomic.Int64

	Half atomic.Int64 // half messages

	Committed, RolledBack, GivenUp atomic.Int64 // transactions
	Checks, Unheard                atomic.Int64 // checks that reached a producer, and those that reached none
}

// Delayed returns how many messages wait for their delivery time, and their bytes.
func (c *Counters) Delayed() (messages, bytes int64) {
	return c.delayedMessages.Load(), c.delayedBytes.Load()
}

// Restore sets the counters of delayed messages.
func (c *Counters) Restore(delayed store.Waiting) {
	c.delayedMessages.Store(delayed.Messages)
	c.delayedBytes.Store(delayed.Bytes)
}

// addDelayed adds to the counters of delayed messages of a topic, and writes their record. Only
// called within the message log's Add.
func addDelayed(w *store.Batch, t Topic, messages, bytes int64) {
	c := t.Counters()
	n := store.Waiting{Messages: max(0, c.delayedMessages.Load()+messages), Bytes: max(0, c.delayedBytes.Load()+bytes)}
	if n.Messages == 0 {
		n.Bytes = 0 // the size of a corrupt message is not known
	}
	c.Restore(n)
	if !t.Deleted() {
		w.PutWaiting(t.ID(), n)
	}
}

// DelayedLocation returns where a delayed message is, for the duplicate check.
func DelayedLocation(d store.Delayed) Location {
	return Location{Due: d.Due.UnixNano(), Offset: int64(d.Number)}
}

// DelayedAt is the inverse of DelayedLocation.
func DelayedAt(topic uint32, l Location) store.Delayed {
	return store.Delayed{Due: time.Unix(0, l.Due), Topic: topic, Number: uint64(l.Offset)}
}

// HalfLocation returns where a half message is, for the duplicate check.
func HalfLocation(id store.HalfID) Location {
	return Location{Half: true, Offset: int64(id.Number)}
}

// HalfAt is the inverse of HalfLocation.
func HalfAt(topic uint32, l Location) store.HalfID {
	return store.HalfID{Topic: topic, Number: uint64(l.Offset)}
}

// farAhead is after every time at which something is due.
var farAhead = time.Unix(0, math.MaxInt64)

// A lowerBound is a time before which nothing is due. A search for due messages begins there, so it
// does not scan the deletion markers of earlier messages. With the zero value it begins at the
// first message.
type lowerBound struct {
	mu sync.Mutex
	at time.Time // guarded by mu
}

// note lowers the bound to t. The caller notes a write once the write can be read. A search that
// begins at the bound then sees the write, or finds it noted afterwards.
func (l *lowerBound) note(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.Before(l.at) {
		l.at = t
	}
}

// take returns the bound for a search, and resets it to farAhead. After the search the caller notes
// the first due time that is left or, if the search failed, the returned bound.
func (l *lowerBound) take() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.at
	l.at = farAhead
	return at
}

// A Schedule sets the times of the checks of unresolved transactions.
type Schedule struct {
	Timeout  time.Duration // from the send of the half message to the first check
	Interval time.Duration // between two checks
	Max      int           // of checks; negative for no maximum
}

// First returns the state of a new half message. firstCheck replaces Timeout unless it is 0.
func (s Schedule) First(firstCheck time.Duration, now time.Time) store.HalfState {
	if firstCheck == 0 {
		firstCheck = s.Timeout
	}
	return store.HalfState{Due: now.Add(firstCheck), Span: firstCheck}
}

// Next returns the state of a half message after the check that is due now. giveUp is true if the
// message has had its last check. A check that is a little late does not delay the checks after it.
// Missed checks are not repeated.
func (s Schedule) Next(is store.HalfState, now time.Time) (after store.HalfState, giveUp bool) {
	if s.Max >= 0 && is.Checks >= s.Max {
		return is, true
	}
	after = is
	after.Due, after.Span, after.Checks = is.Due.Add(s.Interval), s.Interval, is.Checks+1
	if !after.Due.After(now) {
		after.Due = now.Add(s.Interval)
	}
	return after, false
}
