package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const delayedKeyLen = 1 + 8 + 4 + 8

// A Delayed names a message that waits for its delivery time.
type Delayed struct {
	Due    time.Time
	Topic  uint32
	Number uint64 // tells those of one time and topic apart
}

func (d Delayed) appendKey(k []byte) []byte {
	k = append(k, prefixDelayed)
	k = binary.BigEndian.AppendUint64(k, uint64(nanos(d.Due)))
	k = binary.BigEndian.AppendUint32(k, d.Topic)
	return binary.BigEndian.AppendUint64(k, d.Number)
}

func splitDelayedKey(k []byte) (Delayed, error) {
	if len(k) != delayedKeyLen {
		return Delayed{}, fmt.Errorf("%w: the key of a delayed message", errCorrupt)
	}
	return Delayed{fromNanos(binary.BigEndian.Uint64(k[1:])), binary.BigEndian.Uint32(k[9:]), binary.BigEndian.Uint64(k[13:])}, nil
}

// PutDelayed writes a message that is to be delivered later.
func (b *Batch) PutDelayed(d Delayed, m *Message) {
	op := b.pebble().SetDeferred(delayedKeyLen, m.size())
	d.appendKey(op.Key[:0])
	m.encode(op.Value[:0])
	must(op.Finish())
}

// DeleteDelayed removes one: its time has come, or it was recalled.
func (b *Batch) DeleteDelayed(d Delayed) {
	must(b.pebble().Delete(d.appendKey(nil), nil))
}

// GetDelayed returns a message that waits, and false if it does not.
func (s *Store) GetDelayed(d Delayed) (Message, bool, error) {
	var m Message
	v, closer, err := s.messages.Get(d.appendKey(nil))
	if errors.Is(err, pebble.ErrNotFound) {
		return m, false, nil
	}
	if err != nil {
		return m, false, fmt.Errorf("reading a delayed message: %w", err)
	}
	defer closer.Close()
	if err := decodeMessage(v, &m); err != nil {
		return m, false, fmt.Errorf("reading a delayed message: %w", err)
	}
	return m, true, nil
}

// Due returns the delayed messages that are due by now, the earliest first: at
// most limit, and after the first as many as have maxBytes of bodies. next is
// the time of the first one that it does not return; zero if there is none.
func (s *Store) Due(now time.Time, limit int, maxBytes int64) (ds []Delayed, ms []Message, next time.Time, err error) {
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixDelayed}, UpperBound: []byte{prefixDelayed + 1}})
	if err != nil {
		return nil, nil, next, fmt.Errorf("reading delayed messages: %w", err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		d, err := splitDelayedKey(it.Key())
		if err != nil {
			return ds, ms, next, err
		}
		if d.Due.After(now) || len(ds) == limit || len(ds) > 0 && maxBytes <= 0 {
			return ds, ms, d.Due, nil
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return ds, ms, next, fmt.Errorf("reading delayed messages: %w", err)
		}
		var m Message
		if err := decodeMessage(v, &m); err != nil {
			return ds, ms, next, fmt.Errorf("reading the delayed message due at %v: %w", d.Due, err)
		}
		maxBytes -= int64(len(m.Body))
		ds, ms = append(ds, d), append(ms, m)
	}
	return ds, ms, next, it.Error()
}
