// Package wire has the codec of RocketMQ's protocol, for the client and for the broker: messages,
// sends, deliveries and acknowledgements, and the names of the headers. It does no I/O, and has no
// state apart from pools of memory.
//
// Messages are encoded and decoded by hand. The code that vtprotobuf generates would not replace
// it: it copies each body into the encoded message, and allocates each text of a decoded one.
package wire

import (
	"fmt"
	"math/bits"
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

const (
	kindVarint = uint64(protowire.VarintType)
	kindBytes  = uint64(protowire.BytesType)
)

// Tags of the fields in the contract apache.rocketmq.v2: field number and wire type, as protobuf
// writes them before a value.
const (
	TagSendMessage = 1<<3 | kindBytes // of a SendMessageRequest

	TagResponseStatus  = 1<<3 | kindBytes // of a ReceiveMessageResponse
	TagResponseMessage = 2<<3 | kindBytes
	TagResponseTime    = 3<<3 | kindBytes
	TagResponsePacked  = 1000<<3 | kindBytes  // not in the contract
	TagResponseWaited  = 1001<<3 | kindVarint // not in the contract; see [Deliveries].Begun

	tagMessageTopic      = 1<<3 | kindBytes
	tagMessageProperties = 2<<3 | kindBytes
	tagMessageSystem     = 3<<3 | kindBytes
	TagMessageBody       = 4<<3 | kindBytes

	tagSystemTag          = 1<<3 | kindBytes
	tagSystemKeys         = 2<<3 | kindBytes
	tagSystemID           = 3<<3 | kindBytes
	tagSystemDigest       = 4<<3 | kindBytes
	tagSystemEncoding     = 5<<3 | kindVarint
	tagSystemMessageType  = 6<<3 | kindVarint
	tagSystemBorn         = 7<<3 | kindBytes
	tagSystemBornHost     = 8<<3 | kindBytes
	tagSystemStored       = 9<<3 | kindBytes
	tagSystemStoreHost    = 10<<3 | kindBytes
	tagSystemDeliverAt    = 11<<3 | kindBytes
	tagSystemHandle       = 12<<3 | kindBytes
	tagSystemQueue        = 13<<3 | kindVarint
	tagSystemOffset       = 14<<3 | kindVarint
	tagSystemInvisible    = 15<<3 | kindBytes
	tagSystemAttempt      = 16<<3 | kindVarint
	tagSystemMessageGroup = 17<<3 | kindBytes
	tagSystemTraceContext = 18<<3 | kindBytes
	tagSystemDeadLetter   = 20<<3 | kindBytes
	tagSystemLiteTopic    = 21<<3 | kindBytes
	tagSystemPriority     = 22<<3 | kindVarint

	// of the messages with two fields: Resource, Digest, Timestamp, Duration, DeadLetterQueue, the
	// entries of maps, Status, and the entries of an AckMessageRequest
	tagFirstText    = 1<<3 | kindBytes
	tagSecondText   = 2<<3 | kindBytes
	tagFirstNumber  = 1<<3 | kindVarint
	tagSecondNumber = 2<<3 | kindVarint

	TagAckEntry = 3<<3 | kindBytes // of an AckMessageRequest

	tagSentStatus  = 1<<3 | kindBytes // of a SendMessageResponse
	tagSentEntries = 2<<3 | kindBytes

	tagEntryStatus      = 1<<3 | kindBytes
	tagEntryMessage     = 2<<3 | kindBytes
	tagEntryTransaction = 3<<3 | kindBytes
	tagEntryOffset      = 4<<3 | kindVarint
	tagEntryRecall      = 5<<3 | kindBytes
)

// A FieldReader steps through the fields of an encoded message.
type FieldReader struct {
	Tag uint64
	Err error

	raw       []byte
	text      string // raw, if parts of it are used as texts
	begin, at int    // of the value of a field of kindBytes, and of the next field
	number    uint64 // of a field of kindVarint
}

// Fields returns a reader of the message raw.
func Fields(raw []byte) FieldReader { return FieldReader{raw: raw} }

// Bytes returns the value of a field of kindBytes. It shares memory with the message.
func (r *FieldReader) Bytes() []byte { return r.raw[r.begin:r.at] }

// Number returns the value of a field of kindVarint.
func (r *FieldReader) Number() uint64 { return r.number }

// Next moves to the next field. It returns false at the end, or with Err set if the next bytes are
// invalid protobuf.
func (r *FieldReader) Next() bool {
	// Most tags, lengths and numbers are of one byte.
	if b := r.raw[r.at:]; len(b) > 1 && b[0] < 0x80 && b[0] > 7 && b[1] < 0x80 {
		value := int(b[1])
		switch r.Tag = uint64(b[0]); {
		case b[0]&7 == byte(kindVarint):
			r.number = uint64(value)
			r.at += 2
			return true
		case b[0]&7 == byte(kindBytes) && value <= len(b)-2:
			r.begin = r.at + 2
			r.at = r.begin + value
			return true
		}
	}
	return r.next()
}

// next is Next for fields of all kinds and sizes.
func (r *FieldReader) next() bool {
	b := r.raw[r.at:]
	if len(b) == 0 || r.Err != nil {
		return false
	}
	num, kind, n := protowire.ConsumeTag(b)
	if n >= 0 {
		r.Tag = uint64(num)<<3 | uint64(kind)
		b, r.at = b[n:], r.at+n
		switch kind {
		case protowire.BytesType:
			var value []byte
			value, n = protowire.ConsumeBytes(b)
			r.begin = r.at + n - len(value)
		case protowire.VarintType:
			r.number, n = protowire.ConsumeVarint(b)
		default:
			n = protowire.ConsumeFieldValue(num, kind, b)
		}
	}
	if n < 0 {
		r.Err = protowire.ParseError(n)
		r.raw = nil
		r.at = 0
		return false
	}
	r.at += n
	return true
}

// part returns the value of a field of kindBytes as a part of the text.
func (r *FieldReader) part() string { return r.text[r.begin:r.at] }

// inside returns a reader of the message in the field.
func (r *FieldReader) inside() FieldReader { return FieldReader{raw: r.Bytes(), text: r.part()} }

// set sets a text to the field. It returns false if the field is not of kindBytes or not UTF-8.
func (r *FieldReader) set(to *string) bool {
	if r.Tag&7 != kindBytes || !utf8.Valid(r.Bytes()) {
		return false
	}
	*to = r.part()
	return true
}

// pair sets the texts of a message that consists of two of them. It returns false if the field is
// none.
func (r *FieldReader) pair(first, second *string) bool {
	*first, *second = "", ""
	in := r.inside()
	for in.Next() {
		to := first
		switch in.Tag {
		case tagFirstText:
		case tagSecondText:
			to = second
		default:
			return false
		}
		if !in.set(to) {
			return false
		}
	}
	return in.Err == nil
}

// moment sets the fields of a Timestamp or a Duration. It returns false if the field is none.
func (r *FieldReader) moment(seconds *int64, nanos *int32) bool {
	*seconds, *nanos = 0, 0
	in := Fields(r.Bytes())
	for in.Next() {
		switch in.Tag {
		case tagFirstNumber:
			*seconds = int64(in.number) //nolint:gosec // a negative number is encoded so
		case tagSecondNumber:
			*nanos = int32(in.number) //nolint:gosec // protobuf's decoders cut off the rest too
		default:
			return false
		}
	}
	return in.Err == nil
}

// appendTag appends the tag of a field of kindBytes and the length of its value.
func appendTag(b []byte, tag uint64, length int) []byte {
	return appendVarint(appendVarint(b, tag), uint64(length)) //nolint:gosec // not negative
}

// appendVarint is protowire.AppendVarint, which is a call also for the one byte that most have.
func appendVarint(b []byte, n uint64) []byte {
	if n < 0x80 {
		return append(b, byte(n))
	}
	return protowire.AppendVarint(b, n)
}

func appendNumber(b []byte, tag, n uint64) []byte { return appendVarint(appendVarint(b, tag), n) }

// appendMoment appends a Timestamp or a Duration.
func appendMoment(b []byte, tag uint64, seconds int64, nanos int) []byte {
	s, n := uint64(seconds), uint64(nanos) //nolint:gosec // protobuf extends the sign
	size := 0
	if s != 0 {
		size = 1 + protowire.SizeVarint(s)
	}
	if n != 0 {
		size += 1 + protowire.SizeVarint(n)
	}
	b = appendTag(b, tag, size)
	if s != 0 {
		b = appendNumber(b, tagFirstNumber, s)
	}
	if n != 0 {
		b = appendNumber(b, tagSecondNumber, n)
	}
	return b
}

// sizeOf returns the size of a field of kindBytes whose tag takes one byte.
func sizeOf(length int) int { return 1 + protowire.SizeBytes(length) }

// sizeOfText returns the size of a text that is omitted if it is empty.
func sizeOfText(s string) int {
	if s == "" {
		return 0
	}
	return sizeOf(len(s))
}

// Codec is gRPC's codec for protobuf with the memory of Pool. It encodes a *Sending, Sendings and
// *Frame, and decodes a *ReceivedFrame and a SendMessageResponse, without protobuf's reflection.
// The zero value is ready.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// Name implements encoding.CodecV2. It is empty, because then gRPC sends the content type without
// the name of a codec, as clients of other languages do.
func (Codec) Name() string { return "" }

// Marshal implements encoding.CodecV2.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *Sending:
		return marshal(v.SizeBound(), v)
	case Sendings:
		return v.marshal()
	case *Frame:
		return v.data, nil
	}
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("encode a gRPC message: the type is %T, not proto.Message", v)
	}
	o := proto.MarshalOptions{UseCachedSize: true}
	size := proto.Size(m)
	if size < shared {
		b, err := o.MarshalAppend(make([]byte, 0, size), m)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	room := Pool.Get(size)
	b, err := o.MarshalAppend((*room)[:0], m)
	if err != nil {
		Pool.Put(room)
		return nil, err
	}
	*room = b
	return mem.BufferSlice{mem.NewBuffer(room, Pool)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*ReceivedFrame); ok {
		*f = newFrame(data)
		return nil
	}
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decode a gRPC message: the type is %T, not proto.Message", v)
	}
	b := data.MaterializeToBuffer(Pool)
	defer b.Free()
	if sent, ok := v.(*rmqpb.SendMessageResponse); ok && decodeSent(b.ReadOnlyData(), sent) {
		return nil
	}
	return proto.Unmarshal(b.ReadOnlyData(), m)
}

