package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A suspect is a message of an Append whose ID was probably stored before.
type suspect struct {
	index int // in the Append
	at    recent.Location
}

// resolve answers suspects with the receipt of the first message. It returns those that are none:
// another ID had the same hash, the window is over, or the first message is damaged. What was found
// is on disk: it was written before this Append's own batch.
func (a *appending) resolve() []suspect {
	var innocent []suspect
	for _, s := range a.suspects {
		t, m := a.topics[s.index], a.msgs[s.index]
		first, ok, err := a.first(t, s.at)
		switch {
		case err == nil && !ok && s.at.Moves():
			// Its time has come meanwhile, it was recalled, or its transaction has ended: look
			// again. What moved it has told the new place by then, if anything knows it.
			if a.absent == nil {
				a.absent = map[int]recent.Location{}
			}
			a.absent[s.index] = s.at
			innocent = append(innocent, s)
		case err != nil && !store.IsDamage(err):
			a.refuse(s.index, t, fail.Store(err), "")
		case err != nil || !ok || first.ID != m.ID || time.Since(first.StoredAt) >= t.Settings().IDWindow():
			if a.trusted == nil {
				a.trusted = map[int]bool{}
			}
			a.trusted[s.index] = true
			innocent = append(innocent, s)
		case s.at.Half:
			t.CountDuplicate()
			a.results[s.index].Receipt = a.broker.halfReceipt(t, m.ID, pending.HalfAt(t.ID(), s.at))
		case s.at.Due != 0:
			t.CountDuplicate()
			a.results[s.index].Receipt = a.broker.delayedReceipt(t, m.ID, pending.DelayedAt(t.ID(), s.at))
		default:
			t.CountDuplicate()
			a.results[s.index].Receipt = tidegate.Receipt{
				MessageID: m.ID, Topic: t.Name(), Queue: int(s.at.Queue), Offset: s.at.Offset, Endpoint: a.broker.name,
			}
			if m.Half { // it was committed: an end of it is told that there is no such transaction any more
				a.results[s.index].Receipt.TransactionID = m.ID
			}
		}
	}
	return innocent
}

// wasAbsent reports whether a message was looked for at that place already, and was not there.
func (a *appending) wasAbsent(i int, at recent.Location) bool {
	was, ok := a.absent[i]
	return ok && was == at
}

// first returns the message at a location.
func (a *appending) first(t *topic.Topic, at recent.Location) (store.Message, bool, error) {
	switch {
	case at.Half:
		m, _, ok, err := a.broker.store.GetHalf(pending.HalfAt(t.ID(), at))
		return m, ok, err
	case at.Due == 0:
		return a.broker.store.Get(store.Place{Topic: t.ID(), Queue: at.Queue, Offset: at.Offset})
	}
	return a.broker.store.GetDelayed(pending.DelayedAt(t.ID(), at))
}

// appendAll appends, and then once more what was suspected wrongly, and what
// its message group was held back for.
func (a *appending) appendAll(ctx context.Context) error {
	for {
		bytes := a.bytes()
		if limit, err := a.broker.limits.Room(ctx, bytes); err != nil {
			a.refuseAll(err, limit)
			return nil
		}
		write := a.broker.store.Messages.Add(a.write, a.publish)
		a.broker.store.Messages.Release(bytes)
		if write == nil {
			return tidegate.ErrClosed
		}
		if !a.wrote && len(a.suspects) == 0 {
			return nil // all is refused: nothing to wait for, least of all a disk that does not keep up
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

// bytes returns how much there is to write.
func (a *appending) bytes() (n int64) {
	for i, t := range a.topics {
		if t != nil {
			n += int64(len(a.msgs[i].Body))
		}
	}
	return n
}
