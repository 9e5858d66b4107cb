package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
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
	k = binary.BigEndian.AppendUint64(k, keyNanos(d.Due))
	k = binary.BigEndian.AppendUint32(k, d.Topic)
	return binary.BigEndian.AppendUint64(k, d.Number)
}

func splitDelayedKey(k []byte) (Delayed, error) {
	if len(k) != delayedKeyLen {
		return Delayed{}, fmt.Errorf("%w: the key of a delayed message", errCorrupt)
	}
	due, err := keyTime(k[1:])
	return Delayed{due, binary.BigEndian.Uint32(k[9:]), binary.BigEndian.Uint64(k[13:])}, err
}

// storedKey returns the key under which the message is found by the time at
// which it was stored.
func (d Delayed) storedKey(stored time.Time) []byte {
	k := append(make([]byte, 0, delayedKeyLen), prefixDelayedStored)
	k = binary.BigEndian.AppendUint32(k, d.Topic)
	k = binary.BigEndian.AppendUint64(k, keyNanos(stored))
	return binary.BigEndian.AppendUint64(k, d.Number)
}

// A StoredDelayed is what is known of a delayed message without reading it.
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
	return bytes.Compare(d.storedKey(d.Stored), other.storedKey(other.Stored)) > 0
}

// The form of its record, by storedKey: Due in nanoseconds since 1970, IDHash, Size.
func splitStored(k, v []byte) (d StoredDelayed, err error) {
	if len(k) != delayedKeyLen || len(v) < 16 {
		return d, fmt.Errorf("%w: when a delayed message was stored", errCorrupt)
	}
	stored, err := keyTime(k[5:])
	if err != nil {
		return d, err
	}
	r := reader{b: v, off: 16}
	size := r.uvarint()
	if r.err == nil && (r.off != len(v) || size > math.MaxInt32) {
		r.fail("the size of a delayed message cannot be")
	}
	return StoredDelayed{
		Delayed: Delayed{fromNanos(binary.BigEndian.Uint64(v)), binary.BigEndian.Uint32(k[1:]), binary.BigEndian.Uint64(k[13:])},
		Stored:  stored, IDHash: binary.BigEndian.Uint64(v[8:]), Size: int64(size),
	}, r.err
}

// PutDelayed writes a message that is to be delivered later.
func (b *Batch) PutDelayed(d Delayed, m *Message) {
	op := b.pebble().SetDeferred(delayedKeyLen, m.size())
	d.appendKey(op.Key[:0])
	m.encode(op.Value[:0])
	must(op.Finish())
	v := binary.BigEndian.AppendUint64(make([]byte, 0, 21), uint64(nanos(d.Due)))
	v = binary.BigEndian.AppendUint64(v, m.IDHash)
	must(b.pebble().Set(d.storedKey(m.StoredAt), binary.AppendUvarint(v, uint64(len(m.Body))), nil))
}

// DeleteDelayed removes one that was stored at that time: it is due, or it was recalled.
func (b *Batch) DeleteDelayed(d Delayed, stored time.Time) {
	must(b.pebble().Delete(d.appendKey(nil), nil))
	must(b.pebble().Delete(d.storedKey(stored), nil))
}

// NewestDelayed calls f with the delayed messages of a topic that were stored after since, the last
// one first, until f returns false. It reads none of them.
func (s *Store) NewestDelayed(topic uint32, since time.Time, f func(d *StoredDelayed) bool) error {
	lower := Delayed{Topic: topic}.storedKey(since)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: after(lower[:5])})
	if err != nil {
		return fmt.Errorf("reading delayed messages: %w", err)
	}
	defer it.Close()
	for ok := it.Last(); ok; ok = it.Prev() {
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("reading delayed messages: %w", err)
		}
		d, err := splitStored(it.Key(), v)
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
	lower := binary.BigEndian.AppendUint32([]byte{prefixDelayedStored}, topic)
	upper := after(lower)
	if from != (StoredDelayed{}) {
		lower = append(from.storedKey(from.Stored), 0)
	}
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, fmt.Errorf("reading delayed messages: %w", err)
	}
	defer it.Close()
	waiting, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixDelayed}, UpperBound: []byte{prefixDelayed + 1}})
	if err != nil {
		return nil, fmt.Errorf("reading delayed messages: %w", err)
	}
	defer waiting.Close()
	for ok := it.First(); ok && len(ds) < limit; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, fmt.Errorf("reading delayed messages: %w", err)
		}
		d, err := splitStored(it.Key(), v)
		if err != nil {
			return nil, err
		}
		k := d.appendKey(nil)
		d.Gone = !waiting.SeekGE(k) || !bytes.Equal(waiting.Key(), k)
		ds = append(ds, d)
	}
	return ds, errors.Join(it.Error(), waiting.Error())
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
// the time of the first one that it does not return; zero if there is none. None
// may be due before from: the traces of all that were there need not be passed over again.
// A message that is damaged has no ID. What cannot be read, for another reason, is an
// error if it comes first; behind others it ends what is returned, and next is not after it.
func (s *Store) Due(from, now time.Time, limit int, maxBytes int64) (ds []Delayed, ms []Message, next time.Time, err error) {
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: Delayed{Due: from}.appendKey(nil), UpperBound: []byte{prefixDelayed + 1}})
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
		d, err := splitDelayedKey(it.Key())
		if err != nil {
			return stopped(err)
		}
		if d.Due.After(now) || len(ds) == limit || len(ds) > 0 && maxBytes <= 0 {
			return ds, ms, d.Due, nil
		}
		var m Message
		v, err := it.ValueAndErr()
		if err == nil {
			err = decodeMessage(v, &m)
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
