package store

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// Spilled messages are only on disk: they follow a message that blocks its whole message group for
// long. They have keys of a separate kind, so that those of one message group are adjacent and in
// order, and other readers do not iterate over them.

// PutSpilled writes a lease of a spilled message. l.Group has at most 255 bytes.
func (b *Batch) PutSpilled(group uint32, p Place, l *Lease) {
	must(b.pebble().Set(record.SpilledKey(group, p, l.Group), l.AppendTo(make([]byte, 0, l.EncodedSize())), nil))
}

// DeleteSpilled removes one.
func (b *Batch) DeleteSpilled(group uint32, p Place, messageGroup string) {
	must(b.pebble().Delete(record.SpilledKey(group, p, messageGroup), nil))
}

// PutParked writes why the message group of a message is parked.
func (b *Batch) PutParked(group uint32, p Place, reason string) {
	must(b.pebble().Set(record.AppendLeaseKey(nil, record.PrefixParked, group, p), []byte(reason), nil))
}

// DeleteParked removes that.
func (b *Batch) DeleteParked(group uint32, p Place) {
	must(b.pebble().Delete(record.AppendLeaseKey(nil, record.PrefixParked, group, p), nil))
}

// DeleteAllSpilled removes all spilled messages of a group in one queue.
func (b *Batch) DeleteAllSpilled(group, topic uint32, queue uint16) {
	p := record.AppendCursorKey(nil, record.PrefixSpilled, group, topic, queue)
	must(b.pebble().DeleteRange(p, record.PrefixEnd(p), nil))
}

// DeleteProgress removes all that a group has in one queue but its cursor:
// leases, spilled messages, and why message groups are parked.
func (b *Batch) DeleteProgress(group, topic uint32, queue uint16) {
	for _, prefix := range record.ProgressPrefixes {
		p := record.AppendCursorKey(nil, prefix, group, topic, queue)
		must(b.pebble().DeleteRange(p, record.PrefixEnd(p), nil))
	}
}

// Spilled returns up to limit of the spilled messages of a message group in a queue, from an offset
// on, in order. It reads the committed state.
func (s *Store) Spilled(group, topic uint32, queue uint16, messageGroup string, from int64, limit int) (ls []Lease, offsets []int64, err error) {
	lower := record.SpilledKey(group, Place{Topic: topic, Queue: queue, Offset: from}, messageGroup)
	it, err := s.groups.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: record.PrefixEnd(lower[:len(lower)-8])})
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
	_, p, _, ok := record.SplitSpilledKey(it.Key())
	if !ok {
		return p, l, fmt.Errorf("%w: the key of a spilled message", record.ErrCorrupt)
	}
	v, err := it.ValueAndErr()
	if err == nil {
		err = record.DecodeLease(v, &l)
	}
	if err != nil {
		return p, l, fmt.Errorf("the lease of offset %d, which is spilled: %w", p.Offset, err)
	}
	return p, l, nil
}

// AllSpilled calls f with every spilled message: by queue, then by
// message group, then by offset.
func (s *Store) AllSpilled(f func(group uint32, p Place, messageGroup string, l Lease) error) error {
	return scan(s.groups, record.PrefixSpilled, func(k, v []byte) error {
		g, p, messageGroup, ok := record.SplitSpilledKey(k)
		if !ok {
			return fmt.Errorf("%w: the key of a spilled message", record.ErrCorrupt)
		}
		var l Lease
		if err := record.DecodeLease(v, &l); err != nil {
			return fmt.Errorf("the lease of offset %d, which is spilled: %w", p.Offset, err)
		}
		return f(g, p, messageGroup, l)
	})
}

// AllParked calls f with the reason of every message group that is parked, and its failed message.
func (s *Store) AllParked(f func(group uint32, p Place, reason string) error) error {
	return scan(s.groups, record.PrefixParked, func(k, v []byte) error {
		g, p, ok := record.SplitLeaseKey(k)
		if !ok {
			return fmt.Errorf("%w: the key of a parked message", record.ErrCorrupt)
		}
		return f(g, p, string(v))
	})
}
