package wire

import (
	"crypto/md5"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Deliveries are the messages of a ReceiveMessage stream in the form of the wire,
// as protobuf would make them of ReceiveMessageResponse. They are encoded
// straight from the engine's words, without generated structs in between, and
// large bodies are not copied. The zero value is ready; one goroutine at a time uses it.
type Deliveries struct {
	Namespace string // of the topics, as the client names them

	// Packed puts many messages into one frame. The last frame also has the time of the encoding
	// and the status OK. It is for clients that announce FeaturePacked.
	Packed bool

	// CRC has digests of the kind CRC32, which cost less than MD5: for clients whose form
	// of it is known.
	CRC bool

	list []Frame
	of   int       // how many deliveries list is of
	at   time.Time // of the encoding: remaining invisible times count from here

	head, sys, user []byte       // room for the parts of a message
	room            *[]byte      // of protomem.Pool; head has its memory unless it grew
	bufs            []mem.Buffer // of all frames; nil for the next part of head until encode ends
	cuts            []int        // where in head these parts end
	frame           int          // where in bufs the frame begins that is being made
	size            int          // of that frame, in bytes
}

// A Frame is one encoded message of a stream; [Codec] takes it as it is.
type Frame struct{ data mem.BufferSlice }

// maxFrameAge is the maximum age of frames when they are sent, because they contain remaining
// invisible times.
const maxFrameAge = 20 * time.Millisecond

// Numbers of the fields in the public contract, apache.rocketmq.v2.
const (
	responseMessage = 2
	responseTime    = 3
	responsePacked  = 1000 // not in the contract

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

// maxPacked is from how many bytes on a packed frame takes no further message.
const maxPacked = 1 << 20

// maxCopied is the maximum size of a body that is copied into the buffer of its message: a copy
// costs less than a further buffer.
const maxCopied = 4 << 10

// headRoom is the approximate size of a frame without the body.
const headRoom = 512

// Prepare encodes ds while the engine writes that it hands them out.
func (f *Deliveries) Prepare(ds []*tidegate.Delivery) {
	_ = f.encode(ds) // Frames gets the error again, and returns it
}

// Frames returns the frames of ds, one for each unless they are Packed: those that Prepare made,
// if it made them of these and not too long ago. They refer to the bodies of ds. It
// fails if a text is not UTF-8, which protobuf does not take.
func (f *Deliveries) Frames(ds []*tidegate.Delivery) ([]Frame, error) {
	if f.of != len(ds) || time.Since(f.at) > maxFrameAge {
		if err := f.encode(ds); err != nil {
			return nil, err
		}
	}
	return f.list, nil
}

// At returns the time of the encoding, from which the remaining invisible times count.
func (f *Deliveries) At() time.Time { return f.at }

// Forget drops the frames of Prepare.
func (f *Deliveries) Forget() { f.list, f.of, f.bufs, f.head, f.room = nil, 0, nil, nil, nil }

// encode makes the frames of ds, in place of those that there were.
func (f *Deliveries) encode(ds []*tidegate.Delivery) error {
	f.Forget()
	f.at = time.Now()
	f.frame, f.size, f.cuts = 0, 0, f.cuts[:0]
	f.bufs = make([]mem.Buffer, 0, 2*len(ds)+2) // enough for all: frames refer to it
	room := headRoom * len(ds)
	for _, d := range ds {
		if len(d.Body) <= maxCopied {
			room += len(d.Body)
		}
	}
	f.room = protomem.Pool.Get(room)
	f.head = (*f.room)[:0]
	if !f.Packed {
		f.list = make([]Frame, 0, len(ds))
	}
	for _, d := range ds {
		if err := f.add(d); err != nil {
			f.list = nil
			return err
		}
		if !f.Packed || f.size >= maxPacked {
			f.endFrame()
		}
	}
	if f.Packed {
		f.head = appendMoment(f.head, responseTime, f.at.Unix(), f.at.Nanosecond())
		f.endRun()
		f.bufs = append(f.bufs, okStatus)
		f.endFrame()
	}
	f.cut()
	f.of = len(ds)
	return nil
}

// endRun makes a buffer of the part of head that is in no buffer yet.
func (f *Deliveries) endRun() {
	begin := 0
	if n := len(f.cuts); n > 0 {
		begin = f.cuts[n-1]
	}
	if begin < len(f.head) {
		f.bufs = append(f.bufs, nil)
		f.cuts = append(f.cuts, len(f.head))
	}
}

// cut gives the buffers of head their memory, which goes back to the pool when gRPC has
// written all of them.
func (f *Deliveries) cut() {
	*f.room = f.head
	rest, begin, next := mem.NewBuffer(f.room, protomem.Pool), 0, 0
	for i, b := range f.bufs {
		if b != nil {
			continue
		}
		if next == len(f.cuts)-1 {
			f.bufs[i] = rest
			return
		}
		f.bufs[i], rest = mem.SplitUnsafe(rest, f.cuts[next]-begin)
		begin = f.cuts[next]
		next++
	}
}

// endFrame makes a frame of the buffers since the last one.
func (f *Deliveries) endFrame() {
	f.endRun()
	f.list = append(f.list, Frame{f.bufs[f.frame:len(f.bufs):len(f.bufs)]})
	f.frame, f.size = len(f.bufs), 0
}

// okStatus is a ReceiveMessageResponse with the status OK, encoded.
var okStatus = func() mem.Buffer {
	b, err := proto.Marshal(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: OK}})
	if err != nil {
		panic(err) // it is constant
	}
	return mem.SliceBuffer(b)
}()

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
		f.user = appendPair(f.user, messageProperties, protocol.PropertyMessageGroup, d.MessageGroup)
	}
	if d.TransactionID != "" {
		f.user = appendPair(f.user, messageProperties, protocol.PropertyTransactionID, d.TransactionID)
	}
	// The topic comes first, the body last. The fields between have been encoded.
	size := pairSize(messageTopic, f.Namespace, d.Topic) + len(f.user) + bytesSize(messageSystem, len(f.sys))
	if len(d.Body) > 0 {
		size += bytesSize(messageBody, len(d.Body))
	}
	field := protowire.Number(responseMessage)
	if f.Packed {
		field = responsePacked
	}
	start := len(f.head)
	b := appendTag(f.head, field, uint64(size))
	b = appendPair(b, messageTopic, f.Namespace, d.Topic)
	b = append(b, f.user...)
	b = append(appendTag(b, messageSystem, uint64(len(f.sys))), f.sys...)
	if len(d.Body) > 0 {
		b = appendTag(b, messageBody, uint64(len(d.Body)))
	}
	copied := len(d.Body) <= maxCopied
	if copied {
		b = append(b, d.Body...)
	}
	f.head = b
	f.size += len(b) - start
	if !copied {
		f.endRun()
		f.bufs = append(f.bufs, mem.SliceBuffer(d.Body))
		f.size += len(d.Body)
	}
	return nil
}

