package wire

import (
	"bytes"
	"compress/zlib"
	"crypto/md5"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/gzipped"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// An Encoder makes the wire form of messages. It is not changed; goroutines may share it.
type Encoder struct {
	Namespace   string
	Host        string // of this machine, as born host
	Compression int    // the size in bytes above which bodies are compressed; 0: none
}

// Request makes the wire form of a send of messages to a queue of a topic. Its parts are allocated
// together. It shares the messages' strings, properties and bodies, which are only read.
func (e *Encoder) Request(topic *rmqpb.Resource, queue int32, msgs []*tidegate.Message) *rmqpb.SendMessageRequest {
	born := timestamppb.Now()
	parts := make([]struct {
		message rmqpb.Message
		system  rmqpb.SystemProperties
	}, len(msgs))
	req := &rmqpb.SendMessageRequest{Messages: make([]*rmqpb.Message, len(msgs))}
	for i, m := range msgs {
		req.Messages[i] = e.message(&parts[i].message, &parts[i].system, m, queue, topic, born)
	}
	return req
}

// message makes the wire form of m for a queue in pb and sys, which are zero.
func (e *Encoder) message(pb *rmqpb.Message, sys *rmqpb.SystemProperties, m *tidegate.Message, queue int32, topic *rmqpb.Resource, born *timestamppb.Timestamp) *rmqpb.Message {
	sys.Keys = m.Keys
	sys.MessageId = m.ID
	sys.MessageType = TypeOf(m)
	sys.BornTimestamp = born // without it RocketMQ takes the message for one of 1970
	sys.BornHost = e.Host
	sys.QueueId = queue
	if m.Tag != "" {
		sys.Tag = &m.Tag
	}
	if m.MessageGroup != "" {
		sys.MessageGroup = &m.MessageGroup
	}
	if m.TraceContext != "" {
		sys.TraceContext = &m.TraceContext
	}
	if !m.DeliverAt.IsZero() {
		sys.DeliveryTimestamp = timestamppb.New(m.DeliverAt)
	}
	body, encoding := e.body(m)
	sys.BodyEncoding = encoding
	pb.Topic, pb.UserProperties, pb.SystemProperties, pb.Body = topic, m.Properties, sys, body
	return pb
}

// body returns the body as it is transported.
func (e *Encoder) body(m *tidegate.Message) ([]byte, rmqpb.Encoding) {
	if e.Compression > 0 && len(m.Body) > e.Compression {
		if z := gzipped.Pack(m.Body); len(z) < len(m.Body) {
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
	n := rest + len(e.Namespace) + len(e.Host) + len(m.Topic) + len(m.ID) + len(m.Tag) + len(m.MessageGroup) + len(m.TraceContext) + len(m.Body)
	for _, k := range m.Keys {
		n += perText + len(k)
	}
	for k, v := range m.Properties {
		n += 3*perText + len(k) + len(v)
	}
	return n
}

// TypeOf returns the type of a message by its message group and delivery time.
func TypeOf(m *tidegate.Message) rmqpb.MessageType {
	switch {
	case m.MessageGroup != "":
		return rmqpb.MessageType_FIFO
	case !m.DeliverAt.IsZero():
		return rmqpb.MessageType_DELAY
	}
	return rmqpb.MessageType_NORMAL
}

// DecodeMessage makes a delivery of a message that came within another one, as that of a
// transaction check does. The decoder of receives agrees with it, which a fuzz test holds.
func DecodeMessage(pb *rmqpb.Message, maxBody int) (*tidegate.Delivery, error) {
	sys := pb.GetSystemProperties()
	if sys.GetReceiptHandle() == "" {
		return nil, errors.New("the message has no receipt handle")
	}
	if n := len(pb.GetBody()); n > maxBody {
		return nil, fmt.Errorf("the body has %d bytes; the limit is %d (Options.MaxReceiveSize), raise it to receive the message", n, maxBody)
	}
	if err := checkDigest(pb.GetBody(), sys.GetBodyDigest().GetType(), []byte(sys.GetBodyDigest().GetChecksum())); err != nil {
		return nil, err
	}
	body := pb.GetBody()
	if sys.GetBodyEncoding() == rmqpb.Encoding_GZIP {
		var err error
		if body, err = decompress(body, maxBody); err != nil {
			return nil, err
		}
	}
	d := &tidegate.Delivery{
		Message: tidegate.Message{
			ID:           sys.GetMessageId(),
			Topic:        pb.GetTopic().GetName(),
			Tag:          sys.GetTag(),
			Keys:         sys.GetKeys(),
			MessageGroup: sys.GetMessageGroup(),
			DeliverAt:    timeOf(sys.GetDeliveryTimestamp()),
			Properties:   pb.GetUserProperties(),
			TraceContext: sys.GetTraceContext(),
			Body:         body,
		},
		Attempt:   max(int(sys.GetDeliveryAttempt()), 1),
		Handle:    sys.GetReceiptHandle(),
		Queue:     int(sys.GetQueueId()),
		Offset:    sys.GetQueueOffset(),
		BornAt:    timeOf(sys.GetBornTimestamp()),
		BornHost:  sys.GetBornHost(),
		StoredAt:  timeOf(sys.GetStoreTimestamp()),
		StoreHost: sys.GetStoreHost(),
	}
	takeServerProperties(d)
	if o := sys.GetDeadLetterQueue(); o != nil {
		if d.Properties == nil {
			d.Properties = map[string]string{}
		}
		setIfMissing(d.Properties, protocol.PropertyDeadLetterTopic, o.GetTopic())
		setIfMissing(d.Properties, protocol.PropertyDeadLetterMessageID, o.GetMessageId())
	}
	return d, nil
}

// takeServerProperties removes from the user's properties those that servers added.
func takeServerProperties(d *tidegate.Delivery) {
	if len(d.Properties) == 0 {
		return
	}
	d.TransactionID = d.Properties[protocol.PropertyTransactionID]
	for _, name := range serverProperties {
		delete(d.Properties, name)
	}
	if d.TraceContext != "" && d.Properties[propertyTraceContext] == d.TraceContext {
		delete(d.Properties, propertyTraceContext)
	}
}

// serverProperties are the names that RocketMQ's servers add to the user's properties
// of a message that they deliver. Messages that carry them cannot be sent on.
var serverProperties = [...]string{
	protocol.PropertyMessageGroup, protocol.PropertyTransactionID, "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS",
}

// propertyTraceContext is one more, with the message's trace context. A property of a user
// may have that name too, with another value.
const propertyTraceContext = "TRACE_CONTEXT"

func setIfMissing(m map[string]string, k, v string) {
	if _, ok := m[k]; !ok && v != "" {
		m[k] = v
	}
}

// timeOf returns the zero time for a timestamp that is missing or none.
func timeOf(ts *timestamppb.Timestamp) time.Time {
	if ts == nil || ts.CheckValid() != nil {
		return time.Time{}
	}
	return ts.AsTime()
}

// checkDigest compares the body as transported with the checksum, which is in
// hexadecimal. A kind of digest that is not known proves nothing, and neither does an
// empty one.
func checkDigest(body []byte, kind rmqpb.DigestType, checksum []byte) error {
	var room [sha1.Size]byte // the longest of them
	var sum []byte
	switch kind {
	case rmqpb.DigestType_CRC32:
		sum = binary.BigEndian.AppendUint32(room[:0], crc32.ChecksumIEEE(body))
	case rmqpb.DigestType_MD5:
		x := md5.Sum(body)
		sum = append(room[:0], x[:]...)
	case rmqpb.DigestType_SHA1:
		room = sha1.Sum(body)
		sum = room[:]
	}
	if sum == nil || len(checksum) == 0 || sameHex(sum, checksum) {
		return nil
	}
	return fmt.Errorf("the checksum of the body is %s %X, but the sender's is %.80q", kind, bytes.Clone(sum), checksum) // the clone keeps room on the stack
}

// sameHex reports whether text is sum in hexadecimal. Servers differ in case, and some
// print numbers without leading zeros.
func sameHex(sum, text []byte) bool {
	text = bytes.TrimLeft(text, "0")
	if len(text) > 2*len(sum) {
		return false
	}
	const digits, lower = "0123456789ABCDEF", 'a' - 'A'
	for i := range 2 * len(sum) { // from the last digit on
		have := sum[len(sum)-1-i/2]
		if i%2 == 1 {
			have >>= 4
		}
		want := digits[have&15]
		switch at := len(text) - 1 - i; {
		case at < 0 && want != '0':
			return false
		case at >= 0 && text[at] != want && (want < 'A' || text[at] != want+lower):
			return false
		}
	}
	return true
}

// decompress returns an unpacked body of at most limit bytes. Producers of RocketMQ 4 use zlib
// under the name GZIP, so the first bytes decide.
func decompress(body []byte, limit int) ([]byte, error) {
	var out []byte
	var err error
	switch {
	case bytes.HasPrefix(body, []byte{0x1f, 0x8b}):
		out, err = gzipped.Unpack(body, limit)
	case bytes.HasPrefix(body, []byte{0x78}):
		var r io.ReadCloser
		if r, err = zlib.NewReader(bytes.NewReader(body)); err == nil {
			out, err = gzipped.ReadAll(r, limit, 4*len(body))
		}
	default:
		err = errors.New("neither gzip nor zlib")
	}
	switch {
	case errors.Is(err, gzipped.ErrTooLong):
		return nil, fmt.Errorf("the body exceeds %d bytes after decompression (Options.MaxReceiveSize); raise the limit to receive the message", limit)
	case err != nil:
		return nil, fmt.Errorf("the body cannot be decompressed: %w", err)
	}
	return out, nil
}
