package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// indexBlock is how many IDs one record of the index has: opening reads as many
// messages of each queue at most, those that came after its last record.
const indexBlock = store.MaxRecentIDs

const _ = uint(recent.MaxQueues - MaxQueues) // the memory of IDs has room for every queue

// An idIndex is what is known of a topic's index of IDs in the store. Its zero
// value is that of a topic without one.
type idIndex struct {
	last int64 // when a message was last noted for it, or the broker was opened, in nanoseconds since 1970; 0 if none was
	from int64 // likewise: no record is of before; 0 if there is none
}

// unindexed are the hashes that a queue's next record of the index will have, of
// the IDs of messages that follow one another. Its zero value has none.
type unindexed struct {
	end       int64 // the offset after the last of them
	first, at int64 // when the first and the last of them were stored, in nanoseconds since 1970
	hashes    []uint64
}

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
	u := &q.unindexed
	if u.end != offset { // opening reads what is between two records from the messages
		u.hashes = u.hashes[:0]
	}
	if len(u.hashes) > 0 && at-u.first >= int64(window) {
		// An ID that is stored again, because the window is over, is in a record of later.
		t.writeIndex(w, q)
	}
	if len(u.hashes) == 0 {
		u.first = at
	}
	u.hashes = append(u.hashes, hash)
	u.end, u.at, t.index.last = offset+1, at, at
	if len(u.hashes) == indexBlock {
		t.writeIndex(w, q)
	}
}

func (t *topic) writeIndex(w *store.Batch, q *queue) {
	u := &q.unindexed
	w.PutRecentIDs(t.id, store.RecentIDs{Queue: q.number, End: u.end, At: time.Unix(0, u.at), Hashes: u.hashes})
	u.hashes = u.hashes[:0]
	if t.index.from == 0 || u.at < t.index.from {
		t.index.from = u.at
	}
}

// indexRest writes what no record of the index has yet: the broker closes, and
// nothing else runs any more. A full disk is spared it: without it opening reads the messages.
func (b *Broker) indexRest() {
	if b.store.DiskFull() != nil {
		return
	}
	now := time.Now().UnixNano()
	b.store.Messages.Add(func(w *store.Batch) {
		for _, t := range b.topicsByID() {
			for _, q := range *t.queues.Load() {
				if len(q.unindexed.hashes) > 0 && now-q.unindexed.at < int64(t.config.Load().duplicateWindow()) {
					t.writeIndex(w, q)
				}
			}
		}
	}, nil) // closing the store commits it
}

// nextOffset returns the offset that the next message of a queue will have; 0 if there is no such queue.
// Only called within the message log's Add.
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

// forgetLater has the alarm set to when the window is over.
func (t *topic) forgetLater(window time.Duration, now time.Time) {
	if !t.forgets {
		t.forgets = true
		t.retention.broker.forgetting.set(now.Add(window))
	}
}

// forgetAll forgets every ID of the topic. Only called within the message log's Add.
func (t *topic) forgetAll(w *store.Batch) {
	t.recent = recent.IDs{}
	t.dropIndex(w)
}

func (t *topic) dropIndex(w *store.Batch) {
	if t.index.from != 0 {
		w.DeleteAllRecentIDs(t.id)
	}
	t.index = idIndex{}
	for _, q := range *t.queues.Load() {
		q.unindexed = unindexed{}
	}
}

// forgetOld forgets what is older than the window, and returns when to do so
// again; zero if nothing is remembered. Only called within the message log's Add.
func (t *topic) forgetOld(w *store.Batch, now time.Time) time.Time {
	window := t.config.Load().duplicateWindow()
	next := t.recent.Expire(window, now)
	if t.index.last != 0 {
		if old := now.Add(-window); window == 0 || t.index.last <= old.UnixNano() {
			t.dropIndex(w)
		} else {
			// Not less than half a window at once: each of many topics has all of them looked at once a window.
			if from := t.index.from; from != 0 && from < old.Add(-window/2).UnixNano() {
				w.DeleteRecentIDs(t.id, time.Unix(0, from), old)
				t.index.from = old.UnixNano()
			}
			if next.IsZero() {
				next = time.Unix(0, t.index.last).Add(window)
			}
		}
	}
	t.forgets = !next.IsZero()
	return next
}

// forget forgets the IDs of all topics that are older than the window: memory
// and disk come back where nothing is sent any more. The alarm calls it.
func (b *Broker) forget() {
	if !b.begin() {
		return
	}
	defer b.end()
	var next time.Time
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
		return // the store is broken: nothing is sent any more
	}
	if !next.IsZero() {
		b.forgetting.set(next)
	}
}
