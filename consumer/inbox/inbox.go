// Package inbox removes duplicates: it calls the handler only for messages that the consumer group
// has not consumed yet.
//
// Consumers deliver at least once. A message is delivered again if its acknowledgement was lost, if
// its invisible time ended, or if a producer sent it twice with one ID. An inbox records the topics
// and IDs of consumed messages for each consumer group. For a recorded message it returns nil
// without calling the handler, so the consumer acknowledges the message.
//
//   - [SQL] records a message in the same database transaction as the handler's own writes. Either
//     both are committed or neither is, also after a crash.
//   - [Memory] keeps the records in this process and loses them when the process ends. It suits
//     handlers that tolerate a duplicate, for example one that refreshes a cache.
package inbox

import (
	"cmp"
	"container/list"
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"

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

// defaultCapacity is the default number of records of a Memory.
const defaultCapacity = 100_000

// A Memory is an inbox in memory. It keeps a bounded number of records, of all groups together, and
// drops the oldest ones first. Several goroutines may share it. All consumers of a group in a
// process should use the same Memory. Create it with [NewMemory].
type Memory struct {
	capacity int

	mu      sync.Mutex // guards the fields below; never held while waiting
	running map[key]chan struct{}
	done    map[key]*list.Element
	order   list.List // of keys, consumed first at the front
}

// A key names a message for one consumer group.
type key struct{ group, topic, id string }

func (k key) fields() [3]string { return [...]string{k.group, k.topic, k.id} }

func keyOf(d *tidegate.Delivery) key { return key{d.ConsumerGroup, d.Topic, d.ID} }

// NewMemory returns an inbox that keeps up to capacity records of consumed messages. Zero or less
// means 100 000.
func NewMemory(capacity int) *Memory {
	if capacity <= 0 {
		capacity = defaultCapacity
	}
	return &Memory{capacity: capacity, running: map[key]chan struct{}{}, done: map[key]*list.Element{}}
}

// Handler returns a handler that calls next unless the message is recorded as consumed. The message
// is recorded when next returns nil; after an error or a panic it is not.
//
// While another goroutine handles the same message, the handler waits until that call has returned.
// It then calls next only if that call failed. If ctx ends first, the handler returns its cause.
func (m *Memory) Handler(next consumer.Handler) consumer.Handler {
	return func(ctx context.Context, d *tidegate.Delivery) error {
		k := keyOf(d)
		for {
			consumed, other := m.claim(k)
			if consumed {
				return nil
			}
			if other == nil {
				break
			}
			select {
			case <-other:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		consumed := false
		defer func() { m.finish(k, consumed) }()
		err := next(ctx, d)
		consumed = err == nil
		return err
	}
}

// claim reports whether the message was consumed. Otherwise it returns a channel
// that is closed when the goroutine at work on it has ended, or nil if the
// caller is the one to work on it.
func (m *Memory) claim(k key) (consumed bool, other <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done[k] != nil {
		return true, nil
	}
	if other := m.running[k]; other != nil {
		return false, other
	}
	m.running[k] = make(chan struct{})
	return false, nil
}

// finish ends a claim.
func (m *Memory) finish(k key, consumed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.running[k])
	delete(m.running, k)
	if !consumed {
		return
	}
	m.done[k] = m.order.PushBack(k)
	if m.order.Len() > m.capacity {
		delete(m.done, m.order.Remove(m.order.Front()).(key))
	}
}
