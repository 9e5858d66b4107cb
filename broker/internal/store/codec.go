package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"github.com/dchest/siphash"

	"github.com/tidegate/tidegate"
)

// errCorrupt is wrapped by every failure to read a stored record.
var errCorrupt = errors.New("corrupt record")

func uvarintLen(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

func stringLen(s string) int { return uvarintLen(uint64(len(s))) + len(s) }

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// A reader decodes a record. After a failure all reads return zero, and err has the position of the
// failure.
type reader struct {
	b   []byte
	s   string // the same bytes; substrings of it cost no allocation
	off int
	err error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s at byte %d of %d", errCorrupt, what, r.off, len(r.b))
	}
	r.off = len(r.b)
}

func (r *reader) byte() byte {
	if r.off >= len(r.b) {
		r.fail("it ends early")
		return 0
	}
	r.off++
	return r.b[r.off-1]
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b[r.off:])
	if n <= 0 {
		r.fail("unreadable number")
		return 0
	}
	r.off += n
	return v
}

// count reads a number of things that take at least one byte each.
func (r *reader) count() int {
	n := r.uvarint()
	if n > uint64(len(r.b)-r.off) {
		r.fail("a count exceeds the record")
		return 0
	}
	return int(n)
}

func (r *reader) string() string {
	n := r.count()
	r.off += n
	if r.err != nil {
		return ""
	}
	return r.s[r.off-n : r.off]
}

// span reads a duration that is not negative.
func (r *reader) span() time.Duration {
	n := r.uvarint()
	if n > math.MaxInt64 {
		r.fail("a duration is too long")
		return 0
	}
	return time.Duration(n)
}

// nanos returns the form in which a time is stored: nanoseconds since 1970, 0 for the zero time.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// fromNanos decodes the result of Nanos.
func fromNanos(n uint64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(n))
}

// keyNanos is Nanos within a key. Keys sort like the times from 1970 on. An earlier time, for
// example the bound of a search, sorts first.
func keyNanos(t time.Time) uint64 { return uint64(max(0, nanos(t))) }

// keyTime decodes the result of keyNanos within a key. Other values are corruption.
func keyTime(b []byte) (time.Time, error) {
	n := binary.BigEndian.Uint64(b)
	if n > math.MaxInt64 {
		return time.Time{}, fmt.Errorf("%w: a key has a time before 1970", errCorrupt)
	}
	return fromNanos(n), nil
}

// The first byte of a stored message. Only messages with a priority have rankedVersion, and those of
// lite topics liteVersion, so that older programs read all others.
const (
	messageVersion = 1
	rankedVersion  = 2
	liteVersion    = 3
)

// A Message is a message as the log keeps it.
type Message struct {
	tidegate.Message

	// Cumulative is the sum of the bodies of the queue, in bytes, up to and
	// including this one.
	Cumulative int64

	BornAt   time.Time
	BornHost string
	StoredAt time.Time

	// IDHash is IDHash of the ID with the store's IDKey; 0: not known. It is not
	// part of the record, but kept beside those of delayed and half messages.
	IDHash uint64
}

// version returns the first byte of the record.
func (m *Message) version() byte {
	switch {
	case m.LiteTopic != "":
		return liteVersion
	case m.Priority > 0:
		return rankedVersion
	}
	return messageVersion
}

// The form of a stored message, after the version byte: the length of the
// header, the header, the body. The header is, in order: Cumulative, StoredAt,
// BornAt, DeliverAt (nanoseconds since 1970), ID, Tag, MessageGroup, BornHost,
// TraceContext, the keys, the properties, with rankedVersion the priority, and with
// liteVersion the lite topic. Strings and lists begin with their length.
func (m *Message) headerSize() int {
	n := uvarintLen(uint64(m.Cumulative)) + 24 +
		stringLen(m.ID) + stringLen(m.Tag) + stringLen(m.MessageGroup) + stringLen(m.BornHost) + stringLen(m.TraceContext) +
		uvarintLen(uint64(len(m.Keys))) + uvarintLen(uint64(len(m.Properties)))
	for _, k := range m.Keys {
		n += stringLen(k)
	}
	for k, v := range m.Properties {
		n += stringLen(k) + stringLen(v)
	}
	switch m.version() {
	case rankedVersion:
		n += uvarintLen(uint64(m.Priority))
	case liteVersion:
		n += stringLen(m.LiteTopic)
	}
	return n
}

