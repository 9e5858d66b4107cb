package server

import (
	"crypto/md5"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A frame is room for one message of a ReceiveMessage stream. gRPC has
// written a frame when Send returns, so one serves for all of them.
type frame struct {
	resp    rmqpb.ReceiveMessageResponse
	content rmqpb.ReceiveMessageResponse_Message
	msg     rmqpb.Message
	topic   rmqpb.Resource
	sys     rmqpb.SystemProperties
	digest  rmqpb.Digest
	dead    rmqpb.DeadLetterQueue

	born, stored, deliverAt timestamppb.Timestamp
	offset                  int64
	attempt                 int32
	invisible               durationpb.Duration
}

// newFrame returns a frame for messages of topics in the namespace.
func newFrame(namespace string) *frame {
	f := &frame{}
	f.topic.ResourceNamespace = namespace
	f.msg.Topic = &f.topic
	f.msg.SystemProperties = &f.sys
	f.content.Message = &f.msg
	f.resp.Content = &f.content
	f.digest.Type = rmqpb.DigestType_MD5
	f.sys.BodyDigest = &f.digest
	f.sys.BodyEncoding = rmqpb.Encoding_IDENTITY
	f.sys.BornTimestamp = &f.born
	f.sys.QueueOffset = &f.offset
	f.sys.DeliveryAttempt = &f.attempt
	return f
}

// set fills the frame with a delivery, which it refers to until the next set.
func (f *frame) set(d *tidegate.Delivery) *rmqpb.ReceiveMessageResponse {
	f.topic.Name = d.Topic
	f.msg.Body = d.Body
	f.msg.UserProperties, f.sys.DeadLetterQueue = f.properties(d.Properties)
	f.digest.Checksum = digest(d.Body)

	p := &f.sys
	p.MessageId = d.ID
	p.Keys = d.Keys
	p.Tag = optional(&d.Tag)
	p.MessageGroup = optional(&d.MessageGroup)
	p.TraceContext = optional(&d.TraceContext)
	p.ReceiptHandle = &d.Handle
	p.MessageType = typeOf(&d.Message)
	p.BornHost = d.BornHost
	p.StoreHost = d.StoreHost
	p.QueueId = int32(d.Queue)
	f.offset = d.Offset
	f.attempt = int32(d.Attempt)
	setTime(&f.born, d.BornAt)
	p.StoreTimestamp, p.DeliveryTimestamp, p.InvisibleDuration = nil, nil, nil
	if !d.InvisibleUntil.IsZero() {
		// What is left of it: less than was asked for where the answer repeats an earlier one.
		left := max(time.Until(d.InvisibleUntil), 0)
		f.invisible.Seconds, f.invisible.Nanos = int64(left/time.Second), int32(left%time.Second)
		p.InvisibleDuration = &f.invisible
	}
	if !d.StoredAt.IsZero() {
		setTime(&f.stored, d.StoredAt)
		p.StoreTimestamp = &f.stored
	}
	if !d.DeliverAt.IsZero() {
		setTime(&f.deliverAt, d.DeliverAt)
		p.DeliveryTimestamp = &f.deliverAt
	}
	return &f.resp
}

// properties returns the user's properties, and where a dead letter comes
// from. RocketMQ has a field for topic and ID of the origin, so these two
// leave the properties; clients of tidegate put them back.
func (f *frame) properties(all map[string]string) (map[string]string, *rmqpb.DeadLetterQueue) {
	topic, ok := all[tidegate.PropertyDeadLetterTopic]
	id, okID := all[tidegate.PropertyDeadLetterMessageID]
	if !ok && !okID {
		return all, nil
	}
	f.dead.Topic, f.dead.MessageId = topic, id
	user := make(map[string]string, len(all))
	for k, v := range all {
		if k != tidegate.PropertyDeadLetterTopic && k != tidegate.PropertyDeadLetterMessageID {
			user[k] = v
		}
	}
	return user, &f.dead
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

func optional(s *string) *string {
	if *s == "" {
		return nil
	}
	return s
}

func setTime(to *timestamppb.Timestamp, t time.Time) {
	if t.IsZero() {
		t = time.Unix(0, 0) // as RocketMQ shows a time that it was not told
	}
	to.Seconds, to.Nanos = t.Unix(), int32(t.Nanosecond())
}

// digest returns the MD5 of a body in upper-case hexadecimal: the one form on
// which all of RocketMQ's clients agree, and that its Node client insists on.
func digest(body []byte) string {
	const digits = "0123456789ABCDEF"
	sum := md5.Sum(body)
	var b [2 * md5.Size]byte
	for i, c := range sum {
		b[2*i], b[2*i+1] = digits[c>>4], digits[c&15]
	}
	return string(b[:])
}
