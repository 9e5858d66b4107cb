package store

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// PutDelayed writes a message that is to be delivered later.
func (b *Batch) PutDelayed(d Delayed, m *Message) {
	op := b.pebble().SetDeferred(delayedKeyLen, m.EncodedSize())
	d.AppendKey(op.Key[:0])
	m.AppendTo(op.Value[:0])
	must(op.Finish())
	v := binary.BigEndian.AppendUint64(make([]byte, 0, 21), uint64(nanos(d.Due)))
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
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: prefixEnd(lower[:5])})
	if err != nil {
		return fmt.Errorf("reading delayed messages: %w", err)
	}
	defer it.Close()
	for ok := it.Last(); ok; ok = it.Prev() {
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("reading delayed messages: %w", err)
		}
		d, err := splitStoredDelayed(it.Key(), v)
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
	upper := prefixEnd(lower)
	if from != (StoredDelayed{}) {
		lower = append(from.StoredKey(from.Stored), 0)
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
		d, err := splitStoredDelayed(it.Key(), v)
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
	if err := decodeMessage(v, &m); err != nil {
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
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: Delayed{Due: from}.AppendKey(nil), UpperBound: []byte{prefixDelayed + 1}})
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

// PutHalf writes a half message, and the part of its state that the message determines.
func (b *Batch) PutHalf(id HalfID, m *Message, s HalfState) {
	s.Stored, s.IDHash, s.Size = m.StoredAt, m.IDHash, int64(len(m.Body))
	op := b.pebble().SetDeferred(halfKeyLen, m.EncodedSize())
	id.AppendKey(op.Key[:0], prefixHalf)
	m.AppendTo(op.Value[:0])
	must(op.Finish())
	b.putHalfState(id, s)
}

func (b *Batch) putHalfState(id HalfID, s HalfState) {
	must(b.pebble().Set(id.AppendKey(nil, prefixHalfState), s.Encode(), nil))
	must(b.pebble().Set(DueHalf{HalfID: id, Due: s.Due}.Key(), nil, nil))
}

// ChangeHalf writes another state of a half message.
func (b *Batch) ChangeHalf(id HalfID, before, after HalfState) {
	b.DeleteDueHalf(DueHalf{HalfID: id, Due: before.Due})
	b.putHalfState(id, after)
}

// DeleteHalf removes a half message: its transaction has ended.
func (b *Batch) DeleteHalf(id HalfID, s HalfState) {
	must(b.pebble().Delete(id.AppendKey(nil, prefixHalf), nil))
	must(b.pebble().Delete(id.AppendKey(nil, prefixHalfState), nil))
	b.DeleteDueHalf(DueHalf{HalfID: id, Due: s.Due})
}

// DeleteDueHalf removes an entry of the index by time that is out of date.
func (b *Batch) DeleteDueHalf(d DueHalf) { must(b.pebble().Delete(d.Key(), nil)) }