// EncodedSize returns how many bytes AppendTo appends.
func (m *Message) EncodedSize() int {
	h := m.headerSize()
	return 1 + uvarintLen(uint64(h)) + h + len(m.Body)
}

// AppendTo appends the record to b. A capacity of EncodedSize avoids an allocation.
func (m *Message) AppendTo(b []byte) []byte {
	version := m.version()
	b = append(b, version)
	b = binary.AppendUvarint(b, uint64(m.headerSize()))
	b = binary.AppendUvarint(b, uint64(m.Cumulative))
	b = binary.BigEndian.AppendUint64(b, uint64(nanos(m.StoredAt)))
	b = binary.BigEndian.AppendUint64(b, uint64(nanos(m.BornAt)))
	b = binary.BigEndian.AppendUint64(b, uint64(nanos(m.DeliverAt)))
	for _, s := range [...]string{m.ID, m.Tag, m.MessageGroup, m.BornHost, m.TraceContext} {
		b = appendString(b, s)
	}
	b = binary.AppendUvarint(b, uint64(len(m.Keys)))
	for _, k := range m.Keys {
		b = appendString(b, k)
	}
	b = binary.AppendUvarint(b, uint64(len(m.Properties)))
	for k, v := range m.Properties {
		b = appendString(appendString(b, k), v)
	}
	switch version {
	case rankedVersion:
		b = binary.AppendUvarint(b, uint64(m.Priority))
	case liteVersion:
		b = appendString(b, m.LiteTopic)
	}
	return append(b, m.Body...)
}

// header splits a record and returns its header and body.
func header(v []byte) (head, body []byte, err error) {
	if len(v) == 0 || v[0] < messageVersion || v[0] > liteVersion {
		return nil, nil, fmt.Errorf("%w: it is not a message of the versions %d to %d", errCorrupt, messageVersion, liteVersion)
	}
	n, w := binary.Uvarint(v[1:])
	if w <= 0 || n > uint64(len(v)-1-w) {
		return nil, nil, fmt.Errorf("%w: its header is longer than the record", errCorrupt)
	}
	return v[1+w : 1+w+int(n)], v[1+w+int(n):], nil
}

// decodeMessage reads a stored message into m. It keeps nothing of v.
func decodeMessage(v []byte, m *Message) error {
	body, err := decodeHeader(v, m)
	if err != nil {
		return err
	}
	m.Body = append([]byte(nil), body...)
	return nil
}

// decodeHeader reads everything but the body, which it returns as a part of v.
func decodeHeader(v []byte, m *Message) (body []byte, err error) {
	head, body, err := header(v)
	if err != nil {
		return nil, err
	}
	r := reader{b: head, s: string(head)}
	m.Cumulative = int64(r.uvarint())
	if len(head)-r.off < 24 {
		r.fail("it ends within the times")
		return nil, r.err
	}
	m.StoredAt = fromNanos(binary.BigEndian.Uint64(head[r.off:]))
	m.BornAt = fromNanos(binary.BigEndian.Uint64(head[r.off+8:]))
	m.DeliverAt = fromNanos(binary.BigEndian.Uint64(head[r.off+16:]))
	r.off += 24
	m.ID, m.Tag, m.MessageGroup, m.BornHost, m.TraceContext = r.string(), r.string(), r.string(), r.string(), r.string()
	if n := r.count(); n > 0 {
		m.Keys = make([]string, n)
		for i := range m.Keys {
			m.Keys[i] = r.string()
		}
	}
	if n := r.count(); n > 0 {
		m.Properties = make(map[string]string, n)
		for range n {
			k := r.string()
			m.Properties[k] = r.string()
		}
	}
	switch v[0] {
	case rankedVersion:
		if n := r.uvarint(); n == 0 || n > math.MaxInt32 {
			r.fail("no priority")
		} else {
			m.Priority = int(n)
		}
	case liteVersion:
		if m.LiteTopic = r.string(); m.LiteTopic == "" {
			r.fail("no lite topic")
		}
	}
	if r.err == nil && r.off != len(head) {
		r.fail("unexpected bytes after the last property")
	}
	return body, r.err
}

