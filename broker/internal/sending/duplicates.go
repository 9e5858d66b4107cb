package sending

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A suspect is a message of an Append whose ID was probably stored before.
type suspect struct {
	index int // in the Append
	at    recent.Location
}

// resolve sets the receipt of the first message for each suspect that is a duplicate. It returns
// the other suspects: another ID has the same hash, the duplicate window is over, or the first
// message is corrupt. The first messages are on disk, because they were written before the batch of
// this Append.
func (a *appending) resolve() []suspect {
	var innocent []suspect
	clock := a.Clock.At(time.Now())
	for _, s := range a.suspects {
		t, m := a.topics[s.index], &a.messages[s.index]
		first, ok, err := a.first(t, s.at)
		switch {
		case err == nil && !ok && s.at.Moves():
			// The first message was delivered or recalled meanwhile, or its transaction has ended.
			// If it has a new place, the memory of IDs has that place by now.
			if a.absent == nil {
				a.absent = map[int]recent.Location{}
			}
			a.absent[s.index] = s.at
			innocent = append(innocent, s)
		case err != nil && !store.IsDamage(err):
			a.reject(s.index, t, refusal.Store(err), "")
		case err != nil || !ok || first.ID != m.ID || clock.Ages().Sub(first.StoredAt) >= t.Settings().IDWindow():
			if a.trusted == nil {
				a.trusted = map[int]bool{}
			}
			a.trusted[s.index] = true
			innocent = append(innocent, s)
		case s.at.Half:
			t.CountDuplicate()
			a.results[s.index].Receipt = a.halfReceipt(t, m.ID, pending.HalfAt(t.ID(), s.at))
		case s.at.Due != 0:
			t.CountDuplicate()
			a.results[s.index].Receipt = a.delayedReceipt(t, m.ID, pending.DelayedAt(t.ID(), s.at))
		default:
			t.CountDuplicate()
			a.results[s.index].Receipt = tidegate.Receipt{
				MessageID: m.ID, Topic: t.Name(), Queue: int(s.at.Queue), Offset: s.at.Offset, Endpoint: a.Endpoint,
			}
			if m.Half { // it was committed, so a further end gets the error that there is no such transaction
				a.results[s.index].Receipt.TransactionID = m.ID
			}
		}
	}
	return innocent
}

// wasAbsent reports whether an earlier look at that place has found no message.
func (a *appending) wasAbsent(i int, at recent.Location) bool {
	was, ok := a.absent[i]
	return ok && was == at
}

// first returns the message at a location.
func (a *appending) first(t *topic.Topic, at recent.Location) (store.Message, bool, error) {
	switch {
	case at.Half:
		m, _, ok, err := a.Store.GetHalf(pending.HalfAt(t.ID(), at))
		return m, ok, err
	case at.Due == 0:
		return a.Store.Get(store.Place{Topic: t.ID(), Queue: at.Queue, Offset: at.Offset})
	}
	return a.Store.GetDelayed(pending.DelayedAt(t.ID(), at))
}

// appendAll appends the messages. It appends again those that are no duplicates after all, and
// those that waited behind them in their message groups.
func (a *appending) appendAll(ctx context.Context) error {
	for {
		bytes := a.bytes()
		if limit, err := a.Limits.Room(ctx, bytes); err != nil {
			a.rejectAll(err, limit)
			return nil
		}
		write := a.Store.Messages.Add(a.write, a.publish)
		a.Store.Messages.Release(bytes)
		if write == nil {
			return tidegate.ErrClosed
		}
		if !a.wrote && len(a.suspects) == 0 {
			return nil // all messages are rejected, so there is no write to wait for
		}
		if err := write.WaitContext(ctx); err != nil {
			return err
		}
		innocent := a.resolve()
		if len(innocent)+len(a.order.held) == 0 {
			return nil
		}
		again := make([]*topic.Topic, len(a.topics))
		for _, s := range innocent {
			again[s.index] = a.topics[s.index]
		}
		for _, i := range a.order.held {
			again[i] = a.topics[i]
		}
		a.topics, a.suspects, a.wrote = again, nil, false
	}
}

// bytes returns the size of the bodies to write.
func (a *appending) bytes() (n int64) {
	for i, t := range a.topics {
		if t != nil {
			n += int64(len(a.messages[i].Body))
		}
	}
	return n
}
