package wire

import (
	"crypto/md5"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// Deliveries are the messages of a ReceiveMessage stream in the form of the wire,
// as protobuf would make them of ReceiveMessageResponse. They are encoded
// straight from the engine's words, without generated structs in between, and
// bodies are not copied. The zero value is ready; one goroutine at a time uses it.
type Deliveries struct {
	Namespace string // of the topics, as the client names them

	list []Frame
	at   time.Time // of the encoding: what is left of invisible times counts from here

	head, sys, user []byte       // room for the parts of a message
	bufs            []mem.Buffer // of all frames
}

// A Frame is one encoded message of a stream; [Codec] takes it as it is.
type Frame struct{ data mem.BufferSlice }

// maxFrameAge is how old frames may be when they are sent: invisible times are
// told as what is left of them.
const maxFrameAge = 20 * time.Millisecond

// Numbers of the fields in the public contract, apache.rocketmq.v2.
const (
	responseMessage = 2

	messageTopic      = 1
	messageProperties = 2
	messageSystem     = 3
	messageBody       = 4

	// of a Resource, a DeadLetterQueue and an entry of a map
	pairFirst  = 1
	pairSecond = 2

	sysTag               = 1
	sysKeys              = 2
	sysMessageID         = 3
	sysBodyDigest        = 4
	sysBodyEncoding      = 5
	sysMessageType       = 6
	sysBornTimestamp     = 7
	sysBornHost          = 8
	sysStoreTimestamp    = 9
	sysStoreHost         = 10
	sysDeliveryTimestamp = 11
	sysReceiptHandle     = 12
	sysQueueID           = 13
	sysQueueOffset       = 14
	sysInvisibleDuration = 15
	sysDeliveryAttempt   = 16
	sysMessageGroup      = 17
	sysTraceContext      = 18
	sysDeadLetterQueue   = 20
)

// headRoom is what a frame has beside the body, about.
const headRoom = 512

// Prepare encodes ds while the engine writes that it hands them out.
func (f *Deliveries) Prepare(ds []*tidegate.Delivery) {
	_ = f.encode(ds) // Frames meets the error again, and tells it
}

// Frames returns a message of the stream for each of ds: those that Prepare made,
// if it made them of these and not too long ago. They refer to the bodies of ds. It
// fails if a text is not UTF-8, which protobuf does not take.
func (f *Deliveries) Frames(ds []*tidegate.Delivery) ([]Frame, error) {
	if len(f.list) != len(ds) || time.Since(f.at) > maxFrameAge {
		if err := f.encode(ds); err != nil {
			return nil, err
		}
	}
	return f.list, nil
}

// Forget drops what Prepare made.
func (f *Deliveries) Forget() { f.list, f.bufs, f.head = nil, nil, nil }

// encode makes the frames of ds, in place of those that there were.
func (f *Deliveries) encode(ds []*tidegate.Delivery) error {
	f.at = time.Now()
	f.list = make([]Frame, 0, len(ds))
	f.bufs = make([]mem.Buffer, 0, 2*len(ds))
	f.head = make([]byte, 0, headRoom*len(ds)) // gRPC may keep those that it was given
	for _, d := range ds {
		if err := f.add(d); err != nil {
			f.list = nil
			return err
		}
	}
	return nil
}

func (f *Deliveries) add(d *tidegate.Delivery) error {
	user, dead := deadLetterQueue(d.Properties)
	if err := f.validate(d, user); err != nil {
		return err
	}
	f.system(d, dead)
	f.user = f.user[:0]
	for k, v := range user {
		f.user = appendPair(f.user, messageProperties, k, v)
	}
	// RocketMQ's consumers find these among the properties.
	if d.MessageGroup != "" {
		f.user = appendPair(f.user, messageProperties, tidegate.PropertyMessageGroup, d.MessageGroup)
	}
	if d.TransactionID != "" {
		f.user = appendPair(f.user, messageProperties, tidegate.PropertyTransactionID, d.TransactionID)
	}
	// The topic comes first, the body last: what lies between has been encoded.
	size := pairSize(messageTopic, f.Namespace, d.Topic) + len(f.user) + bytesSize(messageSystem, len(f.sys))
	if len(d.Body) > 0 {
		size += bytesSize(messageBody, len(d.Body))
	}
	start := len(f.head)
	b := appendTag(f.head, responseMessage, uint64(size))
	b = appendPair(b, messageTopic, f.Namespace, d.Topic)
	b = append(b, f.user...)
	b = append(appendTag(b, messageSystem, uint64(len(f.sys))), f.sys...)
	n := len(f.bufs)
	if len(d.Body) > 0 {
		b = appendTag(b, messageBody, uint64(len(d.Body)))
	}
	f.head = b
	f.bufs = append(f.bufs, mem.SliceBuffer(b[start:len(b):len(b)]))
	if len(d.Body) > 0 {
		f.bufs = append(f.bufs, mem.SliceBuffer(d.Body))
	}
	f.list = append(f.list, Frame{f.bufs[n:len(f.bufs):len(f.bufs)]})
	return nil
}

// system encodes the SystemProperties into f.sys.
func (f *Deliveries) system(d *tidegate.Delivery, dead *rmqpb.DeadLetterQueue) {
	b := appendText(f.sys[:0], sysTag, d.Tag)
	for _, k := range d.Keys {
		b = append(appendTag(b, sysKeys, uint64(len(k))), k...)
	}
	b = appendText(b, sysMessageID, d.ID)
	b = appendDigest(b, d.Body)
	b = appendNumber(b, sysBodyEncoding, uint64(rmqpb.Encoding_IDENTITY))
	b = appendNumber(b, sysMessageType, uint64(typeOf(&d.Message)))
	born := d.BornAt
	if born.IsZero() {
		born = time.Unix(0, 0) // as RocketMQ shows a time that it was not told
	}
	b = appendMoment(b, sysBornTimestamp, born.Unix(), born.Nanosecond())
	b = appendText(b, sysBornHost, d.BornHost)
	if !d.StoredAt.IsZero() {
		b = appendMoment(b, sysStoreTimestamp, d.StoredAt.Unix(), d.StoredAt.Nanosecond())
	}
	b = appendText(b, sysStoreHost, d.StoreHost)
	if !d.DeliverAt.IsZero() {
		b = appendMoment(b, sysDeliveryTimestamp, d.DeliverAt.Unix(), d.DeliverAt.Nanosecond())
	}
	b = append(appendTag(b, sysReceiptHandle, uint64(len(d.Handle))), d.Handle...)
	if d.Queue != 0 {
		b = appendNumber(b, sysQueueID, uint64(int64(int32(d.Queue))))
	}
	b = appendNumber(b, sysQueueOffset, uint64(d.Offset))
	if !d.InvisibleUntil.IsZero() {
		// What is left of it: less than was asked for where the answer repeats an earlier one.
		left := max(d.InvisibleUntil.Sub(f.at), 0)
		b = appendMoment(b, sysInvisibleDuration, int64(left/time.Second), int(left%time.Second))
	}
	b = appendNumber(b, sysDeliveryAttempt, uint64(int64(int32(d.Attempt))))
	b = appendText(b, sysMessageGroup, d.MessageGroup)
	b = appendText(b, sysTraceContext, d.TraceContext)
	if dead != nil {
		b = appendPair(b, sysDeadLetterQueue, dead.Topic, dead.MessageId)
	}
	f.sys = b
}

// validate refuses what is not UTF-8, as protobuf does.
func (f *Deliveries) validate(d *tidegate.Delivery, user map[string]string) error {
	ok := true
	for _, s := range [...]string{d.Topic, d.Tag, d.ID, d.BornHost, d.StoreHost, d.Handle, d.MessageGroup, d.TraceContext, f.Namespace} {
		ok = ok && utf8.ValidString(s)
	}
	for _, k := range d.Keys {
		ok = ok && utf8.ValidString(k)
	}
	for k, v := range user {
		ok = ok && utf8.ValidString(k) && utf8.ValidString(v)
	}
	if !ok {
		return fmt.Errorf("message %q of queue %d, offset %d: %w", d.ID, d.Queue, d.Offset, errNotUTF8)
	}
	return nil
}

var errNotUTF8 = errors.New("a name, key or property is not UTF-8, and no client can be told of it")

// deadLetterQueue returns the user's properties, and where a dead letter comes
// from. RocketMQ has a field for topic and ID of the origin, so these two
// leave the properties; clients of tidegate put them back.
func deadLetterQueue(all map[string]string) (map[string]string, *rmqpb.DeadLetterQueue) {
	topic, ok := all[tidegate.PropertyDeadLetterTopic]
	id, okID := all[tidegate.PropertyDeadLetterMessageID]
	if !ok && !okID {
		return all, nil
	}
	user := make(map[string]string, len(all))
	for k, v := range all {
		if k != tidegate.PropertyDeadLetterTopic && k != tidegate.PropertyDeadLetterMessageID {
			user[k] = v
		}
	}
	return user, &rmqpb.DeadLetterQueue{Topic: topic, MessageId: id}
}

func typeOf(m *tidegate.Message) rmqpb.MessageType {
	switch {
	case m.MessageGroup != "":
		return rmqpb.MessageType_FIFO
	case !m.DeliverAt.IsZero():
		return rmqpb.MessageType_DELAY
	}
	return rmqpb.MessageType_NORMAL
}

// appendTag begins a field of n bytes.
func appendTag(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), n)
}