// decodeID reads the ID of a stored message and when it was stored.
func decodeID(v []byte) (id string, at time.Time, err error) {
	head, _, err := header(v)
	if err != nil {
		return "", at, err
	}
	r := reader{b: head}
	r.uvarint()
	if len(head)-r.off < 24 {
		r.fail("it ends within the times")
		return "", at, r.err
	}
	at = fromNanos(binary.BigEndian.Uint64(head[r.off:]))
	r.off += 24
	n := r.count()
	if r.err != nil {
		return "", at, r.err
	}
	return string(head[r.off : r.off+n]), at, nil
}

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
//	l topic(4) queue(2)                     the lite topic of a queue; empty while it has none
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
	prefixMessage    = 'm'
	prefixTopic      = 't'
	prefixGroup      = 'g'
	prefixNumber     = 'n'
	prefixAddress    = 'a'
	prefixLimits     = 'u'
	prefixClock      = 'j'
	prefixDeadLetter = 'd'
	prefixDelayed    = 'y'
	prefixMark       = 'f'
	prefixHalf       = 'h'
	prefixHalfState  = 'i'
	prefixHalfDue    = 'x'
	prefixCursor     = 'c'
	prefixLease      = 'l'
	prefixSpilled    = 'b'
	prefixParked     = 'p'
	prefixOther      = 'o'

	prefixSubscription  = 's'
	prefixDelayedStored = 'r'
	prefixRemoved       = 'e'
	prefixWaiting       = 'w'
	prefixRecentIDs     = 'q'
	prefixIDKey         = 'k'
	prefixClass         = 'z'
	prefixClassOf       = 'v'
	prefixLite          = 'l'
)

// progressPrefixes are the prefixes of a group's records in a queue except for its cursor.
var progressPrefixes = []byte{prefixLease, prefixSpilled, prefixParked}

// The lengths of keys, in bytes.
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

// appendTopicKey appends the common prefix of the keys of the messages of a topic.
func appendTopicKey(k []byte, topic uint32) []byte {
	return binary.BigEndian.AppendUint32(append(k, prefixMessage), topic)
}

// appendQueueKey appends the common prefix of the keys of all messages of a queue.
func appendQueueKey(k []byte, topic uint32, queue uint16) []byte {
	return binary.BigEndian.AppendUint16(appendTopicKey(k, topic), queue)
}

// appendMessageKey appends the key of a message, of MessageKeyLen bytes.
func appendMessageKey(k []byte, p Place) []byte {
	return binary.BigEndian.AppendUint64(appendQueueKey(k, p.Topic, p.Queue), uint64(p.Offset))
}

// messageOffset returns the offset in the key of a message.
func messageOffset(k []byte) int64 {
	return int64(binary.BigEndian.Uint64(k[messageKeyLen-8:]))
}

// appendMarkKey appends the key of the beginning of a queue.
func appendMarkKey(k []byte, topic uint32, queue uint16) []byte {
	k = append(k, prefixMark)
	k = binary.BigEndian.AppendUint32(k, topic)
	return binary.BigEndian.AppendUint16(k, queue)
}

// appendGroupTopic appends the common prefix of a group's keys in a topic.
func appendGroupTopic(k []byte, prefix byte, group, topic uint32) []byte {
	k = append(k, prefix)
	k = binary.BigEndian.AppendUint32(k, group)
	return binary.BigEndian.AppendUint32(k, topic)
}

// appendCursorKey appends the key of a cursor, which has CursorKeyLen bytes, or for another prefix
// the common prefix of its keys in that queue.
func appendCursorKey(k []byte, prefix byte, group, topic uint32, queue uint16) []byte {
	return binary.BigEndian.AppendUint16(appendGroupTopic(k, prefix, group, topic), queue)
}

// appendLeaseKey appends the key of a lease, of LeaseKeyLen bytes, or of another record that a
// group has of one message.
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