const (
	minShift = 8  // the smallest buffers have 256 bytes
	maxShift = 21 // the largest that are used again have 2 MiB

	// shared is from how many bytes on a buffer is worth being used again, as in gRPC.
	shared = 1 << 10
)

// Pool has buffers for gRPC's messages. In contrast to gRPC's own pool it does not clear them, and
// it has a size for each power of two. In gRPC's pool a message of more than 32 KiB takes 1 MiB,
// which is cleared.
var Pool mem.BufferPool = &pool{}

type pool struct {
	sizes [maxShift - minShift + 1]sync.Pool
}

// sizeFor returns the index of the smallest size that holds n bytes, or -1 if none does.
func sizeFor(n int) int {
	switch {
	case n > 1<<maxShift:
		return -1
	case n <= 1<<minShift:
		return 0
	}
	return bits.Len(uint(n-1)) - minShift
}

// Get implements mem.BufferPool. The content of the buffer is undefined.
func (p *pool) Get(n int) *[]byte {
	i := sizeFor(n)
	if i < 0 {
		b := make([]byte, n)
		return &b
	}
	if b, ok := p.sizes[i].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, 1<<(i+minShift))
	return &b
}

// Put implements mem.BufferPool.
func (p *pool) Put(b *[]byte) {
	if n := cap(*b); n >= 1<<minShift && n <= 1<<maxShift && bits.OnesCount(uint(n)) == 1 {
		p.sizes[sizeFor(n)].Put(b)
	}
}

