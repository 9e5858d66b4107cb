package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// PutHalf writes a half message, and the part of its state that the message determines.
func (b *Batch) PutHalf(id HalfID, m *Message, s HalfState) {
	s.Stored, s.IDHash, s.Size = m.StoredAt, m.IDHash, int64(len(m.Body))
	op := b.pebble().SetDeferred(record.HalfKeyLen, m.EncodedSize())
	id.AppendKey(op.Key[:0], record.PrefixHalf)
	m.AppendTo(op.Value[:0])
	must(op.Finish())
	b.putHalfState(id, s)
}

func (b *Batch) putHalfState(id HalfID, s HalfState) {
	must(b.pebble().Set(id.AppendKey(nil, record.PrefixHalfState), s.Encode(), nil))
	must(b.pebble().Set(DueHalf{HalfID: id, Due: s.Due}.Key(), nil, nil))
}

// ChangeHalf writes another state of a half message.
func (b *Batch) ChangeHalf(id HalfID, before, after HalfState) {
	b.DeleteDueHalf(DueHalf{HalfID: id, Due: before.Due})
	b.putHalfState(id, after)
}

// DeleteHalf removes a half message: its transaction has ended.
func (b *Batch) DeleteHalf(id HalfID, s HalfState) {
	must(b.pebble().Delete(id.AppendKey(nil, record.PrefixHalf), nil))
	must(b.pebble().Delete(id.AppendKey(nil, record.PrefixHalfState), nil))
	b.DeleteDueHalf(DueHalf{HalfID: id, Due: s.Due})
}

// DeleteDueHalf removes an entry of the index by time that is out of date.
func (b *Batch) DeleteDueHalf(d DueHalf) { must(b.pebble().Delete(d.Key(), nil)) }

// deleteHalfMessages removes the half messages of a topic. Their entries in the
// index by time are out of date then.
func (b *Batch) deleteHalfMessages(topic uint32) {
	for _, prefix := range []byte{record.PrefixHalf, record.PrefixHalfState} {
		p := binary.BigEndian.AppendUint32([]byte{prefix}, topic)
		must(b.pebble().DeleteRange(p, record.PrefixEnd(p), nil))
	}
}

// GetHalf returns a half message with its state, and false if there is none.
func (s *Store) GetHalf(id HalfID) (m Message, st HalfState, ok bool, err error) {
	return s.half(id, record.DecodeMessage)
}

// HalfHeader is GetHalf without the body.
func (s *Store) HalfHeader(id HalfID) (m Message, st HalfState, ok bool, err error) {
	return s.half(id, func(v []byte, m *Message) error {
		_, err := record.DecodeHeader(v, m)
		return err
	})
}

// HalfState returns the state of a half message, and false if there is none.
func (s *Store) HalfState(id HalfID) (st HalfState, ok bool, err error) {
	ok, err = s.read(id.AppendKey(nil, record.PrefixHalfState), func(v []byte) error {
		st, err = record.DecodeHalfState(v)
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
	ok, err = s.read(id.AppendKey(nil, record.PrefixHalf), func(v []byte) error { return decode(v, &m) })
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

// DueHalfMessages returns the entries of the index by time that are due by now, the earliest first,
// at most limit. next is the time of the first entry that it does not return, or zero if there is
// none. No entry is due before from; this spares reading the deletion marks of earlier entries.
func (s *Store) DueHalfMessages(from, now time.Time, limit int) (due []DueHalf, next time.Time, err error) {
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: DueHalf{Due: from}.Key(), UpperBound: []byte{record.PrefixHalfDue + 1}})
	if err != nil {
		return nil, next, fmt.Errorf("reading the next checks of half messages: %w", err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		d, err := record.SplitDueHalfKey(it.Key())
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

// HalfMessages calls f with every half message's state.
func (s *Store) HalfMessages(f func(id HalfID, st HalfState) error) error {
	return scan(s.messages, record.PrefixHalfState, func(k, v []byte) error {
		id, err := record.SplitHalfKey(k)
		if err != nil {
			return err
		}
		st, err := record.DecodeHalfState(v)
		if err != nil {
			return err
		}
		return f(id, st)
	})
}

// HalfMessagesOf calls f with the states of the half messages of a topic up to a number, the last
// one first, until f returns false.
func (s *Store) HalfMessagesOf(topic uint32, to uint64, f func(id HalfID, st HalfState) bool) error {
	lower := HalfID{Topic: topic}.AppendKey(nil, record.PrefixHalfState)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: append(HalfID{Topic: topic, Number: to}.AppendKey(nil, record.PrefixHalfState), 0)})
	if err != nil {
		return fmt.Errorf("reading half messages: %w", err)
	}
	defer it.Close()
	for ok := it.Last(); ok; ok = it.Prev() {
		id, err := record.SplitHalfKey(it.Key())
		if err != nil {
			return err
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("reading half messages: %w", err)
		}
		st, err := record.DecodeHalfState(v)
		if err != nil {
			return err
		}
		if !f(id, st) {
			break
		}
	}
	return it.Error()
}
