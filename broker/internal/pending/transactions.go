package pending

import (
	"context"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// Transactions asks the producers of half messages about unresolved transactions.
type Transactions struct {
	Config

	// Task is held while more than one half message is claimed. Otherwise two such claimants could
	// wait for each other.
	Task *maintain.Task

	batch        []*check // of the last step, until the producers were asked
	needsGivenUp bool     // the last step lacked the topic of GivenUp

	mu      sync.Mutex
	claimed map[store.HalfID]chan struct{} // guarded by mu: half messages being ended or checked, until the channel is closed

	from lowerBound

	number uint64 // changed only within the message log's Add
}

// A Check asks a producer about a transaction.
type Check struct {
	Message       *tidegate.Message // with its topic; the receiver may change it
	TransactionID string
	Number        int // of this check, from 1

	BornAt, StoredAt time.Time
	BornHost         string
}

// NewTransactions returns Transactions with its task.
func NewTransactions(c Config) *Transactions {
	x := &Transactions{
		Config: c, claimed: map[store.HalfID]chan struct{}{},
		number: uint64(time.Now().UnixNano()),
	}
	x.Task = c.Loop.Add(maintain.TaskConfig{
		Step: x.checkDue, Follow: x.askAll, Failed: "transactions of half messages not checked", Pause: time.Second, MaxPause: time.Second,
	})
	return x
}

// Recover counts the half messages, schedules the first check, and returns when the newest half
// message was stored; zero if there is none. It changes two kinds of checks, on disk. An overdue
// check is postponed by another Timeout, because producers have to reconnect first. A check that is
// further ahead than the duration for which it was set, because the wall clock was set back, comes
// after that duration. Nothing else runs yet.
func (x *Transactions) Recover(topic func(id uint32) Topic, now time.Time) (newest time.Time, err error) {
	var first time.Time
	type change struct {
		id            store.HalfID
		before, after store.HalfState
	}
	var changes []change
	if err := x.Store.HalfMessages(func(id store.HalfID, st store.HalfState) error {
		t := topic(id.Topic)
		if t == nil {
			return nil
		}
		t.Counters().Half.Add(1)
		x.number = max(x.number, id.Number)
		if st.Stored.After(newest) {
			newest = st.Stored
		}
		before := st
		if wait := st.Due.Sub(now); wait <= 0 {
			st.Span = t.Schedule().Timeout
			st.Due = now.Add(st.Span)
			changes = append(changes, change{id, before, st})
		} else {
			if st.Span == 0 { // a record of an earlier version
				st.Span = st.Due.Sub(st.Stored)
			}
			if wait > st.Span {
				st.Due = now.Add(st.Span)
				changes = append(changes, change{id, before, st})
			}
		}
		if first.IsZero() || st.Due.Before(first) {
			first = st.Due
		}
		return nil
	}); err != nil {
		return newest, err
	}
	if len(changes) > 0 {
		if err := x.Store.Messages.Add(func(w *store.Batch) {
			for _, c := range changes {
				w.ChangeHalf(c.id, c.before, c.after)
			}
		}, nil).Wait(); err != nil {
			return newest, err
		}
	}
	x.Task.Wake(first)
	return newest, nil
}

// Put writes a half message. firstCheck is that of Schedule.First. Only called within the message
// log's Add; Wake with due follows when the write is on disk.
func (x *Transactions) Put(w *store.Batch, t Topic, m *store.Message, firstCheck time.Duration, now time.Time) (id store.HalfID, due time.Time) {
	x.number++
	id = store.HalfID{Topic: t.ID(), Number: x.number}
	state := t.Schedule().First(firstCheck, now)
	m.StoredAt = now
	w.PutHalf(id, m, state)
	t.Counters().Half.Add(1)
	t.Remember(m, HalfLocation(id), now)
	return id, state.Due
}

// Last returns the number of the last message of Put. Only called within the message log's Add.
func (x *Transactions) Last() uint64 { return x.number }

// Wake schedules the check of half messages that are due at that time of the wall clock, or later.
func (x *Transactions) Wake(due time.Time) {
	x.from.note(due)
	x.Task.Wake(due.Round(0))
}

// Claim makes the caller the only one that may end or check a half message until release is called,
// which does not wait. ctx ends the wait for another claim.
func (x *Transactions) Claim(ctx context.Context, id store.HalfID) (release func(), err error) {
	for {
		busy, release := x.tryClaim(id)
		if busy == nil {
			return release, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tryClaim claims a half message. If another caller has claimed it, tryClaim returns a channel that
// is closed at the end of that claim.
func (x *Transactions) tryClaim(id store.HalfID) (busy <-chan struct{}, release func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if busy := x.claimed[id]; busy != nil {
		return busy, nil
	}
	done := make(chan struct{})
	x.claimed[id] = done
	return nil, func() {
		x.mu.Lock()
		delete(x.claimed, id)
		x.mu.Unlock()
		close(done)
	}
}

// Claimed returns how many half messages are claimed.
func (x *Transactions) Claimed() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.claimed)
}

// claims release several claims.
type claims []func()

func (c claims) release() {
	for _, release := range c {
		release()
	}
}