// Names of headers that RocketMQ's clients send.
const (
	HeaderAuthorization = "authorization"
	HeaderDateTime      = "x-mq-date-time"
	HeaderClientID      = "x-mq-client-id"
	HeaderLanguage      = "x-mq-language"
	HeaderClientVersion = "x-mq-client-version"
)

// Names of headers and trailers that tidegate's broker and its SDK agree on. RocketMQ ignores them.
const (
	// HeaderFeatures of a response has the extensions of the server beyond RocketMQ 5.2; of a
	// request, those of the client.
	HeaderFeatures = "x-tidegate-features"
	HeaderReason   = "x-tidegate-reason" // of a dead letter, percent-encoded
	// HeaderRepeat marks a request whose response was lost. For ChangeInvisibleDuration the handle
	// may have been replaced since. For ReceiveMessage it requests the deliveries of the receive
	// with the same attempt ID, and no new ones.
	HeaderRepeat    = "x-tidegate-repeat"
	HeaderArrived   = "x-tidegate-arrived"   // of ReceiveMessage: how many parts of the earlier receive arrived
	HeaderLadder    = "x-tidegate-ladder"    // of a failure: the broker's own interval holds
	HeaderSnooze    = "x-tidegate-snooze"    // of ChangeInvisibleDuration: it ends the delivery, whose attempt does not count
	HeaderMaxBytes  = "x-tidegate-max-bytes" // of ReceiveMessage: ReceiveRequest.MaxBytes
	HeaderReconsume = "x-tidegate-reconsume" // of ChangeInvisibleDuration: it ends a failed delivery as in Apache Pulsar
	TrailerPushBack = "grpc-retry-pushback-ms"
	// TrailerPushBacks is TrailerPushBack for each run of messages with the same topic, joined by
	// commas; 0 means none. It is for a SendMessage with several topics.
	TrailerPushBacks = "x-tidegate-pushback-topics"
	TrailerRetry     = "x-tidegate-retry" // the fate of a message whose consumption failed
	// TrailerWatched is true if a receive has left a watch: the Telemetry stream reports when there
	// may be another message.
	TrailerWatched = "x-tidegate-watched"
)

