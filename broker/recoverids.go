package broker

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// An idRecovery remembers the IDs of the last while of a topic after a restart:
// what the index has of them, and the rest as the messages themselves tell. What
// cannot be read because of damage is not remembered: its duplicates are stored again.
type idRecovery struct {
	broker  *Broker
	topic   *topic
	since   time.Time           // what was stored before is not remembered
	records [][]store.RecentIDs // by queue: what the index has, the last first
	whole   bool                // the index has enough: what is before it is not remembered
	read    []recent.Stored     // what it has not
}

// recoverIDs has a topic remember the IDs of the last while. Nothing else runs yet.
func (b *Broker) recoverIDs(t *topic, now time.Time) error {
	some, err := b.store.HasRecentIDs(t.id)
	if err != nil && !store.IsDamage(err) {
		return err
	}
	if some || err != nil { // perhaps of long before: all of it is to be forgotten, read or not
		t.index = recent.Index{Last: now.UnixNano(), From: 1}
	}
	window := t.config.Load().duplicateWindow()
	if window == 0 {
		return nil
	}
	queues := *t.queues.Load()
	r := idRecovery{broker: b, topic: t, since: now.Add(-window), records: make([][]store.RecentIDs, len(queues))}
	if err := r.readIndex(queues); err != nil {
		return err
	}
	for _, q := range queues {
		if err := r.readMessages(q); store.IsDamage(err) {
			b.logger.Error("the IDs of the last messages cannot be read; sent again, they are stored again", "topic", t.name, "queue", q.number, "error", err)
		} else if err != nil {
			return err
		}
	}
	t.recent = recent.Restore(now, slices.Concat(r.records...), r.read)
	return r.waiting()
}

// readIndex reads what the index has, up to as many IDs as a topic remembers.
func (r *idRecovery) readIndex(queues []*queue) error {
	t, left := r.topic, recent.Capacity
	err := r.broker.store.RecentIDs(t.id, r.since, func(ids store.RecentIDs) bool {
		if int(ids.Queue) >= len(queues) || ids.End > queues[ids.Queue].nextOffset {
			return true
		}
		ids.Hashes = slices.Clone(ids.Hashes)
		r.records[ids.Queue] = append(r.records[ids.Queue], ids)
		left -= len(ids.Hashes)
		return left > 0
	})
	r.whole = left <= 0
	if store.IsDamage(err) {
		r.broker.logger.Warn("a part of the index of message IDs is damaged; the messages are read instead", "topic", t.name, "error", err)
		return nil
	}
	return err
}

// readMessages reads what the index does not have of a queue.
func (r *idRecovery) readMessages(q *queue) error {
	records := r.records[q.number]
	slices.SortFunc(records, func(x, y store.RecentIDs) int { return cmp.Compare(y.End, x.End) })
	left := recent.Capacity
	begin := len(r.read)
	for at := q.nextOffset; ; {
		gap := store.Range{Topic: r.topic.id, Queue: q.number, To: at}
		if len(records) > 0 {
			gap.From = records[0].End
		} else if r.whole && at < q.nextOffset {
			return nil
		}
		over := false
		if gap.From < gap.To {
			if err := r.broker.store.NewestIDs(gap, func(id string, offset int64, stored time.Time) bool {
				left--
				if over = left < 0 || stored.Before(r.since); over {
					return false
				}
				r.read = append(r.read, recent.Stored{Queue: q.number, Offset: offset, Hash: r.topic.hash(id), At: stored})
				return true
			}); err != nil {
				return err
			}
		}
		if at == q.nextOffset {
			r.indexTail(q, r.read[begin:])
		}
		if over || len(records) == 0 {
			return nil
		}
		at, records = min(at, records[0].First()), records[1:]
	}
}

// indexTail has the index go on where it ended: behind it are those messages, the last one first.
func (r *idRecovery) indexTail(q *queue, tail []recent.Stored) {
	if len(tail) == 0 {
		return
	}
	window := r.topic.config.Load().duplicateWindow()
	r.broker.store.Messages.Add(func(w *store.Batch) {
		for _, m := range slices.Backward(tail) {
			r.topic.indexID(w, q, m.Offset, m.Hash, m.At.UnixNano(), window)
		}
	}, nil)
}

// waiting remembers the delayed and the half messages.
func (r *idRecovery) waiting() error {
	left := recent.Capacity
	if err := r.broker.store.NewestDelayed(r.topic.id, r.since, func(d *store.StoredDelayed) bool {
		if d.IDHash != 0 {
			r.topic.recent.Put(d.IDHash, pending.DelayedLocation(d.Delayed))
		}
		left--
		return left > 0
	}); err != nil {
		return err
	}
	left = recent.Capacity
	return r.broker.store.HalfMessagesOf(r.topic.id, math.MaxUint64, func(id store.HalfID, st store.HalfState) bool {
		if left--; left < 0 || st.Stored.Before(r.since) {
			return false
		}
		if st.IDHash != 0 {
			r.topic.recent.Put(st.IDHash, pending.HalfLocation(id))
		}
		return true
	})
}

// forgetRecovered returns when what recoverIDs has remembered is to be
// forgotten; zero if it is nothing.
func forgetRecovered(topics map[uint32]*topic, now time.Time) (next time.Time) {
	for _, t := range topics {
		if t.forgets = !t.recent.Forgotten() || t.index != (recent.Index{}); t.forgets {
			if at := now.Add(t.config.Load().duplicateWindow()); next.IsZero() || at.Before(next) {
				next = at
			}
		}
	}
	return next
}
