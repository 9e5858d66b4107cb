package broker

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/store"
)

const (
	// maxDelay is how far ahead a delivery time may be (RocketMQ: 24 h).
	maxDelay = 24 * time.Hour

	// dueBatch and dueBytes bound what is moved to the queues in one write.
	dueBatch = 256
	dueBytes = 8 << 20
)

// because says what makes a message of that type.
func (k TopicType) because(m *tidegate.Message) string {
	switch k {
	case TopicFIFO:
		return fmt.Sprintf("FIFO: it has the message group %q", m.MessageGroup)
	case TopicDelay:
		return "DELAY: it has a delivery time"
	case TopicTransaction:
		return "TRANSACTION: it is a half message"
	}
	return "NORMAL: it has neither message group nor delivery time"
}

// needs says what a message has to be for a topic of the type.
func (k TopicType) needs() string {
	switch k {
	case TopicFIFO:
		return "give it a message group, and no delivery time"
	case TopicDelay:
		return "give it a delivery time, and no message group"
	case TopicTransaction:
		return "send it within a transaction"
	}
	return "give it neither"
}

// delays moves messages to their queues when their delivery time comes. The messages are on disk
// only; the task is due when the first of them is.
type delays struct {
	broker *Broker

	// Held while messages are recalled or purged, so that no message is also moved.
	task *maintain.Task

	from lowerBound

	// number is random at first, so that it is another one after each start,
	// whatever the clock says. Changed only within the message log's Add.
	number uint64
}

func newDelays(b *Broker) *delays {
	d := &delays{broker: b, number: rand.Uint64()}
	d.task = b.maintenance.Add(maintain.TaskConfig{
		Step: d.move, Failed: "delayed messages could not be moved to their queues", Pause: time.Second, MaxPause: time.Minute,
	})
	return d
}

// wake has messages moved that are due at that time or later, by the wall clock. What is written
// is on disk by then.
func (d *delays) wake(due time.Time) {
	d.from.note(due)
	d.task.Wake(due.Round(0))
}

// move moves one batch of the messages whose time has come. While the disk is short of room it
// moves none.
func (d *delays) move(_ context.Context, now time.Time) (next time.Time, err error) {
	b := d.broker
	if b.shortOfDisk() != nil {
		return now.Add(shortLook), nil
	}
	from := d.from.take()
	defer func() {
		if err != nil {
			d.from.note(from)
		} else if !next.IsZero() {
			d.from.note(next)
		}
	}()
	ds, ms, next, err := b.store.Due(from, now, dueBatch, dueBytes)
	if err != nil || len(ds) == 0 {
		return next, err
	}
	topics := b.topicsByID()
	for i := range ds {
		if t := topics[ds[i].Topic]; t != nil && ms[i].ID == "" {
			b.counters.damaged.Add(1)
			b.logger.Error("a delayed message cannot be read from disk any more and is passed over", "topic", t.name, "due", ds[i].Due)
		}
	}
	var published []func(error)
	counts := dueCounts{}
	if err := b.store.Messages.Add(func(w *store.Batch) {
		now := time.Now()
		for i := range ds {
			w.DeleteDelayed(ds[i], ms[i].StoredAt)
			t := topics[ds[i].Topic]
			if t == nil || t.deleted.Load() {
				continue
			}
			counts.add(t, len(ms[i].Body))
			if ms[i].ID == "" {
				continue
			}
			q := t.pick("")
			t.put(w, q, &ms[i], now)
			published = append(published, t.publish(q))
		}
		counts.count(w)
	}, func(err error) {
		for _, f := range published {
			f(err)
		}
	}).Wait(); err != nil {
		return time.Time{}, err
	}
	return next, nil
}

func (b *Broker) topicsByID() map[uint32]*topic {
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := make(map[uint32]*topic, len(b.topics))
	for _, t := range b.topics {
		out[t.id] = t
	}
	return out
}

// put writes a message that is to be delivered later. Only called within the
// message log's Add; arm follows.
func (d *delays) put(w *store.Batch, t *topic, m *store.Message, now time.Time) store.Delayed {
	d.number++
	delayed := store.Delayed{Due: m.DeliverAt, Topic: t.id, Number: d.number}
	m.StoredAt = now
	t.hashID(m)
	w.PutDelayed(delayed, m)
	t.remember(m, delayedLocation(delayed), t.config.Load().duplicateWindow(), now)
	t.delayed(w, 1, int64(len(m.Body)))
	return delayed
}