// prefixEnd returns the first key that does not begin with p.
func prefixEnd(p []byte) []byte {
	end := append([]byte(nil), p...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// A Mark is the beginning of a queue. The messages before it were removed, except for single
// leftovers. It also keeps the offset of an empty queue.
type Mark struct {
	Offset int64
	Bytes  int64 // of the bodies before Offset
}

// Stored has the fields of a message's record that are not part of the message.
type Stored struct {
	At         time.Time
	Size       int64 // of the body, in bytes
	Cumulative int64 // see Message
}

// A Range is the messages of a queue from From on and before To.
type Range struct {
	Topic    uint32
	Queue    uint16
	From, To int64
}

// Without returns the parts of r in which none of the offsets is. They must be sorted.
func (r Range) Without(offsets []int64) []Range {
	var parts []Range
	add := func(to int64) {
		if r.From < to {
			parts = append(parts, Range{r.Topic, r.Queue, r.From, to})
		}
	}
	for _, o := range offsets {
		if o < r.From {
			continue
		}
		if o >= r.To {
			break
		}
		add(o)
		r.From = o + 1
	}
	add(r.To)
	return parts
}

// decodeMark reads a stored mark: Offset and Bytes.
func decodeMark(v []byte) (Mark, error) {
	if len(v) != 16 {
		return Mark{}, fmt.Errorf("%w: the first offset of a queue has %d bytes, not 16", errCorrupt, len(v))
	}
	m := Mark{int64(binary.BigEndian.Uint64(v)), int64(binary.BigEndian.Uint64(v[8:]))}
	if m.Offset < 0 || m.Bytes < 0 {
		return Mark{}, fmt.Errorf("%w: the first offset of a queue is negative", errCorrupt)
	}
	return m, nil
}

// decodeStored decodes the fields of a message's record that need no text of its header.
func decodeStored(v []byte) (Stored, error) {
	head, body, err := header(v)
	if err != nil {
		return Stored{}, err
	}
	cumulative, n := binary.Uvarint(head)
	if n <= 0 || len(head)-n < 8 {
		return Stored{}, fmt.Errorf("%w: it ends within the times", errCorrupt)
	}
	return Stored{At: fromNanos(binary.BigEndian.Uint64(head[n:])), Size: int64(len(body)), Cumulative: int64(cumulative)}, nil
}

// A Removed counts the messages that DeleteMessage has removed from a queue, and has the end of the
// queue, because its last message can be among them.
type Removed struct {
	Messages, Bytes int64
	End, Sum        int64 // as in QueueState
}

// decodeRemoved reads a stored Removed: its fields in their order.
func decodeRemoved(v []byte) (Removed, error) {
	if len(v) != 32 {
		return Removed{}, fmt.Errorf("%w: the count of removed messages of a queue has %d bytes, not 32", errCorrupt, len(v))
	}
	n := func(i int) int64 { return int64(binary.BigEndian.Uint64(v[8*i:])) }
	r := Removed{n(0), n(1), n(2), n(3)}
	if r.Messages < 0 || r.Bytes < 0 || r.End < r.Messages || r.Sum < r.Bytes {
		return Removed{}, fmt.Errorf("%w: the count of removed messages exceeds the messages of the queue", errCorrupt)
	}
	return r, nil
}

// A Waiting is how many messages of a topic wait for their delivery time, and
// the bytes of their bodies.
type Waiting struct{ Messages, Bytes int64 }

// decodeWaiting decodes the record of the waiting messages of a topic, and the topic from its key.
func decodeWaiting(k, v []byte) (topic uint32, n Waiting, err error) {
	if len(k) != 1+4 || len(v) != 16 {
		return 0, n, fmt.Errorf("%w: the count of delayed messages has %d bytes, not 16", errCorrupt, len(v))
	}
	n = Waiting{int64(binary.BigEndian.Uint64(v)), int64(binary.BigEndian.Uint64(v[8:]))}
	if n.Messages < 0 || n.Bytes < 0 {
		return 0, n, fmt.Errorf("%w: the count of delayed messages is negative", errCorrupt)
	}
	return binary.BigEndian.Uint32(k[1:]), n, nil
}

// leaseVersion is the first byte of a stored lease.
const leaseVersion = 1

// The bits of a lease's third byte.
const (
	leasePush     = 1
	leaseNegative = 2
	leaseRetain   = 4
	leaseBlocked  = 8
	leaseChanged  = 16
	leaseSpan     = 32 // Span follows the message group; records of earlier versions have none
)

// A Cursor is how far a group is in a queue.
type Cursor struct {
	Next  int64 // the offset of the first message that was never handed out
	Bytes int64 // of the queue's messages before Next

	// Rewound is when the group was last rewound in the queue, in nanoseconds
	// since 1970; 0 for never.
	Rewound int64
}

// A Lease is a group's state of one message that was delivered or skipped and is not finished.
type Lease struct {
	State    uint8         // the engine's number for the state
	Push     bool          // taken by a push consumer
	Negative bool          // waits after a negative acknowledgement or a snooze: the maximum of attempts does not end it
	Retain   bool          // retention does not remove the message before it is done: its message group was parked or blocked
	Blocked  bool          // its message group is blocked by it
	Changed  bool          // Serial is of a change of the invisible duration: one less is of the handle that it replaced
	Attempt  int           // deliveries made
	Serial   uint32        // of the handle that is valid
	Due      time.Time     // when the lease or the wait ends
	Span     time.Duration // from the moment at which Due was set to Due; 0 if it is not known
	Since    time.Time     // of the delivery, for leases that are renewed
	Stored   int64         // when the message was stored, in nanoseconds since 1970
	Size     int64         // bytes of the body
	Owner    string        // the client that keeps the lease alive; empty for none
	Group    string        // the message group; empty for none
}

// EncodedSize returns how many bytes AppendTo appends.
func (l *Lease) EncodedSize() int {
	n := 3 + uvarintLen(uint64(l.Attempt)) + 4 + 24 + uvarintLen(uint64(l.Size)) + stringLen(l.Owner) + stringLen(l.Group)
	if l.Span > 0 {
		n += uvarintLen(uint64(l.Span))
	}
	return n
}

// AppendTo appends the lease's record to b.
func (l *Lease) AppendTo(b []byte) []byte {
	flags := byte(0)
	if l.Push {
		flags |= leasePush
	}
	if l.Negative {
		flags |= leaseNegative
	}
	if l.Retain {
		flags |= leaseRetain
	}
	if l.Blocked {
		flags |= leaseBlocked
	}
	if l.Changed {
		flags |= leaseChanged
	}
	if l.Span > 0 {
		flags |= leaseSpan
	}
	b = append(b, leaseVersion, l.State, flags)
	b = binary.AppendUvarint(b, uint64(l.Attempt))
	b = binary.BigEndian.AppendUint32(b, l.Serial)
	b = binary.BigEndian.AppendUint64(b, uint64(nanos(l.Due)))
	b = binary.BigEndian.AppendUint64(b, uint64(nanos(l.Since)))
	b = binary.BigEndian.AppendUint64(b, uint64(l.Stored))
	b = binary.AppendUvarint(b, uint64(l.Size))
	b = appendString(b, l.Owner)
	b = appendString(b, l.Group)
	if l.Span > 0 {
		b = binary.AppendUvarint(b, uint64(l.Span))
	}
	return b
}

// decodeLease reads a stored lease into l. It keeps nothing of v.
func decodeLease(v []byte, l *Lease) error {
	r := reader{b: v, s: string(v)}
	if version := r.byte(); r.err == nil && version != leaseVersion {
		return fmt.Errorf("%w: it is not a lease of version %d", errCorrupt, leaseVersion)
	}
	l.State = r.byte()
	flags := r.byte()
	if flags&^(leasePush|leaseNegative|leaseRetain|leaseBlocked|leaseChanged|leaseSpan) != 0 {
		r.fail("it has an unknown flag")
	}
	l.Push, l.Negative, l.Retain = flags&leasePush != 0, flags&leaseNegative != 0, flags&leaseRetain != 0
	l.Blocked, l.Changed = flags&leaseBlocked != 0, flags&leaseChanged != 0
	attempt := r.uvarint()
	if attempt > 1<<31 {
		r.fail("the attempt number is too large")
	}
	l.Attempt = int(attempt)
	if len(v)-r.off < 28 {
		r.fail("it ends within the times")
		return r.err
	}
	l.Serial = binary.BigEndian.Uint32(v[r.off:])
	l.Due = fromNanos(binary.BigEndian.Uint64(v[r.off+4:]))
	l.Since = fromNanos(binary.BigEndian.Uint64(v[r.off+12:]))
	l.Stored = int64(binary.BigEndian.Uint64(v[r.off+20:]))
	r.off += 28
	l.Size = int64(r.uvarint())
	l.Owner, l.Group, l.Span = r.string(), r.string(), 0
	if flags&leaseSpan != 0 {
		l.Span = r.span()
	}
	if r.err == nil && r.off != len(v) {
		r.fail("unexpected bytes at the end")
	}
	return r.err
}

// decodeCursor reads a stored cursor: Next, Bytes and Rewound.
func decodeCursor(v []byte) (Cursor, error) {
	if len(v) != 24 {
		return Cursor{}, fmt.Errorf("%w: a cursor has %d bytes, not 24", errCorrupt, len(v))
	}
	c := Cursor{
		Next: int64(binary.BigEndian.Uint64(v)), Bytes: int64(binary.BigEndian.Uint64(v[8:])), Rewound: int64(binary.BigEndian.Uint64(v[16:])),
	}
	if c.Next < 0 || c.Bytes < 0 {
		return Cursor{}, fmt.Errorf("%w: a cursor is negative", errCorrupt)
	}
	return c, nil
}

// A LetterClass counts the dead letters of a group in a topic that have one fingerprint.
type LetterClass struct {
	Group       string // its name: dead letters outlive their group
	Fingerprint string // empty for the letters of all classes beyond a limit
	Topic       string // topic of the original sends
	Reason      string // of the latest letter
	Count       int64
	First, Last time.Time // when the first and the last of the letters were stored
	MaxRedrives int       // the largest number of earlier redrives of a letter
}

// AppendTo appends the stored form.
func (c *LetterClass) AppendTo(b []byte) []byte {
	for _, s := range [...]string{c.Group, c.Fingerprint, c.Topic, c.Reason} {
		b = appendString(b, s)
	}
	for _, n := range [...]uint64{uint64(c.Count), uint64(nanos(c.First)), uint64(nanos(c.Last)), uint64(c.MaxRedrives)} {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// decodeLetterClass reads the stored form.
func decodeLetterClass(v []byte) (c LetterClass, err error) {
	r := reader{b: v, s: string(v)}
	for _, s := range [...]*string{&c.Group, &c.Fingerprint, &c.Topic, &c.Reason} {
		*s = r.string()
	}
	c.Count = int64(r.uvarint())
	c.First, c.Last = fromNanos(r.uvarint()), fromNanos(r.uvarint())
	c.MaxRedrives = int(r.uvarint())
	if r.err == nil && (r.off != len(v) || c.Count <= 0) {
		r.fail("it has other bytes, or counts no letter")
	}
	if r.err != nil {
		return c, fmt.Errorf("a class of dead letters: %w", r.err)
	}
	return c, nil
}

// appendClassKey appends the key of a class.
func appendClassKey(k []byte, topic, class uint32) []byte {
	return appendGroupTopic(k, prefixClass, topic, class)
}

// splitClassKey reads the key of a class; ok is false if it is not one.
func splitClassKey(k []byte) (topic, class uint32, ok bool) {
	if len(k) != 1+4+4 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint32(k[1:]), binary.BigEndian.Uint32(k[5:]), true
}

// appendClassOfKey appends the key of the record that has the class of a letter.
func appendClassOfKey(k []byte, p Place) []byte {
	n := len(k)
	k = appendMessageKey(k, p)
	k[n] = prefixClassOf
	return k
}

// spilledKey returns the key of the lease of a spilled message. messageGroup has at most 255 bytes.
func spilledKey(group uint32, p Place, messageGroup string) []byte {
	k := appendCursorKey(nil, prefixSpilled, group, p.Topic, p.Queue)
	k = append(k, byte(len(messageGroup)))
	k = append(k, messageGroup...)
	return binary.BigEndian.AppendUint64(k, uint64(p.Offset))
}

// splitSpilledKey reads such a key; ok is false if it is not one.
func splitSpilledKey(k []byte) (group uint32, p Place, messageGroup string, ok bool) {
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

const (
	// minSeparated is from how many bytes on a value goes to a file of values.
	minSeparated = 256

	recentKeyLen = 1 + 4 + 8 + 2 + 8

	// hashLen is how many bytes of a hash a record has, the first ones.
	hashLen = 6

	// maxRecentIDs is how many IDs a record has at most. It stays among the
	// keys: larger ones would go to the files of messages' bodies, and have
	// compactions write these anew (a tenth more processor for each message).
	maxRecentIDs = (minSeparated - 1) / hashLen
)

// A RecentIDs is a record of the index of message IDs: the hashes of the IDs of consecutive
// messages of a queue. The stored messages decide: the record can name messages that were removed,
// and messages can be missing in it.
type RecentIDs struct {
	Queue  uint16
	End    int64     // the offset after the last of them
	At     time.Time // when the last of them was stored
	Hashes []uint64  // by IDKey.Hash, in their order, at most MaxRecentIDs
}

// First returns the offset of the first one.
func (r RecentIDs) First() int64 { return r.End - int64(len(r.Hashes)) }

// AppendKey appends the record's key. Keys sort by time within the topic, so that the old records
// are one range.
func (r RecentIDs) AppendKey(k []byte, topic uint32) []byte {
	k = binary.BigEndian.AppendUint64(appendRecentTopic(k, topic), keyNanos(r.At))
	k = binary.BigEndian.AppendUint16(k, r.Queue)
	return binary.BigEndian.AppendUint64(k, uint64(r.End))
}

// appendRecentTopic appends the common prefix of the keys of a topic's RecentIDs.
func appendRecentTopic(k []byte, topic uint32) []byte {
	return binary.BigEndian.AppendUint32(append(k, prefixRecentIDs), topic)
}

// decodeRecentIDs reads a record, its hashes into those of r.
func decodeRecentIDs(k, v []byte, r *RecentIDs) error {
	if len(k) != recentKeyLen {
		return fmt.Errorf("%w: the key of recent message IDs has %d bytes", errCorrupt, len(k))
	}
	at, err := keyTime(k[5:])
	if err != nil {
		return err
	}
	r.At = at
	r.Queue, r.End = binary.BigEndian.Uint16(k[13:]), int64(binary.BigEndian.Uint64(k[15:]))
	r.Hashes = r.Hashes[:0]
	if len(v)%hashLen != 0 || len(v) == 0 || len(v) > hashLen*maxRecentIDs || r.End < int64(len(v)/hashLen) {
		return fmt.Errorf("%w: recent message IDs up to offset %d have %d bytes", errCorrupt, r.End, len(v))
	}
	for ; len(v) > 0; v = v[hashLen:] {
		r.Hashes = append(r.Hashes, uint64(binary.BigEndian.Uint32(v))<<32|uint64(binary.BigEndian.Uint16(v[4:]))<<16)
	}
	return nil
}

// An IDKey is the secret of a store's hashes of message IDs. A client that does not know it cannot
// choose IDs with equal or adjacent hashes.
type IDKey struct{ K0, K1 uint64 }

// Hash returns the hash of an ID in the form in which it is stored. The lowest bits of the hash are
// 0; the hash is never 0.
func (k IDKey) Hash(id string) uint64 {
	const unit = 1 << (64 - 8*hashLen)
	// Hash reads the bytes only; copies of the usual IDs would be allocated.
	return max(siphash.Hash(k.K0, k.K1, unsafe.Slice(unsafe.StringData(id), len(id)))&^(unit-1), unit)
}

// decodeIDKey reads the stored key.
func decodeIDKey(v []byte) (IDKey, error) {
	if len(v) != 16 {
		return IDKey{}, fmt.Errorf("%w: it has %d bytes, not 16", errCorrupt, len(v))
	}
	return IDKey{binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])}, nil
}

const delayedKeyLen = 1 + 8 + 4 + 8

// A Delayed names a message that waits for its delivery time.
type Delayed struct {
	Due    time.Time
	Topic  uint32
	Number uint64 // distinguishes messages of one time and topic
}

// AppendKey appends the key of the message to k.
func (d Delayed) AppendKey(k []byte) []byte {
	k = append(k, prefixDelayed)
	k = binary.BigEndian.AppendUint64(k, keyNanos(d.Due))
	k = binary.BigEndian.AppendUint32(k, d.Topic)
	return binary.BigEndian.AppendUint64(k, d.Number)
}

// splitDelayedKey decodes the key of AppendKey.
func splitDelayedKey(k []byte) (Delayed, error) {
	if len(k) != delayedKeyLen {
		return Delayed{}, fmt.Errorf("%w: the key of a delayed message", errCorrupt)
	}
	due, err := keyTime(k[1:])
	return Delayed{due, binary.BigEndian.Uint32(k[9:]), binary.BigEndian.Uint64(k[13:])}, err
}

// StoredKey returns the key under which the message is found by the time at
// which it was stored.
func (d Delayed) StoredKey(stored time.Time) []byte {
	k := append(make([]byte, 0, delayedKeyLen), prefixDelayedStored)
	k = binary.BigEndian.AppendUint32(k, d.Topic)
	k = binary.BigEndian.AppendUint64(k, keyNanos(stored))
	return binary.BigEndian.AppendUint64(k, d.Number)
}

// A StoredDelayed has the fields of a delayed message that need no read of the message.
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
	return bytes.Compare(d.StoredKey(d.Stored), other.StoredKey(other.Stored)) > 0
}

// splitStoredDelayed reads the record by StoredKey. Its value is Due in nanoseconds since 1970,
// IDHash, Size.
func splitStoredDelayed(k, v []byte) (d StoredDelayed, err error) {
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
		r.fail("the size of a delayed message is invalid")
	}
	return StoredDelayed{
		Delayed: Delayed{fromNanos(binary.BigEndian.Uint64(v)), binary.BigEndian.Uint32(k[1:]), binary.BigEndian.Uint64(k[13:])},
		Stored:  stored, IDHash: binary.BigEndian.Uint64(v[8:]), Size: int64(size),
	}, r.err
}

const (
	halfKeyLen    = 1 + 4 + 8
	dueHalfKeyLen = 1 + 8 + 4 + 8
)

// A HalfID identifies a half message: a message with an unresolved transaction.
type HalfID struct {
	Topic  uint32
	Number uint64 // distinguishes messages of one topic, in the order in which they were stored
}

// A HalfState has the time of the next check of a half message and the number of its checks, beside
// its constant fields.
type HalfState struct {
	Due    time.Time
	Span   time.Duration // from the moment at which Due was set to Due; 0 if it is not known
	Checks int

	Stored time.Time // when the message was stored
	IDHash uint64    // see Message
	Size   int64     // of its body, in bytes
}

// A DueHalf is an entry of the index by time. The entry is out of date if the half message no
// longer exists, or is due at another time.
type DueHalf struct {
	HalfID
	Due time.Time
}

// AppendKey appends the key of the half message, or the key of its state, to k. prefix selects the
// key.
func (id HalfID) AppendKey(k []byte, prefix byte) []byte {
	k = append(k, prefix)
	k = binary.BigEndian.AppendUint32(k, id.Topic)
	return binary.BigEndian.AppendUint64(k, id.Number)
}

// splitHalfKey decodes the key of HalfID.AppendKey.
func splitHalfKey(k []byte) (HalfID, error) {
	if len(k) != halfKeyLen {
		return HalfID{}, fmt.Errorf("%w: the key of a half message", errCorrupt)
	}
	return HalfID{binary.BigEndian.Uint32(k[1:]), binary.BigEndian.Uint64(k[5:])}, nil
}

// Key returns the key of the entry. Entries have no value.
func (d DueHalf) Key() []byte {
	k := append(make([]byte, 0, dueHalfKeyLen), prefixHalfDue)
	k = binary.BigEndian.AppendUint64(k, keyNanos(d.Due))
	k = binary.BigEndian.AppendUint32(k, d.Topic)
	return binary.BigEndian.AppendUint64(k, d.Number)
}

// splitDueHalfKey decodes the key of DueHalf.Key.
func splitDueHalfKey(k []byte) (DueHalf, error) {
	if len(k) != dueHalfKeyLen {
		return DueHalf{}, fmt.Errorf("%w: the key of a half message's next check", errCorrupt)
	}
	due, err := keyTime(k[1:])
	return DueHalf{HalfID{binary.BigEndian.Uint32(k[9:]), binary.BigEndian.Uint64(k[13:])}, due}, err
}

// Encode returns the record of a state: Due and Stored in nanoseconds since 1970, IDHash, Checks,
// Size, and Span unless it is 0. Records of earlier versions have no Span.
func (s HalfState) Encode() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 40), uint64(nanos(s.Due)))
	b = binary.BigEndian.AppendUint64(b, uint64(nanos(s.Stored)))
	b = binary.BigEndian.AppendUint64(b, s.IDHash)
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(s.Checks)), uint64(s.Size))
	if s.Span > 0 {
		b = binary.AppendUvarint(b, uint64(s.Span))
	}
	return b
}

// decodeHalfState decodes the result of Encode.
func decodeHalfState(v []byte) (HalfState, error) {
	if len(v) < 24 {
		return HalfState{}, fmt.Errorf("%w: the state of a half message has %d bytes", errCorrupt, len(v))
	}
	r := reader{b: v, off: 24}
	n, size := r.uvarint(), r.uvarint()
	var span time.Duration
	if r.err == nil && r.off < len(v) {
		span = r.span()
	}
	if r.err == nil && (r.off != len(v) || n > math.MaxInt32 || size > math.MaxInt32) {
		r.fail("the state of a half message is invalid")
	}
	return HalfState{
		Due: fromNanos(binary.BigEndian.Uint64(v)), Span: span, Checks: int(n),
		Stored: fromNanos(binary.BigEndian.Uint64(v[8:])), IDHash: binary.BigEndian.Uint64(v[16:]), Size: int64(size),
	}, r.err
}
