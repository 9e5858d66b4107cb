package wire

import (
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Tags of requests that deliveries do not have.
const (
	tagRequestMessage    = 1<<3 | kindBytes
	tagResourceNamespace = 1<<3 | kindBytes
	tagSystemMessageType = 6<<3 | kindVarint
)

const (
	// frameRoom is how many bytes the tag and the length of a message take in a request, at most.
	frameRoom = 6

	// leastPooled is from how many bytes on the memory of a request is worth being used again.
	leastPooled = 1 << 10

	// maxHead is the maximum size in bytes of the memory of a head that is used again.
	maxHead = 64 << 10
)

// A Sending is a SendMessageRequest that FrameCodec encodes straight from the messages. It shares
// their memory, which is only read.
type Sending struct {
	Encoder  *Encoder
	Topic    *rmqpb.Resource
	Queue    int32
	Born     time.Time // of all messages
	Half     bool      // they are half messages
	Messages []*tidegate.Message
}

// Request returns the request as a protobuf message.
func (s *Sending) Request() *rmqpb.SendMessageRequest {
	req := s.Encoder.Request(s.Topic, s.Queue, s.Messages)
	born := timestamppb.New(s.Born)
	for _, m := range req.GetMessages() {
		m.SystemProperties.BornTimestamp = born
		m.SystemProperties.MessageType = rmqpb.MessageType(s.kind(m.GetSystemProperties().GetMessageType()))
	}
	return req
}

func (s *Sending) kind(t rmqpb.MessageType) uint64 {
	if s.Half {
		t = rmqpb.MessageType_TRANSACTION
	}
	return uint64(t) //nolint:gosec // not negative
}

// A head is memory for the encoding of a message without its body.
type head struct {
	message, system []byte
	texts           bool // all texts so far are UTF-8
}

var heads = sync.Pool{New: func() any { return new(head) }}

// SizeBound returns an upper bound for the bytes of the request.
func (s *Sending) SizeBound() int {
	size := 0
	for _, m := range s.Messages {
		size += frameRoom + s.Encoder.SizeBound(m)
	}
	return size
}

// marshal encodes the request as protobuf does. It returns false if a text is not UTF-8.
func (s *Sending) marshal() (mem.BufferSlice, bool) { return marshal(s.SizeBound(), s) }

// marshal encodes a request of several sends.
func marshal(size int, sends ...*Sending) (mem.BufferSlice, bool) {
	var room *[]byte
	if size < leastPooled {
		b := make([]byte, 0, size)
		room = &b
	} else {
		room = protomem.Pool.Get(size)
	}
	h := heads.Get().(*head)
	h.texts = true
	b := (*room)[:0]
	for _, s := range sends {
		for _, m := range s.Messages {
			b = s.message(b, h, m)
		}
	}
	*room = b
	whole := h.texts
	if cap(h.message) <= maxHead && cap(h.system) <= maxHead {
		heads.Put(h)
	}
	switch {
	case size < leastPooled:
		return mem.BufferSlice{mem.SliceBuffer(b)}, whole
	case !whole:
		protomem.Pool.Put(room)
		return nil, false
	}
	return mem.BufferSlice{mem.NewBuffer(room, protomem.Pool)}, true
}

// Sendings is a SendMessageRequest of several sends, which may have different topics. FrameCodec
// calls Take once, when it encodes them, and Encoded when it has read the last message.
type Sendings struct {
	Take    func() []*Sending
	Encoded func()
}

// marshal encodes the request. Without a send it fails.
func (s *Sendings) marshal(c protomem.Codec) (mem.BufferSlice, error) {
	defer s.Encoded()
	sends := s.Take()
	if len(sends) == 0 {
		return nil, status.Error(codes.Canceled, "no send waits for the request")
	}
	size := 0
	for _, one := range sends {
		size += one.SizeBound()
	}
	if data, ok := marshal(size, sends...); ok {
		return data, nil
	}
	all := new(rmqpb.SendMessageRequest)
	for _, one := range sends {
		all.Messages = append(all.Messages, one.Request().GetMessages()...)
	}
	return c.Marshal(all) // reports the text
}

// message appends a message.
func (s *Sending) message(b []byte, h *head, m *tidegate.Message) []byte {
	body, encoding := s.Encoder.body(m)
	h.system = s.system(h.system[:0], h, m, encoding)
	p := appendTag(h.message[:0], tagMessageTopic, sizeOf(s.Topic.GetResourceNamespace())+sizeOf(s.Topic.GetName()))
	p = h.text(p, tagResourceNamespace, s.Topic.GetResourceNamespace())
	p = h.text(p, tagResourceName, s.Topic.GetName())
	for k, v := range m.Properties {
		p = appendTag(p, tagMessageProperties, 2+protowire.SizeBytes(len(k))+protowire.SizeBytes(len(v)))
		p = h.always(p, tagFirstText, k)
		p = h.always(p, tagSecondText, v)
	}
	p = appendTag(p, tagMessageSystem, len(h.system))
	p = append(p, h.system...)
	h.message = p
	size := len(p)
	if len(body) > 0 {
		size += 1 + protowire.SizeBytes(len(body))
	}
	b = appendTag(b, tagRequestMessage, size)
	b = append(b, p...)
	if len(body) > 0 {
		b = appendTag(b, tagMessageBody, len(body))
		b = append(b, body...)
	}
	return b
}

// system appends the system properties of a message.
func (s *Sending) system(p []byte, h *head, m *tidegate.Message, encoding rmqpb.Encoding) []byte {
	p = h.text(p, tagSystemTag, m.Tag)
	for _, k := range m.Keys {
		p = h.always(p, tagSystemKeys, k)
	}
	p = h.text(p, tagSystemID, m.ID)
	p = appendNumber(p, tagSystemEncoding, uint64(encoding)) //nolint:gosec // not negative
	p = appendNumber(p, tagSystemMessageType, s.kind(TypeOf(m)))
	p = appendMoment(p, tagSystemBorn, s.Born)
	p = h.text(p, tagSystemBornHost, s.Encoder.Host)
	if !m.DeliverAt.IsZero() {
		p = appendMoment(p, tagSystemDeliverAt, m.DeliverAt)
	}
	p = appendNumber(p, tagSystemQueue, uint64(int64(s.Queue))) //nolint:gosec // protobuf extends the sign
	p = h.text(p, tagSystemMessageGroup, m.MessageGroup)
	return h.text(p, tagSystemTraceContext, m.TraceContext)
}

// sizeOf returns the size of a text whose tag takes one byte.
func sizeOf(text string) int {
	if text == "" {
		return 0
	}
	return 1 + protowire.SizeBytes(len(text))
}

// text appends a text, unless it is empty.
func (h *head) text(p []byte, tag uint64, text string) []byte {
	if text == "" {
		return p
	}
	return h.always(p, tag, text)
}

// always appends a text.
func (h *head) always(p []byte, tag uint64, text string) []byte {
	h.texts = h.texts && utf8.ValidString(text)
	return append(appendTag(p, tag, len(text)), text...)
}

// appendTag appends a tag of kindBytes and the length of its value.
func appendTag(p []byte, tag uint64, length int) []byte {
	return protowire.AppendVarint(protowire.AppendVarint(p, tag), uint64(length)) //nolint:gosec // not negative
}

// appendNumber appends a number, unless it is 0.
func appendNumber(p []byte, tag, x uint64) []byte {
	if x == 0 {
		return p
	}
	return protowire.AppendVarint(protowire.AppendVarint(p, tag), x)
}

// appendMoment appends a Timestamp.
func appendMoment(p []byte, tag uint64, t time.Time) []byte {
	seconds, nanos := uint64(t.Unix()), uint64(t.Nanosecond()) //nolint:gosec // protobuf extends the sign
	size := 0
	if seconds != 0 {
		size = 1 + protowire.SizeVarint(seconds)
	}
	if nanos != 0 {
		size += 1 + protowire.SizeVarint(nanos)
	}
	p = appendTag(p, tag, size)
	return appendNumber(appendNumber(p, tagFirstNumber, seconds), tagSecondNumber, nanos)
}
