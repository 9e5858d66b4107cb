package rocketmq

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"crypto/md5"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// encodeMessage makes the wire form of m for queue q in pb and sys, which are zero. It
// shares m's strings, properties and body, which are only read.
func (c *Client) encodeMessage(pb *rmqpb.Message, sys *rmqpb.SystemProperties, m *tidegate.Message, q queue, topic *rmqpb.Resource, born *timestamppb.Timestamp) *rmqpb.Message {
	sys.Keys = m.Keys
	sys.MessageId = m.ID
	sys.BodyEncoding = rmqpb.Encoding_IDENTITY
	sys.MessageType = typeOf(m)
	sys.BornTimestamp = born // without it RocketMQ takes the message for one of 1970
	sys.BornHost = c.host
	sys.QueueId = q.id
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
	body := m.Body
	if c.opts.Compression > 0 && len(body) > c.opts.Compression {
		if z := compress(body); len(z) < len(body) {
			body, sys.BodyEncoding = z, rmqpb.Encoding_GZIP
		}
	}
	pb.Topic, pb.UserProperties, pb.SystemProperties, pb.Body = topic, m.Properties, sys, body
	return pb
}

// sizeBound returns what m adds to a request at most, in bytes, which is little
// more than it does unless its body is going to be compressed.
func (c *Client) sizeBound(m *tidegate.Message) int {
	// A field of a text has at most 2 bytes before its length, which has at most 5.
	// 256 are more than there can be of those, numbers and times in any message.
	const perText, rest = 7, 256
	n := rest + len(c.opts.Namespace) + len(c.host) + len(m.Topic) + len(m.ID) + len(m.Tag) + len(m.MessageGroup) + len(m.TraceContext) + len(m.Body)
	for _, k := range m.Keys {
		n += perText + len(k)
	}
	for k, v := range m.Properties {
		n += 3*perText + len(k) + len(v)
	}
	return n
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

var gzipWriters = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

func compress(body []byte) []byte {
	var b bytes.Buffer
	w := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(w)
	w.Reset(&b)
	// A bytes.Buffer takes everything.
	_, _ = w.Write(body)
	_ = w.Close()
	return b.Bytes()
}

// decodeMessage makes a delivery of what a server handed out. The caller fills
// in the group, the endpoint and the invisible time. A body that does not match
// its digest, cannot be decompressed or is larger than maxBody before or after
// that is an error, and so is a delivery that could never be settled.
func decodeMessage(pb *rmqpb.Message, maxBody int) (*tidegate.Delivery, error) {
	sys := pb.GetSystemProperties()
	if sys.GetReceiptHandle() == "" {
		return nil, errors.New("the message has no receipt handle")
	}
	if n := len(pb.GetBody()); n > maxBody {
		return nil, fmt.Errorf("the body has %d bytes, more than %d: raise Options.MaxReceiveSize if it should be read", n, maxBody)
	}
	if err := checkDigest(pb.GetBody(), sys.GetBodyDigest()); err != nil {
		return nil, err
	}
	body, err := decompress(pb.GetBody(), sys.GetBodyEncoding(), maxBody)
	if err != nil {
		return nil, err
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
	d.TransactionID = d.Properties[tidegate.PropertyTransactionID]
	for _, name := range serverProperties {
		delete(d.Properties, name)
	}
	if d.TraceContext != "" && d.Properties[propertyTraceContext] == d.TraceContext {
		delete(d.Properties, propertyTraceContext)
	}
	if o := sys.GetDeadLetterQueue(); o != nil {
		if d.Properties == nil {
			d.Properties = map[string]string{}
		}
		setIfMissing(d.Properties, tidegate.PropertyDeadLetterTopic, o.GetTopic())
		setIfMissing(d.Properties, tidegate.PropertyDeadLetterMessageID, o.GetMessageId())
	}
	return d, nil
}

// serverProperties are the names that RocketMQ's servers add to the user's properties
// of a message that they deliver. Messages that carry them cannot be sent on.
var serverProperties = [...]string{
	tidegate.PropertyMessageGroup, tidegate.PropertyTransactionID, "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS",
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

// checkDigest compares the body as transported. A kind of digest that is not
// known proves nothing, and neither does an empty one.
func checkDigest(body []byte, d *rmqpb.Digest) error {
	var got string
	switch d.GetType() {
	case rmqpb.DigestType_CRC32:
		got = fmt.Sprintf("%08X", crc32.ChecksumIEEE(body))
	case rmqpb.DigestType_MD5:
		sum := md5.Sum(body)
		got = hex.EncodeToString(sum[:])
	case rmqpb.DigestType_SHA1:
		sum := sha1.Sum(body)
		got = hex.EncodeToString(sum[:])
	}
	want := d.GetChecksum()
	if got == "" || want == "" {
		return nil
	}
	// Servers differ in case, and some print numbers without leading zeros.
	if !strings.EqualFold(strings.TrimLeft(got, "0"), strings.TrimLeft(want, "0")) {
		return fmt.Errorf("the body has %s %s, but was sent with %q", d.GetType(), got, want)
	}
	return nil
}

// decompress undoes a body's encoding. Producers of RocketMQ 4 call zlib what
// arrives here as GZIP, so the first bytes decide.
func decompress(body []byte, enc rmqpb.Encoding, limit int) ([]byte, error) {
	if enc != rmqpb.Encoding_GZIP {
		return body, nil
	}
	var r io.Reader
	var err error
	switch {
	case bytes.HasPrefix(body, []byte{0x1f, 0x8b}):
		r, err = gzip.NewReader(bytes.NewReader(body))
	case bytes.HasPrefix(body, []byte{0x78}):
		r, err = zlib.NewReader(bytes.NewReader(body))
	default:
		err = errors.New("neither gzip nor zlib")
	}
	if err != nil {
		return nil, fmt.Errorf("the body cannot be decompressed: %w", err)
	}
	most := int64(limit)
	out, err := io.ReadAll(io.LimitReader(r, max(most, most+1))) // the sum may overflow
	if err != nil {
		return nil, fmt.Errorf("the body cannot be decompressed: %w", err)
	}
	if len(out) > limit {
		return nil, fmt.Errorf("the body has more than %d bytes after decompression: raise Options.MaxReceiveSize if it should be read", limit)
	}
	return out, nil
}
