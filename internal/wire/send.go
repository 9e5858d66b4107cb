package wire

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// An Encoder makes the wire form of messages. It is not changed; goroutines may share it.
type Encoder struct {
	Namespace   string
	Host        string // of this machine, as born host
	Compression int    // the size in bytes above which bodies are compressed; 0: none
}

// body returns the body as it is transported.
func (e *Encoder) body(m *tidegate.Message) ([]byte, rmqpb.Encoding) {
	if e.Compression > 0 && len(m.Body) > e.Compression {
		if z := Gzip(m.Body); len(z) < len(m.Body) {
			return z, rmqpb.Encoding_GZIP
		}
	}
	return m.Body, rmqpb.Encoding_IDENTITY
}

// SizeBound returns an upper bound for the bytes of m in a request. It is little more than the
// actual size, unless the body is compressed.
func (e *Encoder) SizeBound(m *tidegate.Message) int {
	// A field of a text has at most 2 bytes before its length, which has at most 5.
	// 256 are more than there can be of those, numbers and times in any message.
	const perText, rest = 7, 256
	n := rest + len(e.Namespace) + len(e.Host) + len(m.Topic) + len(m.ID) + len(m.Tag) + len(m.MessageGroup) + len(m.LiteTopic) + len(m.TraceContext) + len(m.Body)
	for _, k := range m.Keys {
		n += perText + len(k)
	}
	for k, v := range m.Properties {
		n += 3*perText + len(k) + len(v)
	}
	return n
}

const (
	// frameRoom is how many bytes the tag and the length of a message take in a request, at most.
	frameRoom = 6

	// maxHead is the maximum size in bytes of the memory of an encoder that is used again.
	maxHead = 128 << 10
)

// A Sending is a SendMessageRequest that [Codec] encodes straight from the messages. It shares
// their memory, which is only read.
type Sending struct {
	Encoder  *Encoder
	Queue    int32
	Born     time.Time // of all messages
	Half     bool      // they are half messages
	Ranked   bool      // the topic takes messages of type PRIORITY alone: those without a priority have 0
	Messages []*tidegate.Message
}

var encoders = sync.Pool{New: func() any { return new(encoder) }}

// SizeBound returns an upper bound for the bytes of the request.
func (s *Sending) SizeBound() int {
	size := 0
	for _, m := range s.Messages {
		size += frameRoom + s.Encoder.SizeBound(m)
	}
	return size
}