// system encodes the SystemProperties into f.sys.
func (f *Deliveries) system(d *tidegate.Delivery, dead *rmqpb.DeadLetterQueue) {
	b := appendText(f.sys[:0], sysTag, d.Tag)
	for _, k := range d.Keys {
		b = append(appendTag(b, sysKeys, uint64(len(k))), k...)
	}
	b = appendText(b, sysMessageID, d.ID)
	if f.CRC {
		b = appendCRC(b, d.Body)
	} else {
		b = appendDigest(b, d.Body)
	}
	b = appendNumber(b, sysBodyEncoding, uint64(rmqpb.Encoding_IDENTITY))
	b = appendNumber(b, sysMessageType, uint64(typeOf(&d.Message)))
	born := d.BornAt
	if born.IsZero() {
		born = time.Unix(0, 0) // RocketMQ's value of an unknown time
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
		// The remaining time: less than the requested duration if the response repeats an earlier
		// one or waited. It is positive, because zero means unknown to clients.
		left := max(d.InvisibleUntil.Sub(f.at), 1)
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

// validate rejects text that is not UTF-8, as protobuf does.
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

var errNotUTF8 = errors.New("a name, key or property is not UTF-8, so the message cannot be encoded")

// deadLetterQueue returns the user's properties, and where a dead letter comes
// from. RocketMQ has a field for topic and ID of the origin, so these two
// leave the properties; clients of tidegate put them back.
func deadLetterQueue(all map[string]string) (map[string]string, *rmqpb.DeadLetterQueue) {
	topic, ok := all[protocol.PropertyDeadLetterTopic]
	id, okID := all[protocol.PropertyDeadLetterMessageID]
	if !ok && !okID {
		return all, nil
	}
	user := make(map[string]string, len(all))
	for k, v := range all {
		if k != protocol.PropertyDeadLetterTopic && k != protocol.PropertyDeadLetterMessageID {
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
	return appendVarint(appendVarint(b, uint64(field)<<3|uint64(protowire.BytesType)), n)
}

// appendVarint is protowire.AppendVarint, which is a call also for the one byte that most have.
func appendVarint(b []byte, n uint64) []byte {
	if n < 0x80 {
		return append(b, byte(n))
	}
	return protowire.AppendVarint(b, n)
}

// appendText adds a text, or nothing if it is empty.
func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return append(appendTag(b, field, uint64(len(s))), s...)
}

func appendNumber(b []byte, field protowire.Number, n uint64) []byte {
	return appendVarint(appendVarint(b, uint64(field)<<3|uint64(protowire.VarintType)), n)
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

// appendPair adds a message of two texts. It omits an empty text, as protobuf does except in maps,
// whose readers accept both forms.
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

// appendCRC adds the Digest of a body that costs least: in upper-case hexadecimal without
// leading zeros, the form of RocketMQ's Go client.
func appendCRC(b, body []byte) []byte {
	var room [2 * crc32.Size]byte
	text := strconv.AppendUint(room[:0], uint64(crc32.ChecksumIEEE(body)), 16)
	b = appendTag(b, sysBodyDigest, uint64(2+2+len(text)))
	b = appendNumber(b, 1, uint64(rmqpb.DigestType_CRC32))
	b = appendTag(b, 2, uint64(len(text)))
	for _, c := range text {
		if c >= 'a' {
			c -= 'a' - 'A'
		}
		b = append(b, c)
	}
	return b
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
