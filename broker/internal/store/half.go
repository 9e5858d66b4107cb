package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const (
	halfKeyLen    = 1 + 4 + 8
	dueHalfKeyLen = 1 + 8 + 4 + 8
)

// A HalfID names a half message: one whose transaction has not ended.
type HalfID struct {
	Topic  uint32
	Number uint64 // tells those of one topic apart, in the order in which they were stored
}

// A HalfState is when the producer of a half message is asked next what
// became of its transaction, and how often it was asked; beside it is what does not change.
type HalfState struct {
	Due    time.Time
	Checks int

	Stored time.Time // when the message was stored
	IDHash uint64    // see Message
	Size   int64     // of its body, in bytes
}

// A DueHalf is an entry of the index by time. It is out of date if the half
// message is not there any more, or is due at another time.
type DueHalf struct {
	HalfID
	Due time.Time
}

func (id HalfID) appendKey(k []byte, prefix byte) []byte {
	k = append(k, prefix)
	k = binary.BigEndian.AppendUint32(k, id.Topic)
	return binary.BigEndian.AppendUint64(k, id.Number)
}

func splitHalfKey(k []byte) (HalfID, error) {
	if len(k) != halfKeyLen {
		return HalfID{}, fmt.Errorf("%w: the key of a half message", errCorrupt)
	}
	return HalfID{binary.BigEndian.Uint32(k[1:]), binary.BigEndian.Uint64(k[5:])}, nil
}

func (d DueHalf) key() []byte {
	k := append(make([]byte, 0, dueHalfKeyLen), prefixHalfDue)
	k = binary.BigEndian.AppendUint64(k, keyNanos(d.Due))
	k = binary.BigEndian.AppendUint32(k, d.Topic)
	return binary.BigEndian.AppendUint64(k, d.Number)
}

func splitDueHalfKey(k []byte) (DueHalf, error) {
	if len(k) != dueHalfKeyLen {
		return DueHalf{}, fmt.Errorf("%w: the key of a half message's next check", errCorrupt)
	}
	due, err := keyTime(k[1:])
	return DueHalf{HalfID{binary.BigEndian.Uint32(k[9:]), binary.BigEndian.Uint64(k[13:])}, due}, err
}

// The form of a state: Due and Stored in nanoseconds since 1970, IDHash, Checks, Size.
func (s HalfState) encode() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 30), uint64(nanos(s.Due)))
	b = binary.BigEndian.AppendUint64(b, uint64(nanos(s.Stored)))
	b = binary.BigEndian.AppendUint64(b, s.IDHash)
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(s.Checks)), uint64(s.Size))
}

func decodeHalfState(v []byte) (HalfState, error) {
	if len(v) < 24 {
		return HalfState{}, fmt.Errorf("%w: the state of a half message has %d bytes", errCorrupt, len(v))
	}
	r := reader{b: v, off: 24}
	n, size := r.uvarint(), r.uvarint()
	if r.err == nil && (r.off != len(v) || n > math.MaxInt32 || size > math.MaxInt32) {
		r.fail("a state of a half message that cannot be")
	}
	return HalfState{
		Due: fromNanos(binary.BigEndian.Uint64(v)), Checks: int(n),
		Stored: fromNanos(binary.BigEndian.Uint64(v[8:])), IDHash: binary.BigEndian.Uint64(v[16:]), Size: int64(size),
	}, r.err
}

// PutHalf writes a half message, and of its state what is known of the message.
func (b *Batch) PutHalf(id HalfID, m *Message, s HalfState) {
	s.Stored, s.IDHash, s.Size = m.StoredAt, m.IDHash, int64(len(m.Body))
	op := b.pebble().SetDeferred(halfKeyLen, m.size())
	id.appendKey(op.Key[:0], prefixHalf)
	m.encode(op.Value[:0])
	must(op.Finish())
	b.putHalfState(id, s)
}

func (b *Batch) putHalfState(id HalfID, s HalfState) {
	must(b.pebble().Set(id.appendKey(nil, prefixHalfState), s.encode(), nil))
	must(b.pebble().Set(DueHalf{id, s.Due}.key(), nil, nil))
}

// ChangeHalf writes another state of a half message.
func (b *Batch) ChangeHalf(id HalfID, before, after HalfState) {
	b.DeleteDueHalf(DueHalf{id, before.Due})
	b.putHalfState(id, after)
}

