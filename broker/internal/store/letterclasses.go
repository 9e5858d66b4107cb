package store

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

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
