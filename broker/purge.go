package broker

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// PurgeTopic removes all messages of a topic that were stored before the call: ready ones, those in
// flight, those that wait for a retry or their delivery time, and half messages. It returns their
// number and bytes once the removal is on disk. Groups continue with the next message, and offsets
// are not used again. Receipt handles and transaction IDs of removed messages are no longer valid,
// and the duplicate window forgets their message IDs. Dead letters of the topic's messages stay,
// because they are messages of another topic. The error's code is 40402 if there is no such topic.
// If ctx ends, a part of the messages may be removed.
func (b *Broker) PurgeTopic(ctx context.Context, name string) (Backlog, error) {
	removed, err := b.purgeTopic(ctx, name)
	return removed, fail.WithOp("PurgeTopic", err)
}

func (b *Broker) purgeTopic(ctx context.Context, name string) (removed Backlog, err error) {
	if !b.begin() {
		return removed, fail.Closed()
	}
	defer b.end()
	if err := b.lockAdmin(ctx); err != nil { // a topic that is purged is not deleted meanwhile
		return removed, err
	}
	defer b.unlockAdmin()
	t, err := b.topic(name)
	if err != nil {
		return removed, err
	}
	release, err := b.retention.task.Hold(ctx)
	if err != nil {
		return removed, err
	}
	defer release()
	// First, so that the IDs of what is sent meanwhile, and stays, are remembered.
	var last, lastDelayed uint64
	if err := b.store.Messages.Add(func(w *store.Batch) {
		last, lastDelayed = b.transactions.Last(), b.delayed.Last()
		t.IDs().ForgetAll(w)
	}, nil).WaitContext(ctx); err != nil {
		return removed, storeUnless(ctx, err)
	}
	var waiting Backlog
	// First the half messages: what is committed meanwhile is in a queue then.
	if err := b.removeHalfMessages(ctx, t, last, &waiting); err != nil {
		return removed, err
	}
	if err := b.removeDelayed(ctx, t, lastDelayed, &waiting); err != nil {
		return removed, err
	}
	// What is written before this is on disk, and visible, after it.
	if err := b.store.Messages.Add(func(*store.Batch) {}, nil).WaitContext(ctx); err != nil {
		return removed, storeUnless(ctx, err)
	}
	before := Backlog{Messages: t.Leftovers().Messages - t.Before().Messages, Bytes: t.Leftovers().Bytes - t.Before().Bytes}
	r, err := b.beginRound(t, time.Now(), true)
	if err != nil {
		return removed, fail.Store(err)
	}
	if err := r.run(b); err != nil {
		t.WakeRetention(time.Now().Add(time.Minute)) // what is left of it
		return removed, fail.Store(err)
	}
	t.Watch()
	removed.Messages = before.Messages - t.Leftovers().Messages + t.Before().Messages + waiting.Messages
	removed.Bytes = before.Bytes - t.Leftovers().Bytes + t.Before().Bytes + waiting.Bytes
	for i := range r.Queues {
		removed.Messages -= r.Queues[i].Gaps.Messages
		removed.Bytes -= r.Queues[i].Gaps.Bytes
	}
	t.CountRemoved(retention.Purged, waiting.Messages)
	b.logger.Info("a topic was purged", "topic", name, "messages", removed.Messages, "bytes", removed.Bytes)
	b.retention.reclaimSoon()
	return removed, nil
}

// removeDelayed removes the delayed messages of a topic up to a number, and counts them.
func (b *Broker) removeDelayed(ctx context.Context, t *topic.Topic, last uint64, removed *Backlog) error {
	return storeUnless(ctx, b.delayed.Remove(ctx, t, last, b.freedOf(store.DelayedMessages, removed)))
}

// removeHalfMessages is removeDelayed for half messages.
func (b *Broker) removeHalfMessages(ctx context.Context, t *topic.Topic, last uint64, removed *Backlog) error {
	return storeUnless(ctx, b.transactions.Remove(ctx, t, last, b.freedOf(store.HalfMessages, removed)))
}

// freedOf returns a function that counts removed messages of a kind, and has their disk given back.
func (b *Broker) freedOf(kind store.PendingKind, removed *Backlog) func(messages, bytes int64) {
	return func(messages, bytes int64) {
		removed.Messages += messages
		removed.Bytes += bytes
		b.retention.freed.AddPending(kind, bytes)
	}
}

// storeUnless is an error of the store, unless it is that of ctx; nil for nil.
func storeUnless(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		return err
	}
	return fail.Store(err)
}