// Features that a server announces; package server documents them. A client announces "packed",
// "stream", "brief", "watch", "heartbeats" and "topics".
const (
	FeatureBatch      = "batch"
	FeaturePushBack   = "pushback"
	FeatureSuspend    = "suspend"
	FeatureDeadLetter = "deadletter"
	FeatureRetry      = "retry"
	FeatureRepeat     = "repeat"
	FeatureQueues     = "queues"
	FeaturePacked     = "packed" // the client reads many messages in one frame of a receive
	FeatureTopics     = "topics" // the messages of a SendMessage can have different topics
	FeatureWatch      = "watch"  // of Telemetry: the client reads the queues of watches; of ReceiveMessage: it asks for a watch
	FeatureStream     = "stream" // of ReceiveMessage: the client uses messages before the receive ends
	FeatureBrief      = "brief"  // an AckMessage whose entries all succeeded needs no entries in the response

	// FeatureHeartbeats of Heartbeat: it counts for all clients with a Telemetry stream on its
	// connection. Of Telemetry: the client may share such heartbeats, and sends its settings again
	// when the server asks for them.
	FeatureHeartbeats = "heartbeats"
)

// OK is the status of every successful response. It is shared and never changed.
var OK = &rmqpb.Status{Code: rmqpb.Code_OK, Message: "OK"}

// A Queue is the subject of a watch.
type Queue struct {
	Topic string
	Queue int32 // -1 for all queues
}

// ReadyCommand returns the command that reports that receives from the queues may find messages. To
// RocketMQ's clients it is a command without contents.
func ReadyCommand(queues []Queue) *rmqpb.TelemetryCommand {
	cmd := &rmqpb.TelemetryCommand{Status: &rmqpb.Status{Code: rmqpb.Code_OK}}
	for _, q := range queues {
		cmd.Ready = append(cmd.Ready, &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: q.Topic}, Id: q.Queue})
	}
	return cmd
}

// ReadyQueues returns the queues of a ReadyCommand, and none of another command.
func ReadyQueues(cmd *rmqpb.TelemetryCommand) (queues []Queue) {
	for _, q := range cmd.GetReady() {
		queues = append(queues, Queue{q.GetTopic().GetName(), q.GetId()})
	}
	return queues
}