// deleteHalfMessages removes the half messages of a topic. Their entries in the
// index by time are out of date then.
func (b *Batch) deleteHalfMessages(topic uint32) {
	for _, prefix := range []byte{prefixHalf, prefixHalfState} {
		p := binary.BigEndian.AppendUint32([]byte{prefix}, topic)
		must(b.pebble().DeleteRange(p, prefixEnd(p), nil))
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
	ok, err = s.read(id.AppendKey(nil, prefixHalfState), func(v []byte) error {
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
	ok, err = s.read(id.AppendKey(nil, prefixHalf), func(v []byte) error { return decode(v, &m) })
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
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: DueHalf{Due: from}.Key(), UpperBound: []byte{prefixHalfDue + 1}})
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

// HalfMessages calls f with every half message's state.
func (s *Store) HalfMessages(f func(id HalfID, st HalfState) error) error {
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

// HalfMessagesOf calls f with the states of the half messages of a topic up to a number, the last
// one first, until f returns false.
func (s *Store) HalfMessagesOf(topic uint32, to uint64, f func(id HalfID, st HalfState) bool) error {
	lower := HalfID{Topic: topic}.AppendKey(nil, prefixHalfState)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: append(HalfID{Topic: topic, Number: to}.AppendKey(nil, prefixHalfState), 0)})
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

// PutClass writes a class of dead letters. The number identifies the class in its topic.
func (b *Batch) PutClass(topic, class uint32, c *LetterClass) {
	must(b.pebble().Set(appendClassKey(nil, topic, class), c.AppendTo(nil), nil))
}

// DeleteClass removes a class that has no letters any more.
func (b *Batch) DeleteClass(topic, class uint32) {
	must(b.pebble().Delete(appendClassKey(nil, topic, class), nil))
}

// PutClassOf writes the class of a dead letter.
func (b *Batch) PutClassOf(p Place, class uint32) {
	must(b.pebble().Set(appendClassOfKey(nil, p), binary.BigEndian.AppendUint32(nil, class), nil))
}

// DeleteClassesOf removes the records of PutClassOf for messages that are removed.
func (b *Batch) DeleteClassesOf(r Range) {
	from, to := classRange(r)
	if r.To == r.From+1 {
		must(b.pebble().Delete(from, nil))
		return
	}
	must(b.pebble().DeleteRange(from, to, nil))
}

func classRange(r Range) (from, to []byte) {
	return appendClassOfKey(nil, Place{Topic: r.Topic, Queue: r.Queue, Offset: r.From}),
		appendClassOfKey(nil, Place{Topic: r.Topic, Queue: r.Queue, Offset: r.To})
}

// Classes calls f with every class of dead letters.
func (s *Store) Classes(f func(topic, class uint32, c *LetterClass) error) error {
	return scan(s.messages, prefixClass, func(k, v []byte) error {
		topic, class, ok := splitClassKey(k)
		if !ok {
			return fmt.Errorf("%w: the key of a class of dead letters", errCorrupt)
		}
		c, err := decodeLetterClass(v)
		if err != nil {
			return err
		}
		return f(topic, class, &c)
	})
}

// ClassesOf calls f with the class of each dead letter in a range, in the order of the offsets. It
// reads the committed state, and no message.
func (s *Store) ClassesOf(r Range, f func(offset int64, class uint32)) error {
	from, to := classRange(r)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return fmt.Errorf("reading the classes of dead letters: %w", err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err == nil && len(v) != 4 {
			err = fmt.Errorf("%w: the class of a dead letter has %d bytes, not 4", errCorrupt, len(v))
		}
		if err != nil {
			return fmt.Errorf("reading the classes of dead letters: %w", err)
		}
		f(messageOffset(it.Key()), binary.BigEndian.Uint32(v))
	}
	if err := it.Error(); err != nil {
		return fmt.Errorf("reading the classes of dead letters: %w", err)
	}
	return nil
}

// Spilled messages are only on disk: they follow a message that blocks its whole message group for
// long. They have keys of a separate kind, so that those of one message group are adjacent and in
// order, and other readers do not iterate over them.

// PutSpilled writes a lease of a spilled message. l.Group has at most 255 bytes.
func (b *Batch) PutSpilled(group uint32, p Place, l *Lease) {
	must(b.pebble().Set(spilledKey(group, p, l.Group), l.AppendTo(make([]byte, 0, l.EncodedSize())), nil))
}

// DeleteSpilled removes one.
func (b *Batch) DeleteSpilled(group uint32, p Place, messageGroup string) {
	must(b.pebble().Delete(spilledKey(group, p, messageGroup), nil))
}

// PutParked writes why the message group of a message is parked.
func (b *Batch) PutParked(group uint32, p Place, reason string) {
	must(b.pebble().Set(appendLeaseKey(nil, prefixParked, group, p), []byte(reason), nil))
}

// DeleteParked removes that.
func (b *Batch) DeleteParked(group uint32, p Place) {
	must(b.pebble().Delete(appendLeaseKey(nil, prefixParked, group, p), nil))
}

// DeleteAllSpilled removes all spilled messages of a group in one queue.
func (b *Batch) DeleteAllSpilled(group, topic uint32, queue uint16) {
	p := appendCursorKey(nil, prefixSpilled, group, topic, queue)
	must(b.pebble().DeleteRange(p, prefixEnd(p), nil))
}

// DeleteProgress removes all that a group has in one queue but its cursor:
// leases, spilled messages, and why message groups are parked.
func (b *Batch) DeleteProgress(group, topic uint32, queue uint16) {
	for _, prefix := range progressPrefixes {
		p := appendCursorKey(nil, prefix, group, topic, queue)
		must(b.pebble().DeleteRange(p, prefixEnd(p), nil))
	}
}

// Spilled returns up to limit of the spilled messages of a message group in a queue, from an offset
// on, in order. It reads the committed state.
func (s *Store) Spilled(group, topic uint32, queue uint16, messageGroup string, from int64, limit int) (ls []Lease, offsets []int64, err error) {
	lower := spilledKey(group, Place{Topic: topic, Queue: queue, Offset: from}, messageGroup)
	it, err := s.groups.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: prefixEnd(lower[:len(lower)-8])})
	if err != nil {
		return nil, nil, fmt.Errorf("reading spilled messages: %w", err)
	}
	defer it.Close()
	for ok := it.First(); ok && len(ls) < limit; ok = it.Next() {
		p, l, err := decodeSpilled(it)
		if err != nil {
			return ls, offsets, err
		}
		ls, offsets = append(ls, l), append(offsets, p.Offset)
	}
	return ls, offsets, it.Error()
}

