package record

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

const (
	HalfKeyLen    = 1 + 4 + 8
	dueHalfKeyLen = 1 + 8 + 4 + 8
)

// A HalfID identifies a half message: a message with an unresolved transaction.
type HalfID struct {
	Topic  uint32
	Number uint64 // distinguishes messages of one topic, in the order in which they were stored
}

// A HalfState has the time of the next check of a half message and the number of its checks, beside
// its constant fields.
type HalfState struct {
	Due    time.Time
	Span   time.Duration // from the moment at which Due was set to Due; 0 if it is not known
	Checks int

	Stored time.Time // when the message was stored
	IDHash uint64    // see Message
	Size   int64     // of its body, in bytes
}

// A DueHalf is an entry of the index by time. The entry is out of date if the half message no
// longer exists, or is due at another time.
type DueHalf struct {
	HalfID
	Due time.Time
}

// AppendKey appends the key of the half message, or the key of its state, to k. prefix selects the
// key.
func (id HalfID) AppendKey(k []byte, prefix byte) []byte {
	k = append(k, prefix)
	k = binary.BigEndian.AppendUint32(k, id.Topic)
	return binary.BigEndian.AppendUint64(k, id.Number)
}

// SplitHalfKey decodes the key of HalfID.AppendKey.
func SplitHalfKey(k []byte) (HalfID, error) {
	if len(k) != HalfKeyLen {
		return HalfID{}, fmt.Errorf("%w: the key of a half message", ErrCorrupt)
	}
	return HalfID{binary.BigEndian.Uint32(k[1:]), binary.BigEndian.Uint64(k[5:])}, nil
}

// Key returns the key of the entry. Entries have no value.
func (d DueHalf) Key() []byte {
	k := append(make([]byte, 0, dueHalfKeyLen), PrefixHalfDue)
	k = binary.BigEndian.AppendUint64(k, keyNanos(d.Due))
	k = binary.BigEndian.AppendUint32(k, d.Topic)
	return binary.BigEndian.AppendUint64(k, d.Number)
}

// SplitDueHalfKey decodes the key of DueHalf.Key.
func SplitDueHalfKey(k []byte) (DueHalf, error) {
	if len(k) != dueHalfKeyLen {
		return DueHalf{}, fmt.Errorf("%w: the key of a half message's next check", ErrCorrupt)
	}
	due, err := keyTime(k[1:])
	return DueHalf{HalfID{binary.BigEndian.Uint32(k[9:]), binary.BigEndian.Uint64(k[13:])}, due}, err
}

// Encode returns the record of a state: Due and Stored in nanoseconds since 1970, IDHash, Checks,
// Size, and Span unless it is 0. Records of earlier versions have no Span.
func (s HalfState) Encode() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 40), uint64(Nanos(s.Due)))
	b = binary.BigEndian.AppendUint64(b, uint64(Nanos(s.Stored)))
	b = binary.BigEndian.AppendUint64(b, s.IDHash)
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(s.Checks)), uint64(s.Size))
	if s.Span > 0 {
		b = binary.AppendUvarint(b, uint64(s.Span))
	}
	return b
}

// DecodeHalfState decodes the result of Encode.
func DecodeHalfState(v []byte) (HalfState, error) {
	if len(v) < 24 {
		return HalfState{}, fmt.Errorf("%w: the state of a half message has %d bytes", ErrCorrupt, len(v))
	}
	r := reader{b: v, off: 24}
	n, size := r.uvarint(), r.uvarint()
	var span time.Duration
	if r.err == nil && r.off < len(v) {
		span = r.span()
	}
	if r.err == nil && (r.off != len(v) || n > math.MaxInt32 || size > math.MaxInt32) {
		r.fail("the state of a half message is invalid")
	}
	return HalfState{
		Due: fromNanos(binary.BigEndian.Uint64(v)), Span: span, Checks: int(n),
		Stored: fromNanos(binary.BigEndian.Uint64(v[8:])), IDHash: binary.BigEndian.Uint64(v[16:]), Size: int64(size),
	}, r.err
}
