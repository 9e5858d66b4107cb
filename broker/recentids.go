package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/store"
)

const _ = uint(recent.MaxQueues - MaxQueues) // the memory of IDs has room for every queue

// hash returns the hash by which an ID is remembered, as the index keeps it; it is not 0.
func (t *topic) hash(id string) uint64 { return t.retention.broker.idKey.Hash(id) }

// hashID has a message know the hash of its ID.
func (t *topic) hashID(m *store.Message) {
	if m.IDHash == 0 {
		m.IDHash = t.hash(m.ID)
	}
}

// indexID notes the ID of a message for the index, and writes a
// record of it that is full. Only called within the message log's Add.
func (t *topic) indexID(w *store.Batch, q *queue, offset int64, hash uint64, at int64, window time.Duration) {
	if q.unindexed.Over(offset, at, window) {
		t.writeIndex(w, q)
	}
	if q.unindexed.Add(offset, hash, at) {
		t.writeIndex(w, q)
	}
	t.index.Last = at
}

func (t *topic) writeIndex(w *store.Batch, q *queue) {
	ids := q.unindexed.Take(q.number)
	w.PutRecentIDs(t.id, ids)
	t.index.Wrote(ids)
}

// indexRest writes what no record of the index has yet: the broker closes, and
// nothing else runs any more. A full disk is spared it: without it opening reads the messages.
func (b *Broker) indexRest() {
	if b.store.DiskFull() != nil {
		return
	}
	now := time.Now()
	b.store.Messages.Add(func(w *store.Batch) {
		for _, t := range b.topicsByID() {
			for _, q := range *t.queues.Load() {
				if q.unindexed.Fresh(t.config.Load().duplicateWindow(), now) {
					t.writeIndex(w, q)
				}
			}
		}
	}, nil) // closing the store commits it
}

// nextOffset returns the offset that the next message of a queue will have; 0 if there is no such
// queue. Only called within the message log's Add.
func (t *topic) nextOffset(queue uint16) int64 {
	if queues := *t.queues.Load(); int(queue) < len(queues) {
		return queues[queue].nextOffset
	}
	return 0
}

// remember has the topic remember a message's ID for the window; with 0 it forgets where a
// message was that has moved. Only called within the message log's Add.
func (t *topic) remember(m *store.Message, l recent.Location, window time.Duration, now time.Time) {
	if window == 0 {
		if !t.recent.Forgotten() {
			t.recent.Forget(t.hash(m.ID))
		}
		return
	}
	t.hashID(m)
	t.recent.Add(m.IDHash, l, window, now)
	t.forgetLater(window, now)
}

// forgetLater has IDs forgotten when the window is over.
func (t *topic) forgetLater(window time.Duration, now time.Time) {
	if !t.forgets {
		t.forgets = true
		t.retention.broker.forgetting.Wake(now.Add(window))
	}
}

// forgetAll forgets every ID of the topic. Only called within the message log's Add.
func (t *topic) forgetAll(w *store.Batch) {
	t.recent = recent.IDs{}
	t.dropIndex(w)
}

func (t *topic) dropIndex(w *store.Batch) {
	if t.index.From != 0 {
		w.DeleteAllRecentIDs(t.id)
	}
	t.index = recent.Index{}
	for _, q := range *t.queues.Load() {
		q.unindexed = recent.Run{}
	}
}

// forgetOld forgets what is older than the window, and returns when to do so
// again; zero if nothing is remembered. Only called within the message log's Add.
func (t *topic) forgetOld(w *store.Batch, now time.Time) time.Time {
	window := t.config.Load().duplicateWindow()
	next := t.recent.Expire(window, now)
	outdated := t.index.Expire(window, now)
	switch {
	case outdated.All:
		t.dropIndex(w)
	case !outdated.To.IsZero():
		w.DeleteRecentIDs(t.id, outdated.From, outdated.To)
	}
	if next.IsZero() {
		next = outdated.Next
	}
	t.forgets = !next.IsZero()
	return next
}

// forget forgets the IDs of all topics that are older than the window: memory
// and disk come back where nothing is sent any more.
func (b *Broker) forget(context.Context, time.Time) (next time.Time, err error) {
	topics := b.topicsByID()
	if err := b.store.Messages.Add(func(w *store.Batch) {
		now := time.Now()
		for _, t := range topics {
			if t.deleted.Load() {
				continue
			}
			if at := t.forgetOld(w, now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}, nil).Wait(); err != nil {
		return time.Time{}, nil //nolint:nilerr // the store is broken: nothing is sent any more
	}
	return next, nil
}
