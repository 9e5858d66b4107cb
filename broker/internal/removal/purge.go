package removal

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// Purge removes all messages of a topic that were stored before the call, including delayed and
// half messages. It returns their number and bytes once the removal is on disk. The caller prevents
// that the topic is deleted meanwhile. The end of ctx ends the wait; a part of the messages may be
// removed then.
func (r *Remover) Purge(ctx context.Context, t *topic.Topic) (removed topic.Amount, err error) {
	release, err := r.task.Hold(ctx)
	if err != nil {
		return removed, err
	}
	defer release()
	// The IDs are forgotten first, so that the IDs of later messages, which stay, are remembered.
	var last, lastDelayed uint64
	if err := r.Store.Messages.Add(func(w *store.Batch) {
		last, lastDelayed = r.Transactions.Last(), r.Delayed.Last()
		t.IDs().ForgetAll(w)
	}, nil).WaitContext(ctx); err != nil {
		return removed, refusal.StoreUnless(ctx, err)
	}
	var waiting topic.Amount
	// The half messages are removed first, so a message that is committed meanwhile is in a queue.
	if err := r.Transactions.Remove(ctx, t, last, r.counting(store.HalfMessages, &waiting)); err != nil {
		return removed, refusal.StoreUnless(ctx, err)
	}
	if err := r.RemoveDelayed(ctx, t, lastDelayed, &waiting); err != nil {
		return removed, err
	}
	// All earlier writes are on disk, and visible, from then on.
	if err := r.Store.Messages.Barrier().WaitContext(ctx); err != nil {
		return removed, refusal.StoreUnless(ctx, err)
	}
	before := stored(t)
	round, err := r.Begin(t, time.Now(), true)
	if err != nil {
		return removed, refusal.Store(err)
	}
	if err := round.Run(ctx); err != nil {
		t.WakeRetention(time.Now().Add(time.Minute)) // removes the rest
		return removed, refusal.StoreUnless(ctx, err)
	}
	t.Watch()
	after := stored(t)
	removed.Messages = before.Messages - after.Messages + waiting.Messages
	removed.Bytes = before.Bytes - after.Bytes + waiting.Bytes
	for i := range round.Queues {
		removed.Messages -= round.Queues[i].Gaps.Messages
		removed.Bytes -= round.Queues[i].Gaps.Bytes
	}
	t.CountRemoved(retention.Purged, waiting.Messages)
	r.Logger.Info("topic purged", "topic", t.Name(), "messages", removed.Messages, "bytes", removed.Bytes)
	r.ReclaimSoon()
	return removed, nil
}

// stored returns the messages in the queues of a topic, minus all messages that were ever written
// to it. The difference of two results is the number of removed messages, even if messages are sent
// in between.
func stored(t *topic.Topic) topic.Amount {
	left, before := t.Leftovers(), t.Before()
	return topic.Amount{Messages: left.Messages - before.Messages, Bytes: left.Bytes - before.Bytes}
}

// RemoveDelayed removes the delayed messages of a topic up to a number, and adds them to removed.
func (r *Remover) RemoveDelayed(ctx context.Context, t *topic.Topic, last uint64, removed *topic.Amount) error {
	return refusal.StoreUnless(ctx, r.Delayed.Remove(ctx, t, last, r.counting(store.DelayedMessages, removed)))
}

// counting returns a function that counts removed messages of a kind, for removed and for the disk
// space to return.
func (r *Remover) counting(kind store.PendingKind, removed *topic.Amount) func(messages, bytes int64) {
	return func(messages, bytes int64) {
		removed.Messages += messages
		removed.Bytes += bytes
		r.freed.AddPending(kind, bytes)
	}
}
