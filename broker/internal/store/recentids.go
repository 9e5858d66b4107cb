package store

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// PutRecentIDs adds a record to the index.
func (b *Batch) PutRecentIDs(topic uint32, r RecentIDs) {
	op := b.pebble().SetDeferred(record.RecentKeyLen, record.HashLen*len(r.Hashes))
	r.AppendKey(op.Key[:0], topic)
	for i, h := range r.Hashes {
		v := op.Value[record.HashLen*i:]
		binary.BigEndian.PutUint32(v, uint32(h>>32))
		binary.BigEndian.PutUint16(v[4:], uint16(h>>16))
	}
	must(op.Finish())
}

// DeleteRecentIDs removes the records of a topic whose last message was stored
// from one time on and before another.
func (b *Batch) DeleteRecentIDs(topic uint32, from, to time.Time) {
	must(b.pebble().DeleteRange(RecentIDs{At: from}.AppendKey(nil, topic), RecentIDs{At: to}.AppendKey(nil, topic), nil))
}

// DeleteAllRecentIDs removes the records of a topic.
func (b *Batch) DeleteAllRecentIDs(topic uint32) {
	p := record.AppendRecentTopic(nil, topic)
	must(b.pebble().DeleteRange(p, record.PrefixEnd(p), nil))
}

// RecentIDs calls f with the records of a topic's index whose last message was stored at since or
// later, the last one first, until f returns false. f must not keep the hashes. Corrupt records are
// skipped; the error is then that of one of them.
func (s *Store) RecentIDs(topic uint32, since time.Time, f func(RecentIDs) bool) error {
	upper := record.PrefixEnd(record.AppendRecentTopic(nil, topic))
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: RecentIDs{At: since}.AppendKey(nil, topic), UpperBound: upper})
	if err != nil {
		return fmt.Errorf("reading recent message IDs: %w", err)
	}
	defer it.Close()
	var r RecentIDs
	var damage error
	for ok := it.Last(); ok; ok = it.Prev() {
		v, err := it.ValueAndErr()
		if err == nil {
			err = record.DecodeRecentIDs(it.Key(), v, &r)
		}
		if IsDamage(err) {
			damage = fmt.Errorf("reading recent message IDs: %w", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("reading recent message IDs: %w", err)
		}
		if !f(r) {
			return damage
		}
	}
	if err := it.Error(); err != nil {
		return fmt.Errorf("reading recent message IDs: %w", err)
	}
	return damage
}

// HasRecentIDs reports whether a topic's index has records.
func (s *Store) HasRecentIDs(topic uint32) (bool, error) {
	p := record.AppendRecentTopic(nil, topic)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: p, UpperBound: record.PrefixEnd(p)})
	if err != nil {
		return false, fmt.Errorf("reading recent message IDs: %w", err)
	}
	defer it.Close()
	return it.First(), it.Error()
}

// IDKey returns the key of all hashes of message IDs, which a new store
// draws by lot. Nothing else runs yet.
func (s *Store) IDKey() (IDKey, error) {
	var k IDKey
	ok, err := s.read([]byte{record.PrefixIDKey}, func(v []byte) (err error) {
		k, err = record.DecodeIDKey(v)
		return err
	})
	if err != nil {
		return k, fmt.Errorf("the key of the hashes of message IDs: %w", err)
	}
	if ok {
		return k, nil
	}
	v := make([]byte, 16)
	rand.Read(v) // it never fails
	s.Messages.Add(func(b *Batch) { must(b.pebble().Set([]byte{record.PrefixIDKey}, v, nil)) }, nil)
	return record.DecodeIDKey(v)
}