// delay writes a message of an Append that is to be delivered later. Only
// called within the message log's Add.
func (a *appending) delay(w *store.Batch, t *topic, m *store.Message, now time.Time) tidegate.Receipt {
	d := a.broker.delays.put(w, t, m, now)
	if a.earliest.IsZero() || d.Due.Before(a.earliest) {
		a.earliest = d.Due
	}
	return a.broker.delayedReceipt(t, m.ID, d)
}

func (b *Broker) delayedReceipt(t *topic, id string, d store.Delayed) tidegate.Receipt {
	return tidegate.Receipt{MessageID: id, Topic: t.name, Queue: -1, Offset: -1, Endpoint: b.name, RecallHandle: handle.Recall(d)}
}

// Recall takes back a message whose delivery time has not come, and returns
// its ID when that is on disk: 40401 if it is not waiting any more, 40000 for a
// handle that is not one.
func (b *Broker) Recall(ctx context.Context, topicName, recallHandle string) (id string, err error) {
	id, err = b.recall(ctx, topicName, recallHandle)
	return id, withOp("RecallMessage", err)
}

func (b *Broker) recall(ctx context.Context, topicName, recallHandle string) (string, error) {
	if !b.begin() {
		return "", closedError()
	}
	defer b.end()
	t, err := b.topic(topicName)
	if err != nil {
		return "", err
	}
	d, err := handle.ParseRecall(recallHandle)
	if err != nil || d.Topic != t.id {
		return "", newError(tidegate.CodeBadRequest, "recall handle", "it is not one that this broker gave for topic %q", topicName)
	}
	release, err := b.delays.task.Hold(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	m, ok, err := b.store.GetDelayed(d)
	if err != nil {
		return "", storeError(err)
	}
	if !ok {
		return "", newError(tidegate.CodeMessageNotFound, "recall handle", "the message does not wait any more: its time has come, or it was recalled")
	}
	if err := b.store.Messages.Add(func(w *store.Batch) {
		w.DeleteDelayed(d, m.StoredAt)
		t.delayed(w, -1, -int64(len(m.Body)))
		t.recent.Forget(t.hash(m.ID))
	}, nil).Wait(); err != nil {
		return "", storeError(err)
	}
	return m.ID, nil
}

// delayCounters are a topic's, of what waits for its delivery time. They
// change only within the message log's Add, with the record of them.
type delayCounters struct{ messages, bytes atomic.Int64 }

func (c *delayCounters) waiting() Backlog { return Backlog{c.messages.Load(), c.bytes.Load()} }

// delayed counts messages that begin to wait for their delivery time, or do so
// no longer. Only called within the message log's Add.
func (t *topic) delayed(w *store.Batch, messages, bytes int64) {
	c := &t.delays
	n := store.Waiting{Messages: max(0, c.messages.Load()+messages), Bytes: max(0, c.bytes.Load()+bytes)}
	if n.Messages == 0 {
		n.Bytes = 0 // the size of one that was damaged is not known any more
	}
	c.messages.Store(n.Messages)
	c.bytes.Store(n.Bytes)
	if !t.deleted.Load() {
		w.PutWaiting(t.id, n)
	}
}

// dueCounts count messages that were delayed and are in their queues now.
type dueCounts map[*topic]Backlog

func (m dueCounts) add(t *topic, bytes int) {
	n := m[t]
	m[t] = Backlog{n.Messages + 1, n.Bytes + int64(bytes)}
}

func (m dueCounts) count(w *store.Batch) {
	for _, t := range slices.SortedFunc(maps.Keys(m), func(x, y *topic) int { return int(x.id) - int(y.id) }) {
		t.delayed(w, -m[t].Messages, -m[t].Bytes)
	}
}

// recoverDelayed brings back how many wait.
func (b *Broker) recoverDelayed(topics map[uint32]*topic) error {
	return b.store.Waiting(func(id uint32, n store.Waiting) error {
		if t := topics[id]; t != nil {
			t.delays.messages.Store(n.Messages)
			t.delays.bytes.Store(n.Bytes)
		}
		return nil
	})
}
