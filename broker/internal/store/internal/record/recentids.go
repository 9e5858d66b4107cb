package record

import (
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"

	"github.com/dchest/siphash"
)

const (
	// MinSeparated is from how many bytes on a value goes to a file of values.
	MinSeparated = 256

	RecentKeyLen = 1 + 4 + 8 + 2 + 8

	// HashLen is how many bytes of a hash a record has, the first ones.
	HashLen = 6

	// MaxRecentIDs is how many IDs a record has at most. It stays among the
	// keys: larger ones would go to the files of messages' bodies, and have
	// compactions write these anew (a tenth more processor for each message).
	MaxRecentIDs = (MinSeparated - 1) / HashLen
)

// A RecentIDs is a record of the index of message IDs: the hashes of the IDs of consecutive
// messages of a queue. The stored messages decide: the record can name messages that were removed,
// and messages can be missing in it.
type RecentIDs struct {
	Queue  uint16
	End    int64     // the offset after the last of them
	At     time.Time // when the last of them was stored
	Hashes []uint64  // by IDKey.Hash, in their order, at most MaxRecentIDs
}

// First returns the offset of the first one.
func (r RecentIDs) First() int64 { return r.End - int64(len(r.Hashes)) }

// AppendKey appends the record's key. Keys sort by time within the topic, so that the old records
// are one range.
func (r RecentIDs) AppendKey(k []byte, topic uint32) []byte {
	k = binary.BigEndian.AppendUint64(AppendRecentTopic(k, topic), keyNanos(r.At))
	k = binary.BigEndian.AppendUint16(k, r.Queue)
	return binary.BigEndian.AppendUint64(k, uint64(r.End))
}

// AppendRecentTopic appends the common prefix of the keys of a topic's RecentIDs.
func AppendRecentTopic(k []byte, topic uint32) []byte {
	return binary.BigEndian.AppendUint32(append(k, PrefixRecentIDs), topic)
}

// DecodeRecentIDs reads a record, its hashes into those of r.
func DecodeRecentIDs(k, v []byte, r *RecentIDs) error {
	if len(k) != RecentKeyLen {
		return fmt.Errorf("%w: the key of recent message IDs has %d bytes", ErrCorrupt, len(k))
	}
	at, err := keyTime(k[5:])
	if err != nil {
		return err
	}
	r.At = at
	r.Queue, r.End = binary.BigEndian.Uint16(k[13:]), int64(binary.BigEndian.Uint64(k[15:]))
	r.Hashes = r.Hashes[:0]
	if len(v)%HashLen != 0 || len(v) == 0 || len(v) > HashLen*MaxRecentIDs || r.End < int64(len(v)/HashLen) {
		return fmt.Errorf("%w: recent message IDs up to offset %d have %d bytes", ErrCorrupt, r.End, len(v))
	}
	for ; len(v) > 0; v = v[HashLen:] {
		r.Hashes = append(r.Hashes, uint64(binary.BigEndian.Uint32(v))<<32|uint64(binary.BigEndian.Uint16(v[4:]))<<16)
	}
	return nil
}

// An IDKey is the secret of a store's hashes of message IDs. A client that does not know it cannot
// choose IDs with equal or adjacent hashes.
type IDKey struct{ K0, K1 uint64 }

// Hash returns the hash of an ID in the form in which it is stored. The lowest bits of the hash are
// 0; the hash is never 0.
func (k IDKey) Hash(id string) uint64 {
	const unit = 1 << (64 - 8*HashLen)
	// Hash reads the bytes only; copies of the usual IDs would be allocated.
	return max(siphash.Hash(k.K0, k.K1, unsafe.Slice(unsafe.StringData(id), len(id)))&^(unit-1), unit)
}

// DecodeIDKey reads the stored key.
func DecodeIDKey(v []byte) (IDKey, error) {
	if len(v) != 16 {
		return IDKey{}, fmt.Errorf("%w: it has %d bytes, not 16", ErrCorrupt, len(v))
	}
	return IDKey{binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])}, nil
}
