package record

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

const DelayedKeyLen = 1 + 8 + 4 + 8

// A Delayed names a message that waits for its delivery time.
type Delayed struct {
	Due    time.Time
	Topic  uint32
	Number uint64 // distinguishes messages of one time and topic
}

// AppendKey appends the key of the message to k.
func (d Delayed) AppendKey(k []byte) []byte {
	k = append(k, PrefixDelayed)
	k = binary.BigEndian.AppendUint64(k, keyNanos(d.Due))
	k = binary.BigEndian.AppendUint32(k, d.Topic)
	return binary.BigEndian.AppendUint64(k, d.Number)
}

// SplitDelayedKey decodes the key of AppendKey.
func SplitDelayedKey(k []byte) (Delayed, error) {
	if len(k) != DelayedKeyLen {
		return Delayed{}, fmt.Errorf("%w: the key of a delayed message", ErrCorrupt)
	}
	due, err := keyTime(k[1:])
	return Delayed{due, binary.BigEndian.Uint32(k[9:]), binary.BigEndian.Uint64(k[13:])}, err
}

// StoredKey returns the key under which the message is found by the time at
// which it was stored.
func (d Delayed) StoredKey(stored time.Time) []byte {
	k := append(make([]byte, 0, DelayedKeyLen), PrefixDelayedStored)
	k = binary.BigEndian.AppendUint32(k, d.Topic)
	k = binary.BigEndian.AppendUint64(k, keyNanos(stored))
	return binary.BigEndian.AppendUint64(k, d.Number)
}

// A StoredDelayed has the fields of a delayed message that need no read of the message.
type StoredDelayed struct {
	Delayed
	Stored time.Time
	IDHash uint64 // see Message
	Size   int64  // of its body, in bytes

	// Gone: it does not wait any more, and only this is left of it, since it was
	// damaged when its time came. Only DelayedOf looks.
	Gone bool
}

// StoredAfter reports whether DelayedOf returns d after other, which is of the same topic.
func (d StoredDelayed) StoredAfter(other StoredDelayed) bool {
	return bytes.Compare(d.StoredKey(d.Stored), other.StoredKey(other.Stored)) > 0
}

// SplitStoredDelayed reads the record by StoredKey. Its value is Due in nanoseconds since 1970,
// IDHash, Size.
func SplitStoredDelayed(k, v []byte) (d StoredDelayed, err error) {
	if len(k) != DelayedKeyLen || len(v) < 16 {
		return d, fmt.Errorf("%w: when a delayed message was stored", ErrCorrupt)
	}
	stored, err := keyTime(k[5:])
	if err != nil {
		return d, err
	}
	r := reader{b: v, off: 16}
	size := r.uvarint()
	if r.err == nil && (r.off != len(v) || size > math.MaxInt32) {
		r.fail("the size of a delayed message is invalid")
	}
	return StoredDelayed{
		Delayed: Delayed{fromNanos(binary.BigEndian.Uint64(v)), binary.BigEndian.Uint32(k[1:]), binary.BigEndian.Uint64(k[13:])},
		Stored:  stored, IDHash: binary.BigEndian.Uint64(v[8:]), Size: int64(size),
	}, r.err
}
