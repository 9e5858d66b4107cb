package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// recoverHalves counts the half messages and has the first check made when it is due. A check that
// is overdue is postponed by another Timeout, on disk: producers have to reconnect first.
func (b *Broker) recoverHalves(topics map[uint32]*topic, now time.Time) error {
	var first time.Time
	type late struct {
		id            store.HalfID
		before, after store.HalfState
	}
	var overdue []late
	if err := b.store.Halves(func(id store.HalfID, st store.HalfState) error {
		t := topics[id.Topic]
		if t == nil {
			return nil
		}
		t.halves.waiting.Add(1)
		b.halves.number = max(b.halves.number, id.Number)
		if !st.Due.After(now) {
			before := st
			st.Due = now.Add(time.Duration(b.transactionConfig(t).Timeout))
			overdue = append(overdue, late{id, before, st})
		}
		if first.IsZero() || st.Due.Before(first) {
			first = st.Due
		}
		return nil
	}); err != nil {
		return err
	}
	if len(overdue) > 0 {
		if err := b.store.Messages.Add(func(w *store.Batch) {
			for _, x := range overdue {
				w.ChangeHalf(x.id, x.before, x.after)
			}
		}, nil).Wait(); err != nil {
			return err
		}
	}
	if !first.IsZero() {
		b.halves.task.Wake(first)
	}
	return nil
}
