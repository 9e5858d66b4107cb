package store

import "encoding/binary"

// Keys of the messages database. Numbers are big-endian, so that keys sort by them.
//
//	m topic(4) queue(2) offset(8)         a message
//	t name                                a topic's settings
//	g name                                a group's settings
//	a pattern                             the address settings of a pattern
//	n                                     the last number given to a topic or group
//	y due(8) topic(4) number(8)           a message to deliver later
//	r topic(4) stored(8) number(8)        what is known of such a message, by the time at which it was stored
//	h topic(4) number(8)                  a half message
//	i topic(4) number(8)                  its state
//	x due(8) topic(4) number(8)           when its producer is asked next
//	d group(4) topic(4) queue(2) offset(8)  this message is a dead letter of the group already
//	f topic(4) queue(2)                     where a queue begins
//	s group(4) topic(4)                     the group receives from the topic
//	e topic(4) queue(2)                     what was removed from the middle of a queue
//	w topic(4)                              how many messages wait for their delivery time
//	q topic(4) stored(8) queue(2) end(8)    hashes of the IDs of messages before an offset
//	k                                       the key of these hashes
//
// Keys of the groups database:
//
//	c group(4) topic(4) queue(2)            a cursor
//	l group(4) topic(4) queue(2) offset(8)  a lease
//	b group(4) topic(4) queue(2) length(1) message group, offset(8)  a lease that is set aside
//	p group(4) topic(4) queue(2) offset(8)  why the message group of this message is parked
const (
	prefixMessage    = 'm'
	prefixTopic      = 't'
	prefixGroup      = 'g'
	prefixNumber     = 'n'
	prefixAddress    = 'a'
	prefixDeadLetter = 'd'
	prefixDelayed    = 'y'
	prefixMark       = 'f'
	prefixHalf       = 'h'
	prefixHalfState  = 'i'
	prefixHalfDue    = 'x'
	prefixCursor     = 'c'
	prefixLease      = 'l'
	prefixAside      = 'b'
	prefixParked     = 'p'

	prefixSubscription  = 's'
	prefixDelayedStored = 'r'
	prefixRemoved       = 'e'
	prefixWaiting       = 'w'
	prefixRecentIDs     = 'q'
	prefixIDKey         = 'k'
)

// progressPrefixes are of what a group has in a queue beside its cursor.
var progressPrefixes = []byte{prefixLease, prefixAside, prefixParked}

const (
	messageKeyLen = 1 + 4 + 2 + 8
	cursorKeyLen  = 1 + 4 + 4 + 2
	leaseKeyLen   = cursorKeyLen + 8
)

// A Place names one message: a queue of a topic, and the offset in it.
type Place struct {
	Topic  uint32
	Queue  uint16
	Offset int64
}

func appendQueue(k []byte, topic uint32, queue uint16) []byte {
	k = append(k, prefixMessage)
	k = binary.BigEndian.AppendUint32(k, topic)
	return binary.BigEndian.AppendUint16(k, queue)
}

func appendMessageKey(k []byte, p Place) []byte {
	return binary.BigEndian.AppendUint64(appendQueue(k, p.Topic, p.Queue), uint64(p.Offset))
}

func offsetOfMessageKey(k []byte) int64 {
	return int64(binary.BigEndian.Uint64(k[messageKeyLen-8:]))
}

func appendMarkKey(k []byte, topic uint32, queue uint16) []byte {
	k = append(k, prefixMark)
	k = binary.BigEndian.AppendUint32(k, topic)
	return binary.BigEndian.AppendUint16(k, queue)
}

func appendGroupTopic(k []byte, prefix byte, group, topic uint32) []byte {
	k = append(k, prefix)
	k = binary.BigEndian.AppendUint32(k, group)
	return binary.BigEndian.AppendUint32(k, topic)
}

func appendCursorKey(k []byte, prefix byte, group, topic uint32, queue uint16) []byte {
	return binary.BigEndian.AppendUint16(appendGroupTopic(k, prefix, group, topic), queue)
}

func appendLeaseKey(k []byte, prefix byte, group uint32, p Place) []byte {
	return binary.BigEndian.AppendUint64(appendCursorKey(k, prefix, group, p.Topic, p.Queue), uint64(p.Offset))
}

// splitCursorKey reads a cursor's key; ok is false if it is not one.
func splitCursorKey(k []byte) (group, topic uint32, queue uint16, ok bool) {
	if len(k) < cursorKeyLen {
		return 0, 0, 0, false
	}
	return binary.BigEndian.Uint32(k[1:]), binary.BigEndian.Uint32(k[5:]), binary.BigEndian.Uint16(k[9:]), true
}

// splitLeaseKey reads a lease's key; ok is false if it is not one.
func splitLeaseKey(k []byte) (group uint32, p Place, ok bool) {
	if len(k) != leaseKeyLen {
		return 0, Place{}, false
	}
	g, t, q, _ := splitCursorKey(k)
	return g, Place{Topic: t, Queue: q, Offset: int64(binary.BigEndian.Uint64(k[cursorKeyLen:]))}, true
}

// after returns the first key that does not begin with p.
func after(p []byte) []byte {
	end := append([]byte(nil), p...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
