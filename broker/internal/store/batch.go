package store

import (
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// A Batch takes the writes of one Add. Its methods cannot fail: they write to memory.
type Batch pebble.Batch

func (b *Batch) pebble() *pebble.Batch { return (*pebble.Batch)(b) }

// must reports a bug: writing to a batch in memory fails only on wrong use.
func must(err error) {
	if err != nil {
		panic("store: " + err.Error())
	}
}

// PutMessage writes a message to the log.
func (b *Batch) PutMessage(p Place, m *Message) {
	op := b.pebble().SetDeferred(record.MessageKeyLen, m.EncodedSize())
	record.AppendMessageKey(op.Key[:0], p)
	m.AppendTo(op.Value[:0])
	must(op.Finish())
}

// PutLease writes a lease.
func (b *Batch) PutLease(group uint32, p Place, l *Lease) {
	op := b.pebble().SetDeferred(record.LeaseKeyLen, l.EncodedSize())
	record.AppendLeaseKey(op.Key[:0], record.PrefixLease, group, p)
	l.AppendTo(op.Value[:0])
	must(op.Finish())
}

// DeleteLease removes a lease: the message is consumed, or given up.
func (b *Batch) DeleteLease(group uint32, p Place) {
	op := b.pebble().DeleteDeferred(record.LeaseKeyLen)
	record.AppendLeaseKey(op.Key[:0], record.PrefixLease, group, p)
	must(op.Finish())
}

// PutCursor writes how far a group is in a queue: the offset of the next
// message that was never handed out, and the queue's bytes before it.
func (b *Batch) PutCursor(group, topic uint32, queue uint16, c Cursor) {
	op := b.pebble().SetDeferred(record.CursorKeyLen, 24)
	record.AppendCursorKey(op.Key[:0], record.PrefixCursor, group, topic, queue)
	binary.BigEndian.PutUint64(op.Value, uint64(c.Next))
	binary.BigEndian.PutUint64(op.Value[8:], uint64(c.Bytes))
	binary.BigEndian.PutUint64(op.Value[16:], uint64(c.Rewound))
	must(op.Finish())
}

// MarkDeadLetter notes that the message is a dead letter of the group, so
// that it does not become another one if the process ends before its lease is removed.
// rewound is its cursor's: a message that is consumed anew may die anew.
func (b *Batch) MarkDeadLetter(group uint32, p Place, rewound int64) {
	must(b.pebble().Set(record.AppendLeaseKey(nil, record.PrefixDeadLetter, group, p), binary.BigEndian.AppendUint64(nil, uint64(rewound)), nil))
}

// PutTopic writes a topic's settings.
func (b *Batch) PutTopic(name string, v []byte) {
	must(b.pebble().Set(append([]byte{record.PrefixTopic}, name...), v, nil))
}

// PutGroup writes a group's settings.
func (b *Batch) PutGroup(name string, v []byte) {
	must(b.pebble().Set(append([]byte{record.PrefixGroup}, name...), v, nil))
}

// PutAddressSettings writes the address settings of a pattern.
func (b *Batch) PutAddressSettings(match string, v []byte) {
	must(b.pebble().Set(append([]byte{record.PrefixAddress}, match...), v, nil))
}

// DeleteAddressSettings removes them.
func (b *Batch) DeleteAddressSettings(match string) {
	must(b.pebble().Delete(append([]byte{record.PrefixAddress}, match...), nil))
}

// PutNumber writes the last number given to a topic or group.
func (b *Batch) PutNumber(n uint32) {
	must(b.pebble().Set([]byte{record.PrefixNumber}, binary.BigEndian.AppendUint32(nil, n), nil))
}

// PutLimits writes the limits of the whole broker.
func (b *Batch) PutLimits(v []byte) { must(b.pebble().Set([]byte{record.PrefixLimits}, v, nil)) }

// DeleteLimits removes them.
func (b *Batch) DeleteLimits() { must(b.pebble().Delete([]byte{record.PrefixLimits}, nil)) }

// DeleteTopic removes a topic's settings and messages, except for the leftovers of groups
// (DeleteSubscriptionOfTopic) and for its delayed messages, which DelayedOf still finds.
func (b *Batch) DeleteTopic(name string, topic uint32) {
	must(b.pebble().Delete(append([]byte{record.PrefixTopic}, name...), nil))
	for _, prefix := range []byte{record.PrefixMessage, record.PrefixMark, record.PrefixRemoved, record.PrefixWaiting, record.PrefixRecentIDs, record.PrefixClass, record.PrefixClassOf} {
		p := binary.BigEndian.AppendUint32([]byte{prefix}, topic)
		must(b.pebble().DeleteRange(p, record.PrefixEnd(p), nil))
	}
	b.deleteHalfMessages(topic)
}

// DeleteGroup removes a group's settings, the marks of its dead letters, and its subscriptions.
func (b *Batch) DeleteGroup(name string, group uint32) {
	must(b.pebble().Delete(append([]byte{record.PrefixGroup}, name...), nil))
	for _, prefix := range []byte{record.PrefixDeadLetter, record.PrefixSubscription} {
		p := binary.BigEndian.AppendUint32([]byte{prefix}, group)
		must(b.pebble().DeleteRange(p, record.PrefixEnd(p), nil))
	}
}

// DeleteSubscription removes all that a group has in a topic.
func (b *Batch) DeleteSubscription(group, topic uint32) {
	for _, prefix := range append([]byte{record.PrefixCursor}, record.ProgressPrefixes...) {
		p := binary.BigEndian.AppendUint32([]byte{prefix}, group)
		p = binary.BigEndian.AppendUint32(p, topic)
		must(b.pebble().DeleteRange(p, record.PrefixEnd(p), nil))
	}
}
