package store

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"

	"github.com/cockroachdb/pebble/v2"
	"github.com/dchest/siphash"
)

const (
	recentKeyLen = 1 + 4 + 8 + 2 + 8

	// hashLen is how many bytes of a hash a record has, the first ones.
	hashLen = 6

	// MaxRecentIDs is how many IDs a record has at most. It stays among the
	// keys: larger ones would go to the files of messages' bodies, and have
	// compactions write these anew (a tenth more processor for each message).
	MaxRecentIDs = (minSeparated - 1) / hashLen
)

// A RecentIDs is a record of the index of message IDs: the hashes of the IDs of
// messages that follow one another in a queue. The messages decide: one that it
// names may be gone, and what it does not name may be there.
type RecentIDs struct {
	Queue  uint16
	End    int64     // the offset after the last of them
	At     time.Time // when the last of them was stored
	Hashes []uint64  // by IDKey.Hash, in their order, at most MaxRecentIDs
}

// First returns the offset of the first one.
func (r RecentIDs) First() int64 { return r.End - int64(len(r.Hashes)) }

// Its key sorts by time within the topic, so that what is too old is one range.
func (r RecentIDs) appendKey(k []byte, topic uint32) []byte {
	k = binary.BigEndian.AppendUint64(appendRecentTopic(k, topic), keyNanos(r.At))
	k = binary.BigEndian.AppendUint16(k, r.Queue)
	return binary.BigEndian.AppendUint64(k, uint64(r.End))
}

func appendRecentTopic(k []byte, topic uint32) []byte {
	return binary.BigEndian.AppendUint32(append(k, prefixRecentIDs), topic)
}

// PutRecentIDs adds a record to the index.
func (b *Batch) PutRecentIDs(topic uint32, r RecentIDs) {
	op := b.pebble().SetDeferred(recentKeyLen, hashLen*len(r.Hashes))
	r.appendKey(op.Key[:0], topic)
	for i, h := range r.Hashes {
		v := op.Value[hashLen*i:]
		binary.BigEndian.PutUint32(v, uint32(h>>32))
		binary.BigEndian.PutUint16(v[4:], uint16(h>>16))
	}
	must(op.Finish())
}

// DeleteRecentIDs removes the records of a topic whose last message was stored
// from one time on and before another.
func (b *Batch) DeleteRecentIDs(topic uint32, from, to time.Time) {
	must(b.pebble().DeleteRange(RecentIDs{At: from}.appendKey(nil, topic), RecentIDs{At: to}.appendKey(nil, topic), nil))
}

// DeleteAllRecentIDs removes the records of a topic.
func (b *Batch) DeleteAllRecentIDs(topic uint32) {
	p := appendRecentTopic(nil, topic)
	must(b.pebble().DeleteRange(p, after(p), nil))
}

// decodeRecentIDs reads a record, its hashes into those of r.
func decodeRecentIDs(k, v []byte, r *RecentIDs) error {
	if len(k) != recentKeyLen {
		return fmt.Errorf("%w: the key of recent message IDs has %d bytes", errCorrupt, len(k))
	}
	at, err := keyTime(k[5:])
	if err != nil {
		return err
	}
	r.At = at
	r.Queue, r.End = binary.BigEndian.Uint16(k[13:]), int64(binary.BigEndian.Uint64(k[15:]))
	r.Hashes = r.Hashes[:0]
	if len(v)%hashLen != 0 || len(v) == 0 || len(v) > hashLen*MaxRecentIDs || r.End < int64(len(v)/hashLen) {
		return fmt.Errorf("%w: recent message IDs up to offset %d have %d bytes", errCorrupt, r.End, len(v))
	}
	for ; len(v) > 0; v = v[hashLen:] {
		r.Hashes = append(r.Hashes, uint64(binary.BigEndian.Uint32(v))<<32|uint64(binary.BigEndian.Uint16(v[4:]))<<16)
	}
	return nil
}

// RecentIDs calls f with the records of a topic's index whose last message was
// stored at since or later, the last one first, until f returns false. f
// keeps none of the hashes. Damaged records are passed over; the error is then that of one.
func (s *Store) RecentIDs(topic uint32, since time.Time, f func(RecentIDs) bool) error {
	upper := after(appendRecentTopic(nil, topic))
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: RecentIDs{At: since}.appendKey(nil, topic), UpperBound: upper})
	if err != nil {
		return fmt.Errorf("reading recent message IDs: %w", err)
	}
	defer it.Close()
	var r RecentIDs
	var damage error
	for ok := it.Last(); ok; ok = it.Prev() {
		v, err := it.ValueAndErr()
		if err == nil {
			err = decodeRecentIDs(it.Key(), v, &r)
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
	p := appendRecentTopic(nil, topic)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: p, UpperBound: after(p)})
	if err != nil {
		return false, fmt.Errorf("reading recent message IDs: %w", err)
	}
	defer it.Close()
	return it.First(), it.Error()
}

// An IDKey is the secret of a store's hashes of message IDs: nobody who does not know it can
// choose IDs whose hashes are equal, or near one another.
type IDKey struct{ K0, K1 uint64 }

// Hash returns the hash of an ID as it is stored: its lowest bits are 0, it is not.
func (k IDKey) Hash(id string) uint64 {
	const unit = 1 << (64 - 8*hashLen)
	// Hash reads the bytes only; copies of the usual IDs would be allocated.
	return max(siphash.Hash(k.K0, k.K1, unsafe.Slice(unsafe.StringData(id), len(id)))&^(unit-1), unit)
}

// IDKey returns the key of all hashes of message IDs, which a new store
// draws by lot. Nothing else runs yet.
func (s *Store) IDKey() (IDKey, error) {
	var k IDKey
	ok, err := s.read([]byte{prefixIDKey}, func(v []byte) (err error) {
		k, err = decodeIDKey(v)
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
	s.Messages.Add(func(b *Batch) { must(b.pebble().Set([]byte{prefixIDKey}, v, nil)) }, nil)
	return decodeIDKey(v)
}

func decodeIDKey(v []byte) (IDKey, error) {
	if len(v) != 16 {
		return IDKey{}, fmt.Errorf("%w: it has %d bytes, not 16", errCorrupt, len(v))
	}
	return IDKey{binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])}, nil
}
