package record

import "encoding/binary"

// Keys of the messages database. Numbers are big-endian, so that keys sort by them.
//
//	m topic(4) queue(2) offset(8)         a message
//	t name                                a topic's settings
//	g name                                a group's settings
//	a pattern                             the address settings of a pattern
//	n                                     the last number given to a topic or group
//	u                                     the limits of the whole broker, if they were changed in use
//	j                                     the wall clock when it was last trusted
//	y due(8) topic(4) number(8)           a delayed message
//	r topic(4) stored(8) number(8)        metadata of a delayed message, by storage time
//	h topic(4) number(8)                  a half message
//	i topic(4) number(8)                  its state
//	x due(8) topic(4) number(8)           the time of the next transaction check
//	d group(4) topic(4) queue(2) offset(8)  this message is a dead letter of the group already
//	f topic(4) queue(2)                     the first offset of a queue
//	s group(4) topic(4)                     the group receives from the topic
//	e topic(4) queue(2)                     messages removed from the middle of a queue
//	w topic(4)                              the number of delayed messages
//	q topic(4) stored(8) queue(2) end(8)    hashes of the IDs of messages before an offset
//	k                                       the key of these hashes
//	z topic(4) class(4)                     a class of dead letters
//	v topic(4) queue(2) offset(8)           the class of a dead letter
//
// Keys of the groups database:
//
//	c group(4) topic(4) queue(2)            a cursor
//	l group(4) topic(4) queue(2) offset(8)  a lease
//	b group(4) topic(4) queue(2) length(1) message group, offset(8)  the lease of a spilled message
//	p group(4) topic(4) queue(2) offset(8)  why the message group of the message is parked
//
// Key of both databases:
//
//	o                                       the position of the other database when this one was written
const (
	PrefixMessage    = 'm'
	PrefixTopic      = 't'
	PrefixGroup      = 'g'
	PrefixNumber     = 'n'
	PrefixAddress    = 'a'
	PrefixLimits     = 'u'
	PrefixClock      = 'j'
	PrefixDeadLetter = 'd'
	PrefixDelayed    = 'y'
	PrefixMark       = 'f'
	PrefixHalf       = 'h'
	PrefixHalfState  = 'i'
	PrefixHalfDue    = 'x'
	PrefixCursor     = 'c'
	PrefixLease      = 'l'
	PrefixSpilled    = 'b'
	PrefixParked     = 'p'
	PrefixOther      = 'o'

	PrefixSubscription  = 's'
	PrefixDelayedStored = 'r'
	PrefixRemoved       = 'e'
	PrefixWaiting       = 'w'
	PrefixRecentIDs     = 'q'
	PrefixIDKey         = 'k'
	PrefixClass         = 'z'
	PrefixClassOf       = 'v'
)

// ProgressPrefixes are the prefixes of a group's records in a queue except for its cursor.
var ProgressPrefixes = []byte{PrefixLease, PrefixSpilled, PrefixParked}

// The lengths of keys, in bytes.
const (
	MessageKeyLen = 1 + 4 + 2 + 8
	CursorKeyLen  = 1 + 4 + 4 + 2
	LeaseKeyLen   = CursorKeyLen + 8
)

// A Place names one message: a queue of a topic, and the offset in it.
type Place struct {
	Topic  uint32
	Queue  uint16
	Offset int64
}

// AppendTopicKey appends the common prefix of the keys of the messages of a topic.
func AppendTopicKey(k []byte, topic uint32) []byte {
	return binary.BigEndian.AppendUint32(append(k, PrefixMessage), topic)
}

// AppendQueueKey appends the common prefix of the keys of all messages of a queue.
func AppendQueueKey(k []byte, topic uint32, queue uint16) []byte {
	return binary.BigEndian.AppendUint16(AppendTopicKey(k, topic), queue)
}

// AppendMessageKey appends the key of a message, of MessageKeyLen bytes.
func AppendMessageKey(k []byte, p Place) []byte {
	return binary.BigEndian.AppendUint64(AppendQueueKey(k, p.Topic, p.Queue), uint64(p.Offset))
}

// MessageOffset returns the offset in the key of a message.
func MessageOffset(k []byte) int64 {
	return int64(binary.BigEndian.Uint64(k[MessageKeyLen-8:]))
}

// AppendMarkKey appends the key of the beginning of a queue.
func AppendMarkKey(k []byte, topic uint32, queue uint16) []byte {
	k = append(k, PrefixMark)
	k = binary.BigEndian.AppendUint32(k, topic)
	return binary.BigEndian.AppendUint16(k, queue)
}

// AppendGroupTopic appends the common prefix of a group's keys in a topic.
func AppendGroupTopic(k []byte, prefix byte, group, topic uint32) []byte {
	k = append(k, prefix)
	k = binary.BigEndian.AppendUint32(k, group)
	return binary.BigEndian.AppendUint32(k, topic)
}

// AppendCursorKey appends the key of a cursor, which has CursorKeyLen bytes, or for another prefix
// the common prefix of its keys in that queue.
func AppendCursorKey(k []byte, prefix byte, group, topic uint32, queue uint16) []byte {
	return binary.BigEndian.AppendUint16(AppendGroupTopic(k, prefix, group, topic), queue)
}

// AppendLeaseKey appends the key of a lease, of LeaseKeyLen bytes, or of another record that a
// group has of one message.
func AppendLeaseKey(k []byte, prefix byte, group uint32, p Place) []byte {
	return binary.BigEndian.AppendUint64(AppendCursorKey(k, prefix, group, p.Topic, p.Queue), uint64(p.Offset))
}

// SplitCursorKey reads a cursor's key; ok is false if it is not one.
func SplitCursorKey(k []byte) (group, topic uint32, queue uint16, ok bool) {
	if len(k) < CursorKeyLen {
		return 0, 0, 0, false
	}
	return binary.BigEndian.Uint32(k[1:]), binary.BigEndian.Uint32(k[5:]), binary.BigEndian.Uint16(k[9:]), true
}

// SplitLeaseKey reads a lease's key; ok is false if it is not one.
func SplitLeaseKey(k []byte) (group uint32, p Place, ok bool) {
	if len(k) != LeaseKeyLen {
		return 0, Place{}, false
	}
	g, t, q, _ := SplitCursorKey(k)
	return g, Place{Topic: t, Queue: q, Offset: int64(binary.BigEndian.Uint64(k[CursorKeyLen:]))}, true
}

// PrefixEnd returns the first key that does not begin with p.
func PrefixEnd(p []byte) []byte {
	end := append([]byte(nil), p...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