func decodeSpilled(it *pebble.Iterator) (Place, Lease, error) {
	var l Lease
	_, p, _, ok := splitSpilledKey(it.Key())
	if !ok {
		return p, l, fmt.Errorf("%w: the key of a spilled message", errCorrupt)
	}
	v, err := it.ValueAndErr()
	if err == nil {
		err = decodeLease(v, &l)
	}
	if err != nil {
		return p, l, fmt.Errorf("the lease of offset %d, which is spilled: %w", p.Offset, err)
	}
	return p, l, nil
}

// AllSpilled calls f with every spilled message: by queue, then by
// message group, then by offset.
func (s *Store) AllSpilled(f func(group uint32, p Place, messageGroup string, l Lease) error) error {
	return scan(s.groups, prefixSpilled, func(k, v []byte) error {
		g, p, messageGroup, ok := splitSpilledKey(k)
		if !ok {
			return fmt.Errorf("%w: the key of a spilled message", errCorrupt)
		}
		var l Lease
		if err := decodeLease(v, &l); err != nil {
			return fmt.Errorf("the lease of offset %d, which is spilled: %w", p.Offset, err)
		}
		return f(g, p, messageGroup, l)
	})
}

// AllParked calls f with the reason of every message group that is parked, and its failed message.
func (s *Store) AllParked(f func(group uint32, p Place, reason string) error) error {
	return scan(s.groups, prefixParked, func(k, v []byte) error {
		g, p, ok := splitLeaseKey(k)
		if !ok {
			return fmt.Errorf("%w: the key of a parked message", errCorrupt)
		}
		return f(g, p, string(v))
	})
}

// PutRecentIDs adds a record to the index.
func (b *Batch) PutRecentIDs(topic uint32, r RecentIDs) {
	op := b.pebble().SetDeferred(recentKeyLen, hashLen*len(r.Hashes))
	r.AppendKey(op.Key[:0], topic)
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
	must(b.pebble().DeleteRange(RecentIDs{At: from}.AppendKey(nil, topic), RecentIDs{At: to}.AppendKey(nil, topic), nil))
}

// DeleteAllRecentIDs removes the records of a topic.
func (b *Batch) DeleteAllRecentIDs(topic uint32) {
	p := appendRecentTopic(nil, topic)
	must(b.pebble().DeleteRange(p, prefixEnd(p), nil))
}

// RecentIDs calls f with the records of a topic's index whose last message was stored at since or
// later, the last one first, until f returns false. f must not keep the hashes. Corrupt records are
// skipped; the error is then that of one of them.
func (s *Store) RecentIDs(topic uint32, since time.Time, f func(RecentIDs) bool) error {
	upper := prefixEnd(appendRecentTopic(nil, topic))
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
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: p, UpperBound: prefixEnd(p)})
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