// marshal encodes a request of several sends as protobuf does.
func marshal(size int, sends ...*Sending) (mem.BufferSlice, error) {
	var room *[]byte
	if size < shared {
		b := make([]byte, 0, size)
		room = &b
	} else {
		room = Pool.Get(size)
	}
	e := encoders.Get().(*encoder)
	e.other = false
	b := (*room)[:0]
	var other *tidegate.Message // the first with a text that is not UTF-8
	for _, s := range sends {
		for _, m := range s.Messages {
			if b = s.message(b, e, m); e.other && other == nil {
				other = m
			}
		}
	}
	*room = b
	if cap(e.user)+cap(e.system) <= maxHead {
		encoders.Put(e)
	}
	switch {
	case other != nil:
		Pool.Put(room)
		return nil, fmt.Errorf("message %q of topic %q: %w", other.ID, other.Topic, errNotUTF8)
	case size < shared:
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return mem.BufferSlice{mem.NewBuffer(room, Pool)}, nil
}

// message appends a message.
func (s *Sending) message(b []byte, e *encoder, m *tidegate.Message) []byte {
	body, encoding := s.Encoder.body(m)
	kind := TypeOf(m)
	switch {
	case s.Half:
		kind = rmqpb.MessageType_TRANSACTION
	case s.Ranked && kind == rmqpb.MessageType_NORMAL:
		kind = rmqpb.MessageType_PRIORITY
	}
	e.begin(m, m.Properties, &system{kind: kind, encoding: encoding, born: s.Born, bornHost: s.Encoder.Host, queue: int(s.Queue)})
	b = e.message(b, TagSendMessage, s.Encoder.Namespace, m.Topic, len(body))
	return append(b, body...)
}

// Sendings is a SendMessageRequest of several sends, which may have different topics.
type Sendings []*Sending

// marshal encodes the request.
func (s Sendings) marshal() (mem.BufferSlice, error) {
	size := 0
	for _, one := range s {
		size += one.SizeBound()
	}
	return marshal(size, s...)
}

// DecodeSend decodes a request whose bodies share memory with raw. Its messages are in list, which
// is nil if their memory is not used again. DecodeSend returns false, and leaves the request
// undefined, if raw has more than messages or cannot be decoded.
func DecodeSend(raw []byte, request *rmqpb.SendMessageRequest) (list *SendList, ok bool) {
	n := 0
	r := Fields(raw)
	for ; r.Next(); n++ {
		if r.Tag != TagSendMessage {
			return nil, false
		}
	}
	if r.Err != nil {
		return nil, false
	}
	list, messages := newSent(n, request)
	size := 0
	r = Fields(raw)
	for i := range messages {
		r.Next()
		m := &messages[i]
		m.head, m.message.Body = splitBody(r.Bytes())
		size += len(m.head)
		request.Messages[i] = &m.message
	}
	var all strings.Builder // of the heads: each text is a part of it
	all.Grow(size)
	for i := range messages {
		all.Write(messages[i].head)
	}
	d, texts := decoder{}, all.String()
	for i := range messages {
		m := &messages[i]
		text := texts[:len(m.head)]
		texts = texts[len(m.head):]
		if d.decode(m, text) {
			continue
		}
		body := m.message.GetBody()
		if proto.Unmarshal(m.head, &m.message) != nil {
			return nil, false
		}
		if body != nil {
			m.message.Body = body
		}
	}
	return list, true
}

// A SendList is the memory of the messages of one request.
type SendList struct {
	request  *rmqpb.SendMessageRequest
	used     int        // messages of the request
	messages []received // all zero from used on
	pointers []*rmqpb.Message
}

const (
	minReused = 16 // smaller requests would keep the memory of larger ones
	maxReused = 1 << 10
)

// Reusable reports whether other requests use the memory of a request with n messages again.
func Reusable(n int) bool { return n >= minReused && n <= maxReused }

var sendLists sync.Pool // of *SendList with used = 0

// newSent returns n messages, which are zero, and points the request to them. The caller ends their
// use by list.Free; the collector frees them if list is nil.
func newSent(n int, request *rmqpb.SendMessageRequest) (list *SendList, messages []received) {
	if !Reusable(n) {
		request.Messages = make([]*rmqpb.Message, n)
		return nil, make([]received, n)
	}
	list, _ = sendLists.Get().(*SendList)
	if list == nil || len(list.messages) < n {
		list = &SendList{messages: make([]received, n), pointers: make([]*rmqpb.Message, n)}
	}
	list.request, list.used, request.Messages = request, n, list.pointers[:n:n]
	return list, list.messages[:n]
}

// Free ends the use of the messages. The request has none afterwards. The texts and the other
// topics of its messages remain valid.
func (l *SendList) Free() {
	clear(l.messages[:l.used])
	clear(l.pointers[:l.used])
	l.request.Messages = nil
	l.request, l.used = nil, 0
	sendLists.Put(l)
}

// sendResponses has responses of NewSendResponse. All their entries, up to the capacity, are zero.
var sendResponses sync.Pool

// NewSendResponse returns a response with n entries, which are zero. The caller fills them in and
// keeps no reference to them after [Codec] has encoded the response: others use their memory again.
func NewSendResponse(n int) *rmqpb.SendMessageResponse {
	if Reusable(n) {
		if r, _ := sendResponses.Get().(*rmqpb.SendMessageResponse); r != nil && cap(r.Entries) >= n {
			r.Entries = r.Entries[:n]
			return r
		}
	}
	entries, pointers := make([]rmqpb.SendResultEntry, n), make([]*rmqpb.SendResultEntry, n)
	for i := range entries {
		pointers[i] = &entries[i]
	}
	return &rmqpb.SendMessageResponse{Entries: pointers}
}

// FreeSendResponse ends the use of a response of NewSendResponse.
func FreeSendResponse(r *rmqpb.SendMessageResponse) {
	if !Reusable(len(r.Entries)) {
		return
	}
	for _, e := range r.Entries {
		*e = rmqpb.SendResultEntry{}
	}
	r.Status = nil
	sendResponses.Put(r)
}

// decodeSent decodes a response in few allocations: all entries are in one slice, their texts are
// parts of one string, and successive entries with the same status share it. It returns false, and
// leaves the response undefined, if raw has other fields than the contract, has a status twice, or
// cannot be decoded.
func decodeSent(raw []byte, to *rmqpb.SendMessageResponse) bool {
	n := 0
	for r := (Fields(raw)); r.Next(); {
		if r.Tag == tagSentEntries {
			n++
		}
	}
	to.Reset()
	entries := make([]rmqpb.SendResultEntry, n)
	if n > 0 {
		to.Entries = make([]*rmqpb.SendResultEntry, 0, n)
	}
	var last sentStatus
	r := FieldReader{raw: raw, text: string(raw)}
	for r.Next() {
		switch r.Tag {
		case tagSentStatus:
			if to.Status != nil || !last.take(r.Bytes()) {
				return false
			}
			to.Status = last.status
		case tagSentEntries:
			e := &entries[len(to.Entries)]
			if !decodeEntry(e, r.inside(), &last) {
				return false
			}
			to.Entries = append(to.Entries, e)
		default:
			return false
		}
	}
	return r.Err == nil
}

// decodeEntry fills in an entry.
func decodeEntry(e *rmqpb.SendResultEntry, r FieldReader, last *sentStatus) bool {
	for r.Next() {
		var ok bool
		switch r.Tag {
		case tagEntryOffset:
			e.Offset, ok = int64(r.number), true //nolint:gosec // a negative number is encoded so
		case tagEntryStatus:
			ok = e.Status == nil && last.take(r.Bytes())
			e.Status = last.status
		case tagEntryMessage:
			ok = r.set(&e.MessageId)
		case tagEntryTransaction:
			ok = r.set(&e.TransactionId)
		case tagEntryRecall:
			ok = r.set(&e.RecallHandle)
		}
		if !ok {
			return false
		}
	}
	return r.Err == nil
}

// A sentStatus is the last status of a response, and its encoding.
type sentStatus struct {
	status *rmqpb.Status
	raw    []byte
}

// take decodes a status.
func (s *sentStatus) take(raw []byte) bool {
	if s.status != nil && bytes.Equal(raw, s.raw) {
		return true
	}
	st, r := &rmqpb.Status{}, FieldReader{raw: raw, text: string(raw)}
	for r.Next() {
		switch r.Tag {
		case tagFirstNumber:
			st.Code = rmqpb.Code(int32(r.number)) //nolint:gosec // protobuf's decoders cut off the rest too
		case tagSecondText:
			if !r.set(&st.Message) {
				return false
			}
		default:
			return false
		}
	}
	if r.Err != nil {
		return false
	}
	s.status, s.raw = st, raw
	return true
}
