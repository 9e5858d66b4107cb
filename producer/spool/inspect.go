package spool

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/tidegate/tidegate"
)

// An Entry is a message in the spool.
type Entry struct {
	Sequence uint64 // identifies the entry within its spool
	Message  *tidegate.Message
	Accepted time.Time // when Put accepted it
	Bytes    int       // on disk

	// Rejected is the time of the rejection, and Reason its reason. Both are zero for a pending
	// message. Message is nil if a rejected entry is corrupt.
	Rejected time.Time
	Reason   string
}

// Entries returns up to limit entries with a sequence above after, in order: the pending entries,
// or the rejected ones. It reads them from disk. To read all entries, call it again with the
// sequence of the last one.
func (s *Spool) Entries(rejected bool, after uint64, limit int) ([]Entry, error) {
	var list []Entry
	add := func(k, v []byte) {
		seq := sequence(k)
		if seq <= after {
			return
		}
		e := Entry{Sequence: seq, Bytes: len(v)}
		if h, err := decode(slices.Clone(v)); err == nil {
			e.Message, e.Accepted, e.Rejected, e.Reason = &h.Message, h.Accepted, h.Rejected, h.Reason
		} else {
			e.Reason = err.Error()
		}
		at, _ := slices.BinarySearchFunc(list, seq, func(e Entry, seq uint64) int { return cmp.Compare(e.Sequence, seq) })
		if list = slices.Insert(list, at, e); len(list) > limit {
			list = list[:limit]
		}
	}
	err := s.db.View(func(tx *bolt.Tx) error {
		if rejected {
			return first(tx.Bucket(bucketRejected), after, limit, add)
		}
		pending := tx.Bucket(bucketPending)
		return pending.ForEachBucket(func(name []byte) error {
			return first(pending.Bucket(name), after, limit, add)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("spool: read: %w", closed(err))
	}
	return list, nil
}

// first calls add for the first limit entries of b with a sequence above after.
func first(b *bolt.Bucket, after uint64, limit int, add func(k, v []byte)) error {
	c := b.Cursor()
	for k, v := c.Seek(key(after)); k != nil && limit > 0; k, v = c.Next() {
		if sequence(k) > after {
			add(k, v)
			limit--
		}
	}
	return nil
}

// Discard removes rejected entries permanently and returns their number. It ignores sequences of
// other entries.
func (s *Spool) Discard(sequences ...uint64) (int, error) {
	return s.takeRejected(sequences, func(*bolt.Tx, []byte) (bool, error) { return true, nil })
}

// Requeue moves rejected messages behind all pending ones and returns their number. It ignores
// corrupt entries and sequences of other entries. MaxAge counts from the call.
func (s *Spool) Requeue(sequences ...uint64) (int, error) {
	type added struct {
		queue string
		size  int
	}
	var list []added
	n, err := s.takeRejected(sequences, func(tx *bolt.Tx, value []byte) (bool, error) {
		h, err := decode(slices.Clone(value))
		if err != nil {
			return false, nil //nolint:nilerr // a corrupt entry stays in the file
		}
		h.Accepted, h.Rejected, h.Reason = time.Now(), time.Time{}, ""
		if value, err = encode(h, h.Message.Body); err != nil {
			return false, err
		}
		pending := tx.Bucket(bucketPending)
		seq, err := pending.NextSequence()
		if err != nil {
			return false, err
		}
		queue := queueOf(h.Message.Topic, h.Message.MessageGroup)
		b, err := pending.CreateBucketIfNotExists(queue)
		if err != nil {
			return false, err
		}
		list = append(list, added{string(queue), len(value)})
		return true, b.Put(key(seq), value)
	})
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	for _, a := range list {
		s.count(a.queue, 1, a.size)
	}
	s.mu.Unlock()
	s.signal()
	return n, nil
}

// takeRejected removes the rejected entries for which f returns true, in one transaction.
func (s *Spool) takeRejected(sequences []uint64, f func(tx *bolt.Tx, value []byte) (bool, error)) (n int, err error) {
	var bytes int64
	err = s.db.Update(func(tx *bolt.Tx) error {
		rejected := tx.Bucket(bucketRejected)
		for _, seq := range sequences {
			value := rejected.Get(key(seq))
			if value == nil {
				continue
			}
			size := len(value)
			take, err := f(tx, value)
			if err != nil {
				return err
			}
			if !take {
				continue
			}
			if err := rejected.Delete(key(seq)); err != nil {
				return err
			}
			n++
			bytes += int64(size)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("spool: change rejected messages: %w", closed(err))
	}
	s.mu.Lock()
	s.stats.Rejected -= n
	s.stats.Bytes -= bytes
	s.mu.Unlock()
	return n, nil
}