// DeleteHalf removes a half message: its transaction has ended.
func (b *Batch) DeleteHalf(id HalfID, s HalfState) {
	must(b.pebble().Delete(id.appendKey(nil, prefixHalf), nil))
	must(b.pebble().Delete(id.appendKey(nil, prefixHalfState), nil))
	b.DeleteDueHalf(DueHalf{id, s.Due})
}

// DeleteDueHalf removes an entry of the index by time that is out of date.
func (b *Batch) DeleteDueHalf(d DueHalf) { must(b.pebble().Delete(d.key(), nil)) }

// deleteHalves removes the half messages of a topic. Their entries in the
// index by time are out of date then.
func (b *Batch) deleteHalves(topic uint32) {
	for _, prefix := range []byte{prefixHalf, prefixHalfState} {
		p := binary.BigEndian.AppendUint32([]byte{prefix}, topic)
		must(b.pebble().DeleteRange(p, after(p), nil))
	}
}

// GetHalf returns a half message with its state, and false if there is none.
func (s *Store) GetHalf(id HalfID) (m Message, st HalfState, ok bool, err error) {
	return s.half(id, decodeMessage)
}

// HalfHeader is GetHalf without the body.
func (s *Store) HalfHeader(id HalfID) (m Message, st HalfState, ok bool, err error) {
	return s.half(id, func(v []byte, m *Message) error {
		_, err := decodeHeader(v, m)
		return err
	})
}

// HalfState returns the state of a half message, and false if there is none.
func (s *Store) HalfState(id HalfID) (st HalfState, ok bool, err error) {
	ok, err = s.read(id.appendKey(nil, prefixHalfState), func(v []byte) error {
		st, err = decodeHalfState(v)
		return err
	})
	if err != nil {
		err = fmt.Errorf("reading a half message: %w", err)
	}
	return st, ok, err
}

func (s *Store) half(id HalfID, decode func(v []byte, m *Message) error) (m Message, st HalfState, ok bool, err error) {
	if st, ok, err = s.HalfState(id); err != nil || !ok {
		return m, st, false, err
	}
	ok, err = s.read(id.appendKey(nil, prefixHalf), func(v []byte) error { return decode(v, &m) })
	if err != nil {
		return m, st, false, fmt.Errorf("reading a half message: %w", err)
	}
	return m, st, ok, nil
}

// read calls f with the value of a key of the messages database; false if there is none.
func (s *Store) read(k []byte, f func(v []byte) error) (bool, error) {
	v, closer, err := s.messages.Get(k)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer closer.Close()
	return true, f(v)
}

// DueHalves returns the entries of the index by time that are due by now, the
// earliest first, at most limit. next is the time of the first one that it
// does not return; zero if there is none. No entry may be due before from:
// the traces of all that were there need not be passed over again.
func (s *Store) DueHalves(from, now time.Time, limit int) (due []DueHalf, next time.Time, err error) {
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: DueHalf{Due: from}.key(), UpperBound: []byte{prefixHalfDue + 1}})
	if err != nil {
		return nil, next, fmt.Errorf("reading the next checks of half messages: %w", err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		d, err := splitDueHalfKey(it.Key())
		if err != nil {
			return due, next, err
		}
		if d.Due.After(now) || len(due) == limit {
			return due, d.Due, nil
		}
		due = append(due, d)
	}
	return due, next, it.Error()
}

// Halves calls f with every half message's state.
func (s *Store) Halves(f func(id HalfID, st HalfState) error) error {
	return scan(s.messages, prefixHalfState, func(k, v []byte) error {
		id, err := splitHalfKey(k)
		if err != nil {
			return err
		}
		st, err := decodeHalfState(v)
		if err != nil {
			return err
		}
		return f(id, st)
	})
}

// HalvesOf calls f with the states of the half messages of a topic up to a number, the last one
// first, until f returns false.
func (s *Store) HalvesOf(topic uint32, to uint64, f func(id HalfID, st HalfState) bool) error {
	lower := HalfID{Topic: topic}.appendKey(nil, prefixHalfState)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: append(HalfID{topic, to}.appendKey(nil, prefixHalfState), 0)})
	if err != nil {
		return fmt.Errorf("reading half messages: %w", err)
	}
	defer it.Close()
	for ok := it.Last(); ok; ok = it.Prev() {
		id, err := splitHalfKey(it.Key())
		if err != nil {
			return err
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("reading half messages: %w", err)
		}
		st, err := decodeHalfState(v)
		if err != nil {
			return err
		}
		if !f(id, st) {
			break
		}
	}
	return it.Error()
}
