package store

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// What is set aside is kept on disk only: the messages behind one that holds
// its whole message group for long. They have a key of their own kind, so that
// those of one message group lie together, in order, and nobody else passes over them.

func asideKey(group uint32, p Place, messageGroup string) []byte {
	k := appendCursorKey(nil, prefixAside, group, p.Topic, p.Queue)
	k = append(k, byte(len(messageGroup)))
	k = append(k, messageGroup...)
	return binary.BigEndian.AppendUint64(k, uint64(p.Offset))
}

// splitAsideKey reads such a key; ok is false if it is not one.
func splitAsideKey(k []byte) (group uint32, p Place, messageGroup string, ok bool) {
	g, t, q, ok := splitCursorKey(k)
	if !ok || len(k) <= cursorKeyLen {
		return 0, Place{}, "", false
	}
	n := int(k[cursorKeyLen])
	rest := k[cursorKeyLen+1:]
	if len(rest) != n+8 {
		return 0, Place{}, "", false
	}
	return g, Place{Topic: t, Queue: q, Offset: int64(binary.BigEndian.Uint64(rest[n:]))}, string(rest[:n]), true
}

// PutAside writes a lease of a message that is set aside. l.Group has at most 255 bytes.
func (b *Batch) PutAside(group uint32, p Place, l *Lease) {
	must(b.pebble().Set(asideKey(group, p, l.Group), l.encode(make([]byte, 0, l.size())), nil))
}

// DeleteAside removes one.
func (b *Batch) DeleteAside(group uint32, p Place, messageGroup string) {
	must(b.pebble().Delete(asideKey(group, p, messageGroup), nil))
}

// PutParked writes why the message group of a message is parked.
func (b *Batch) PutParked(group uint32, p Place, reason string) {
	must(b.pebble().Set(appendLeaseKey(nil, prefixParked, group, p), []byte(reason), nil))
}

// DeleteParked removes that.
func (b *Batch) DeleteParked(group uint32, p Place) {
	must(b.pebble().Delete(appendLeaseKey(nil, prefixParked, group, p), nil))
}

// DeleteAsides removes all that a group has set aside in one queue.
func (b *Batch) DeleteAsides(group, topic uint32, queue uint16) {
	p := appendCursorKey(nil, prefixAside, group, topic, queue)
	must(b.pebble().DeleteRange(p, after(p), nil))
}

// DeleteProgress removes all that a group has in one queue but its cursor:
// leases, what is set aside, and why message groups are parked.
func (b *Batch) DeleteProgress(group, topic uint32, queue uint16) {
	for _, prefix := range progressPrefixes {
		p := appendCursorKey(nil, prefix, group, topic, queue)
		must(b.pebble().DeleteRange(p, after(p), nil))
	}
}

// Aside returns up to limit of the messages of a message group that are set
// aside in a queue, from an offset on, in order. It sees what is committed.
func (s *Store) Aside(group, topic uint32, queue uint16, messageGroup string, from int64, limit int) (ls []Lease, offsets []int64, err error) {
	lower := asideKey(group, Place{topic, queue, from}, messageGroup)
	it, err := s.groups.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: after(lower[:len(lower)-8])})
	if err != nil {
		return nil, nil, fmt.Errorf("reading what is set aside: %w", err)
	}
	defer it.Close()
	for ok := it.First(); ok && len(ls) < limit; ok = it.Next() {
		p, l, err := decodeAside(it)
		if err != nil {
			return ls, offsets, err
		}
		ls, offsets = append(ls, l), append(offsets, p.Offset)
	}
	return ls, offsets, it.Error()
}

func decodeAside(it *pebble.Iterator) (Place, Lease, error) {
	var l Lease
	_, p, _, ok := splitAsideKey(it.Key())
	if !ok {
		return p, l, fmt.Errorf("%w: the key of a message that is set aside", errCorrupt)
	}
	v, err := it.ValueAndErr()
	if err == nil {
		err = decodeLease(v, &l)
	}
	if err != nil {
		return p, l, fmt.Errorf("the lease of offset %d, which is set aside: %w", p.Offset, err)
	}
	return p, l, nil
}

// AllAside calls f with every message that is set aside: by queue, then by
// message group, then by offset.
func (s *Store) AllAside(f func(group uint32, p Place, messageGroup string, l Lease) error) error {
	return scan(s.groups, prefixAside, func(k, v []byte) error {
		g, p, messageGroup, ok := splitAsideKey(k)
		if !ok {
			return fmt.Errorf("%w: the key of a message that is set aside", errCorrupt)
		}
		var l Lease
		if err := decodeLease(v, &l); err != nil {
			return fmt.Errorf("the lease of offset %d, which is set aside: %w", p.Offset, err)
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
