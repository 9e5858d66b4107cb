package record

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
)

// messageVersion is the first byte of a stored message.
const messageVersion = 1

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

// The form of a stored message, after the version byte: the length of the
// header, the header, the body. The header is, in order: Cumulative, StoredAt,
// BornAt, DeliverAt (nanoseconds since 1970), ID, Tag, MessageGroup, BornHost,
// TraceContext, the keys, the properties. Strings and lists begin with their length.
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
	return n
}

// EncodedSize returns how many bytes AppendTo appends.
func (m *Message) EncodedSize() int {
	h := m.headerSize()
	return 1 + uvarintLen(uint64(h)) + h + len(m.Body)
}

// AppendTo appends the record to b. A capacity of EncodedSize avoids an allocation.
func (m *Message) AppendTo(b []byte) []byte {
	b = append(b, messageVersion)
	b = binary.AppendUvarint(b, uint64(m.headerSize()))
	b = binary.AppendUvarint(b, uint64(m.Cumulative))
	b = binary.BigEndian.AppendUint64(b, uint64(Nanos(m.StoredAt)))
	b = binary.BigEndian.AppendUint64(b, uint64(Nanos(m.BornAt)))
	b = binary.BigEndian.AppendUint64(b, uint64(Nanos(m.DeliverAt)))
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
	return append(b, m.Body...)
}

// header splits a record and returns its header and body.
func header(v []byte) (head, body []byte, err error) {
	if len(v) == 0 || v[0] != messageVersion {
		return nil, nil, fmt.Errorf("%w: it is not a message of version %d", ErrCorrupt, messageVersion)
	}
	n, w := binary.Uvarint(v[1:])
	if w <= 0 || n > uint64(len(v)-1-w) {
		return nil, nil, fmt.Errorf("%w: its header is longer than the record", ErrCorrupt)
	}
	return v[1+w : 1+w+int(n)], v[1+w+int(n):], nil
}

// DecodeMessage reads a stored message into m. It keeps nothing of v.
func DecodeMessage(v []byte, m *Message) error {
	body, err := DecodeHeader(v, m)
	if err != nil {
		return err
	}
	m.Body = append([]byte(nil), body...)
	return nil
}

// DecodeHeader reads everything but the body, which it returns as a part of v.
func DecodeHeader(v []byte, m *Message) (body []byte, err error) {
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
	if r.err == nil && r.off != len(head) {
		r.fail("unexpected bytes after the last property")
	}
	return body, r.err
}

// DecodeID reads the ID of a stored message and when it was stored.
func DecodeID(v []byte) (id string, at time.Time, err error) {
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
