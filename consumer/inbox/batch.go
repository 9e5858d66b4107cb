package inbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// BatchHandler returns a handler for [consumer.NewBatch] that records the messages of a batch and
// calls next for them in one transaction. next gets neither the messages that are recorded already
// nor a second delivery of one message in the batch. If no message is left, next is not called. It
// must neither commit nor roll back tx.
//
// The transaction is committed if next returns nil, or a [consumer.BatchResult] of nils. Otherwise
// it is rolled back: the error is the verdict for all messages that next got. If the error is a
// BatchResult, each of its errors is the verdict for its message; the messages without an error
// have lost their effects too, so they are delivered again, as by [consumer.Snooze](0). Recorded
// messages are acknowledged in any case. A message that the inbox cannot record, see [SQL.Handler],
// fails alone: next gets the others.
//
// A panic of next rolls the transaction back and is passed on. A BatchResult of another length than
// the batch of next is a failure of all its messages. Within next, ctx is the one of the batch:
// [consumer.BatchContext] counts the messages of the batch before the duplicates were removed.
func (s *SQL) BatchHandler(next func(ctx context.Context, tx *sql.Tx, ds []*tidegate.Delivery) error) consumer.BatchHandler {
	return func(ctx context.Context, ds []*tidegate.Delivery) error {
		var b batch
		err := s.transact(ctx, func(tx *sql.Tx) (err error) {
			if b, err = s.recordAll(ctx, tx, ds); err != nil || len(b.fresh) == 0 {
				return err
			}
			err = next(ctx, tx, b.fresh)
			if r, ok := errors.AsType[consumer.BatchResult](err); ok && len(r) == len(b.fresh) && len(r.Unwrap()) == 0 {
				return nil
			}
			return err
		})
		if err == nil && len(b.refused) == 0 {
			return nil
		}
		return b.verdicts(err)
	}
}

// A batch maps deliveries to those that the handler gets.
type batch struct {
	fresh   []*tidegate.Delivery
	of      []int         // for each delivery of the consumer's batch the index in fresh; -1 if it is not there
	refused map[key]error // of messages that cannot be recorded
	keys    []key         // of the deliveries
}

// recordAll records the messages in the order of their keys, so that two transactions with the same
// messages do not wait for each other.
func (s *SQL) recordAll(ctx context.Context, tx *sql.Tx, ds []*tidegate.Delivery) (batch, error) {
	order := make([]int, len(ds))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := keyOf(ds[i]), keyOf(ds[j])
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.topic, b.topic), cmp.Compare(a.id, b.id))
	})
	b := batch{of: make([]int, len(ds)), keys: make([]key, len(ds)), refused: map[key]error{}}
	first := map[key]int{} // the delivery that the handler gets
	for _, i := range order {
		k := keyOf(ds[i])
		if _, twice := first[k]; twice {
			continue
		}
		fresh, refused, err := s.record(ctx, tx, k)
		if err != nil {
			return batch{}, err
		}
		if refused != nil {
			b.refused[k] = refused
		}
		if first[k] = -1; fresh {
			first[k] = i
		}
	}
	place := map[key]int{}
	for i, d := range ds {
		k := keyOf(d)
		b.keys[i] = k
		if first[k] == i {
			place[k] = len(b.fresh)
			b.fresh = append(b.fresh, d)
		}
	}
	for i, d := range ds {
		if b.of[i] = -1; first[keyOf(d)] >= 0 {
			b.of[i] = place[keyOf(d)]
		}
	}
	return b, nil
}

// verdicts returns the verdicts for the consumer's batch. err is the error with which its
// transaction was rolled back, nil if it was committed.
func (b *batch) verdicts(err error) error {
	if b.of == nil {
		return err
	}
	each, ok := errors.AsType[consumer.BatchResult](err)
	ok = ok && len(each) == len(b.fresh)
	r := make(consumer.BatchResult, len(b.of))
	for i, n := range b.of {
		switch {
		case n < 0:
			r[i] = b.refused[b.keys[i]] // or nil: consumed before
		case err == nil:
		case !ok:
			r[i] = err
		case each[n] == nil:
			r[i] = consumer.Snooze(0)
		default:
			r[i] = each[n]
		}
	}
	return r
}
