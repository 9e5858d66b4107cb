package pending

import (
	"cmp"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Source has the inputs of [Duplicates.Restore].
type Source struct {
	Store  *store.Store
	Logger *slog.Logger
	Topic  string // name of the topic, for the log

	Ends   []int64 // by queue: the offset after its last message
	Window time.Duration
	Now    time.Time
}

// A restoration restores the recent IDs of a topic after a restart. It reads the index, and the
// messages that are not in the index. It cannot restore the IDs of corrupt messages: duplicates of
// these are stored again.
type restoration struct {
	*Duplicates
	Source
	since   time.Time           // messages stored before since are not remembered
	records [][]store.RecentIDs // by queue: the records of the index, the last one first
	whole   bool                // the index has Capacity IDs; the messages before it are not read
	read    []recentStored      // messages that are not in the index
}

// Restore restores the IDs of the window from the store. Call it during the start, before other
// goroutines use the topic, and then schedule Expire at ExpiresAt. Restore logs and skips damaged
// parts of the index and of queues; it returns the other errors of the store.
func (m *Duplicates) Restore(from Source) error {
	some, err := from.Store.HasRecentIDs(m.topic)
	if err != nil && !store.IsDamage(err) {
		return err
	}
	if some || err != nil { // its records may be old: Expire must cover the whole index
		m.index = index{Last: from.Now.UnixNano(), From: 1}
	}
	if from.Window == 0 {
		return nil
	}
	r := restoration{Duplicates: m, Source: from, since: from.Now.Add(-from.Window), records: make([][]store.RecentIDs, len(from.Ends))}
	if err := r.readIndex(); err != nil {
		return err
	}
	for queue := range from.Ends {
		if err := r.readMessages(uint16(queue)); store.IsDamage(err) {
			from.Logger.Error("recent message IDs cannot be read; duplicates of these messages are not detected", "topic", from.Topic, "queue", queue, "error", err)
		} else if err != nil {
			return err
		}
	}
	m.ids = restore(from.Now, slices.Concat(r.records...), r.read)
	return r.readPending()
}

// ExpiresAt returns when to call Expire after Restore; zero if Restore found no IDs and no index.
func (m *Duplicates) ExpiresAt(window time.Duration, now time.Time) time.Time {
	if m.expires = !m.ids.Forgotten() || m.index != (index{}); m.expires {
		return now.Add(window)
	}
	return time.Time{}
}

// readIndex reads the records of the index, until these have Capacity IDs.
func (r *restoration) readIndex() error {
	left := Capacity
	err := r.Store.RecentIDs(r.topic, r.since, func(ids store.RecentIDs) bool {
		if int(ids.Queue) >= len(r.Ends) || ids.End > r.Ends[ids.Queue] {
			return true
		}
		ids.Hashes = slices.Clone(ids.Hashes)
		r.records[ids.Queue] = append(r.records[ids.Queue], ids)
		left -= len(ids.Hashes)
		return left > 0
	})
	r.whole = left <= 0
	if store.IsDamage(err) {
		r.Logger.Warn("index of message IDs is corrupt; reading the messages instead", "topic", r.Topic, "error", err)
		return nil
	}
	return err
}

// readMessages reads the messages of a queue that are not in the index, the last ones first.
func (r *restoration) readMessages(queue uint16) error {
	records, end := r.records[queue], r.Ends[queue]
	slices.SortFunc(records, func(x, y store.RecentIDs) int { return cmp.Compare(y.End, x.End) })
	left := Capacity
	begin := len(r.read)
	for at := end; ; {
		gap := store.Range{Topic: r.topic, Queue: queue, To: at}
		if len(records) > 0 {
			gap.From = records[0].End
		} else if r.whole && at < end {
			return nil
		}
		over := false
		if gap.From < gap.To {
			if err := r.Store.NewestIDs(gap, func(id string, offset int64, stored time.Time) bool {
				left--
				if over = left < 0 || stored.Before(r.since); over {
					return false
				}
				r.read = append(r.read, recentStored{Queue: queue, Offset: offset, Hash: r.Hash(id), At: stored})
				return true
			}); err != nil {
				return err
			}
		}
		if at == end {
			r.indexTail(queue, r.read[begin:])
		}
		if over || len(records) == 0 {
			return nil
		}
		at, records = min(at, records[0].First()), records[1:]
	}
}

// indexTail adds the messages after the last record of a queue to the index. tail has these
// messages, the last one first.
func (r *restoration) indexTail(queue uint16, tail []recentStored) {
	if len(tail) == 0 {
		return
	}
	r.Store.Messages.Add(func(w *store.Batch) {
		for _, s := range slices.Backward(tail) {
			r.addToIndex(w, queue, s.Offset, s.Hash, s.At.UnixNano(), r.Window)
		}
	}, nil)
}

// readPending restores the IDs of the delayed and the half messages.
func (r *restoration) readPending() error {
	left := Capacity
	if err := r.Store.NewestDelayed(r.topic, r.since, func(d *store.StoredDelayed) bool {
		if d.IDHash != 0 {
			r.ids.Put(d.IDHash, DelayedLocation(d.Delayed))
		}
		left--
		return left > 0
	}); err != nil {
		return err
	}
	left = Capacity
	return r.Store.HalfMessagesOf(r.topic, math.MaxUint64, func(id store.HalfID, st store.HalfState) bool {
		if left--; left < 0 || st.Stored.Before(r.since) {
			return false
		}
		if st.IDHash != 0 {
			r.ids.Put(st.IDHash, HalfLocation(id))
		}
		return true
	})
}
