package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// PutDelayed writes a message that is to be delivered later.
func (b *Batch) PutDelayed(d Delayed, m *Message) {
	op := b.pebble().SetDeferred(record.DelayedKeyLen, m.EncodedSize())
	d.AppendKey(op.Key[:0])
	m.AppendTo(op.Value[:0])
	must(op.Finish())
	v := binary.BigEndian.AppendUint64(make([]byte, 0, 21), uint64(record.Nanos(d.Due)))
	v = binary.BigEndian.AppendUint64(v, m.IDHash)
	must(b.pebble().Set(d.StoredKey(m.StoredAt), binary.AppendUvarint(v, uint64(len(m.Body))), nil))
}

// DeleteDelayed removes one that was stored at that time: it is due, or it was recalled.
func (b *Batch) DeleteDelayed(d Delayed, stored time.Time) {
	must(b.pebble().Delete(d.AppendKey(nil), nil))
	must(b.pebble().Delete(d.StoredKey(stored), nil))
}

// NewestDelayed calls f with the delayed messages of a topic that were stored after since, the last
// one first, until f returns false. It reads none of them.
func (s *Store) NewestDelayed(topic uint32, since time.Time, f func(d *StoredDelayed) bool) error {
	lower := Delayed{Topic: topic}.StoredKey(since)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: record.PrefixEnd(lower[:5])})
	if err != nil {
		return fmt.Errorf("reading delayed messages: %w", err)
	}
	defer it.Close()
	for ok := it.Last(); ok; ok = it.Prev() {
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("reading delayed messages: %w", err)
		}
		d, err := record.SplitStoredDelayed(it.Key(), v)
		if err != nil {
			return err
		}
		if !f(&d) {
			break
		}
	}
	return it.Error()
}

// DelayedOf returns up to limit delayed messages of a topic in the order in which they were stored:
// those behind from, or from the first on if from is zero. It looks at no other topic's, and reads
// none.
func (s *Store) DelayedOf(topic uint32, from StoredDelayed, limit int) (ds []StoredDelayed, err error) {
	lower := binary.BigEndian.AppendUint32([]byte{record.PrefixDelayedStored}, topic)
	upper := record.PrefixEnd(lower)
	if from != (StoredDelayed{}) {
		lower = append(from.StoredKey(from.Stored), 0)
	}
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, fmt.Errorf("reading delayed messages: %w", err)
	}
	defer it.Close()
	waiting, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: []byte{record.PrefixDelayed}, UpperBound: []byte{record.PrefixDelayed + 1}})
	if err != nil {
		return nil, fmt.Errorf("reading delayed messages: %w", err)
	}
	defer waiting.Close()
	for ok := it.First(); ok && len(ds) < limit; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, fmt.Errorf("reading delayed messages: %w", err)
		}
		d, err := record.SplitStoredDelayed(it.Key(), v)
		if err != nil {
			return nil, err
		}
		k := d.AppendKey(nil)
		d.Gone = !waiting.SeekGE(k) || !bytes.Equal(waiting.Key(), k)
		ds = append(ds, d)
	}
	return ds, errors.Join(it.Error(), waiting.Error())
}

// GetDelayed returns a message that waits, and false if it does not.
func (s *Store) GetDelayed(d Delayed) (Message, bool, error) {
	var m Message
	v, closer, err := s.messages.Get(d.AppendKey(nil))
	if errors.Is(err, pebble.ErrNotFound) {
		return m, false, nil
	}
	if err != nil {
		return m, false, fmt.Errorf("reading a delayed message: %w", err)
	}
	defer closer.Close()
	if err := record.DecodeMessage(v, &m); err != nil {
		return m, false, fmt.Errorf("reading a delayed message: %w", err)
	}
	return m, true, nil
}

// Due returns the delayed messages that are due by now, the earliest first: at most limit, and
// after the first as many as have maxBytes of bodies. next is the time of the first message that it
// does not return, or zero if there is none. No message is due before from; this spares reading the
// deletion marks of earlier messages. A corrupt message has no ID. Another read error is returned
// if it occurs at the first message; otherwise it ends the result, and next is not after it.
func (s *Store) Due(from, now time.Time, limit int, maxBytes int64) (ds []Delayed, ms []Message, next time.Time, err error) {
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: Delayed{Due: from}.AppendKey(nil), UpperBound: []byte{record.PrefixDelayed + 1}})
	if err != nil {
		return nil, nil, next, fmt.Errorf("reading delayed messages: %w", err)
	}
	defer it.Close()
	stopped := func(err error) ([]Delayed, []Message, time.Time, error) {
		if len(ds) == 0 {
			return nil, nil, time.Time{}, err
		}
		return ds, ms, ds[len(ds)-1].Due, nil
	}
	for ok := it.First(); ok; ok = it.Next() {
		d, err := record.SplitDelayedKey(it.Key())
		if err != nil {
			return stopped(err)
		}
		if d.Due.After(now) || len(ds) == limit || len(ds) > 0 && maxBytes <= 0 {
			return ds, ms, d.Due, nil
		}
		var m Message
		v, err := it.ValueAndErr()
		if err == nil {
			err = record.DecodeMessage(v, &m)
		}
		if IsDamage(err) {
			m = Message{}
		} else if err != nil {
			return stopped(fmt.Errorf("reading the delayed message due at %v: %w", d.Due, err))
		}
		maxBytes -= int64(len(m.Body))
		ds, ms = append(ds, d), append(ms, m)
	}
	if err := it.Error(); err != nil {
		return stopped(fmt.Errorf("reading delayed messages: %w", err))
	}
	return ds, ms, next, nil
}