// appendText adds a text, or nothing if it is empty.
func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return append(appendTag(b, field, uint64(len(s))), s...)
}

func appendNumber(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

// appendMoment adds a Timestamp or a Duration.
func appendMoment(b []byte, field protowire.Number, seconds int64, nanos int) []byte {
	size := 0
	if seconds != 0 {
		size += 1 + protowire.SizeVarint(uint64(seconds))
	}
	if nanos != 0 {
		size += 1 + protowire.SizeVarint(uint64(nanos))
	}
	b = appendTag(b, field, uint64(size))
	if seconds != 0 {
		b = appendNumber(b, 1, uint64(seconds))
	}
	if nanos != 0 {
		b = appendNumber(b, 2, uint64(nanos))
	}
	return b
}

// appendPair adds a message of two texts; one that is empty is left out, as
// protobuf does everywhere but in maps, whose readers take both.
func appendPair(b []byte, field protowire.Number, x, y string) []byte {
	b = appendTag(b, field, uint64(textSize(pairFirst, x)+textSize(pairSecond, y)))
	return appendText(appendText(b, pairFirst, x), pairSecond, y)
}

func pairSize(field protowire.Number, x, y string) int {
	return bytesSize(field, textSize(pairFirst, x)+textSize(pairSecond, y))
}

func textSize(field protowire.Number, s string) int {
	if s == "" {
		return 0
	}
	return bytesSize(field, len(s))
}

func bytesSize(field protowire.Number, n int) int {
	return protowire.SizeTag(field) + protowire.SizeBytes(n)
}

// appendDigest adds the Digest of a body.
func appendDigest(b, body []byte) []byte {
	b = appendTag(b, sysBodyDigest, 2+2+2*md5.Size)
	b = appendNumber(b, 1, uint64(rmqpb.DigestType_MD5))
	return appendMD5(appendTag(b, 2, 2*md5.Size), body)
}

// appendMD5 adds the MD5 of a body in upper-case hexadecimal: the one form on
// which all of RocketMQ's clients agree, and that its Node client insists on.
func appendMD5(b, body []byte) []byte {
	const digits = "0123456789ABCDEF"
	sum := md5.Sum(body)
	for _, c := range sum {
		b = append(b, digits[c>>4], digits[c&15])
	}
	return b
}
