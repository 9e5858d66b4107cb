package wire

import (
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// TypeOf returns the type of a message by its message group, lite topic, delivery time and priority.
func TypeOf(m *tidegate.Message) rmqpb.MessageType {
	switch {
	case m.MessageGroup != "":
		return rmqpb.MessageType_FIFO
	case m.LiteTopic != "":
		return rmqpb.MessageType_LITE
	case !m.DeliverAt.IsZero():
		return rmqpb.MessageType_DELAY
	case m.Priority != 0:
		return rmqpb.MessageType_PRIORITY
	}
	return rmqpb.MessageType_NORMAL
}

// An encoder has the encoding of one message, except for its body.
type encoder struct {
	user, system []byte
	other        bool // a text is not UTF-8, which protobuf does not take
}

// text appends a text, unless it is empty.
func (e *encoder) text(b []byte, tag uint64, s string) []byte {
	if s == "" {
		return b
	}
	return e.always(b, tag, s)
}

// always appends a text.
func (e *encoder) always(b []byte, tag uint64, s string) []byte {
	e.other = e.other || !utf8.ValidString(s)
	return append(appendTag(b, tag, len(s)), s...)
}

// pair appends a message of two texts. It omits empty ones.
func (e *encoder) pair(b []byte, tag uint64, first, second string) []byte {
	b = appendTag(b, tag, sizeOfText(first)+sizeOfText(second))
	return e.text(e.text(b, tagFirstText, first), tagSecondText, second)
}

// property adds a user property.
func (e *encoder) property(k, v string) {
	b := appendTag(e.user, tagMessageProperties, sizeOf(len(k))+sizeOf(len(v)))
	e.user = e.always(e.always(b, tagFirstText, k), tagSecondText, v)
}

// system are the system properties of a message in addition to the fields of tidegate.Message.
type system struct {
	kind     rmqpb.MessageType
	encoding rmqpb.Encoding
	born     time.Time
	bornHost string
	queue    int

	delivery *tidegate.Delivery // nil for a message that is sent; the rest is of deliveries alone
	digest   rmqpb.DigestType   // of the delivery
	at       time.Time          // of the encoding
	dead     *rmqpb.DeadLetterQueue
}

// begin encodes the system properties and the properties of a message.
func (e *encoder) begin(m *tidegate.Message, properties map[string]string, s *system) {
	b := e.text(e.system[:0], tagSystemTag, m.Tag)
	for _, k := range m.Keys {
		b = e.always(b, tagSystemKeys, k)
	}
	b = e.text(b, tagSystemID, m.ID)
	d := s.delivery
	if d != nil {
		b = appendDigest(b, s.digest, d.Body)
	}
	b = appendNumber(b, tagSystemEncoding, uint64(s.encoding)) //nolint:gosec // not negative
	b = appendNumber(b, tagSystemMessageType, uint64(s.kind))  //nolint:gosec // not negative
	b = appendMoment(b, tagSystemBorn, s.born.Unix(), s.born.Nanosecond())
	b = e.text(b, tagSystemBornHost, s.bornHost)
	if d != nil {
		if !d.StoredAt.IsZero() {
			b = appendMoment(b, tagSystemStored, d.StoredAt.Unix(), d.StoredAt.Nanosecond())
		}
		b = e.text(b, tagSystemStoreHost, d.StoreHost)
	}
	if !m.DeliverAt.IsZero() {
		b = appendMoment(b, tagSystemDeliverAt, m.DeliverAt.Unix(), m.DeliverAt.Nanosecond())
	}
	if d != nil {
		b = e.always(b, tagSystemHandle, d.Handle)
	}
	if s.queue != 0 {
		b = appendNumber(b, tagSystemQueue, uint64(int64(int32(s.queue)))) //nolint:gosec // protobuf extends the sign
	}
	if d != nil {
		b = appendNumber(b, tagSystemOffset, uint64(d.Offset)) //nolint:gosec // likewise
		if !d.InvisibleUntil.IsZero() {
			// The remaining time: less than the requested duration if the response repeats an
			// earlier one or waited. It is positive, because zero means unknown to clients.
			left := max(d.InvisibleUntil.Sub(s.at), 1)
			b = appendMoment(b, tagSystemInvisible, int64(left/time.Second), int(left%time.Second))
		}
		b = appendNumber(b, tagSystemAttempt, uint64(int64(int32(d.Attempt)))) //nolint:gosec // likewise
	}
	b = e.text(b, tagSystemMessageGroup, m.MessageGroup)
	b = e.text(b, tagSystemTraceContext, m.TraceContext)
	if s.dead != nil {
		b = e.pair(b, tagSystemDeadLetter, s.dead.Topic, s.dead.MessageId)
	}
	b = e.text(b, tagSystemLiteTopic, m.LiteTopic)
	if s.kind == rmqpb.MessageType_PRIORITY || m.Priority != 0 {
		b = appendNumber(b, tagSystemPriority, uint64(int64(int32(m.Priority)))) //nolint:gosec // protobuf extends the sign
	}
	e.system, e.user = b, e.user[:0]
	for k, v := range properties {
		e.property(k, v)
	}
}

// message appends the message that was begun as a field, up to its body, whose n bytes follow.
func (e *encoder) message(b []byte, tag uint64, namespace, topic string, n int) []byte {
	// The topic comes first, the body last.
	size := sizeOf(sizeOfText(namespace)+sizeOfText(topic)) + len(e.user) + sizeOf(len(e.system))
	if n > 0 {
		size += sizeOf(n)
	}
	b = appendTag(b, tag, size)
	b = e.pair(b, tagMessageTopic, namespace, topic)
	b = append(b, e.user...)
	b = append(appendTag(b, tagMessageSystem, len(e.system)), e.system...)
	if n > 0 {
		b = appendTag(b, TagMessageBody, n)
	}
	return b
}

// A received is a decoded message, with the parts that its optional fields refer to. The parts are
// set before they are referred to.
type received struct {
	message         rmqpb.Message
	system          rmqpb.SystemProperties
	head            []byte // the encoding of the message, except for the body
	tag, group      string
	trace, lite     string
	priority        int32
	born, deliverAt timestamppb.Timestamp
}

// A delivered has the parts of a received that only deliveries have.
type delivered struct {
	stored    timestamppb.Timestamp
	invisible durationpb.Duration
	digest    rmqpb.Digest
	dead      rmqpb.DeadLetterQueue
	handle    string
	offset    int64
	attempt   int32
}

// splitBody splits an encoded message before its body, which encoders write last. The body is nil,
// and all is head, if something follows the body or there is none.
func splitBody(m []byte) (head, body []byte) {
	r := Fields(m)
	for begin := 0; r.Next(); begin = r.at {
		if r.Tag != TagMessageBody {
			continue
		}
		if r.at < len(m) {
			break
		}
		return m[:begin], slices.Clip(r.Bytes())
	}
	return m, nil
}

// A decoder decodes the messages of one request or response. Most of them have the same topic,
// which they share.
type decoder struct {
	topic     *rmqpb.Resource
	topicText string     // its encoding
	more      *delivered // nil for messages that are sent
}

// decode fills in a message from its head, which text is too. It returns false, and leaves the
// message undefined, if the head has other fields than producers send or, with d.more, servers
// deliver; if it has one twice that is not repeated; or if it cannot be decoded.
func (d *decoder) decode(m *received, text string) bool {
	r := FieldReader{raw: m.head, text: text}
	for r.Next() {
		switch r.Tag {
		case tagMessageTopic:
			if m.message.Topic != nil || !d.takeTopic(&r) {
				return false
			}
			m.message.Topic = d.topic
		case tagMessageProperties:
			var name, value string
			if !r.pair(&name, &value) {
				return false
			}
			if m.message.UserProperties == nil {
				m.message.UserProperties = map[string]string{}
			}
			m.message.UserProperties[name] = value
		case tagMessageSystem:
			if m.message.SystemProperties != nil || !d.system(m, r.inside()) {
				return false
			}
			m.message.SystemProperties = &m.system
		default:
			return false
		}
	}
	return r.Err == nil
}

// takeTopic sets d.topic.
func (d *decoder) takeTopic(r *FieldReader) bool {
	if d.topic != nil && string(r.Bytes()) == d.topicText {
		return true
	}
	t := &rmqpb.Resource{}
	if !r.pair(&t.ResourceNamespace, &t.Name) {
		return false
	}
	d.topic, d.topicText = t, r.part()
	return true
}

// system fills in the system properties.
func (d *decoder) system(m *received, r FieldReader) bool {
	p, more := &m.system, d.more
	for r.Next() {
		var ok bool
		x := int32(r.number) //nolint:gosec // protobuf's decoders cut off the rest too
		switch r.Tag {
		case tagSystemEncoding:
			p.BodyEncoding, ok = rmqpb.Encoding(x), true
		case tagSystemMessageType:
			p.MessageType, ok = rmqpb.MessageType(x), true
		case tagSystemQueue:
			p.QueueId, ok = x, true
		case tagSystemTag:
			p.Tag, ok = &m.tag, r.set(&m.tag)
		case tagSystemKeys:
			var k string
			ok = r.set(&k)
			p.Keys = append(p.Keys, k)
		case tagSystemID:
			ok = r.set(&p.MessageId)
		case tagSystemBorn:
			ok = p.BornTimestamp == nil && r.moment(&m.born.Seconds, &m.born.Nanos)
			p.BornTimestamp = &m.born
		case tagSystemBornHost:
			ok = r.set(&p.BornHost)
		case tagSystemDeliverAt:
			ok = p.DeliveryTimestamp == nil && r.moment(&m.deliverAt.Seconds, &m.deliverAt.Nanos)
			p.DeliveryTimestamp = &m.deliverAt
		case tagSystemMessageGroup:
			p.MessageGroup, ok = &m.group, r.set(&m.group)
		case tagSystemLiteTopic:
			p.LiteTopic, ok = &m.lite, r.set(&m.lite)
		case tagSystemPriority:
			m.priority = x
			p.Priority, ok = &m.priority, true
		case tagSystemTraceContext:
			p.TraceContext, ok = &m.trace, r.set(&m.trace)
		default:
			if more == nil {
				return false
			}
			switch r.Tag { // only deliveries have these
			case tagSystemDigest:
				ok = p.BodyDigest == nil
				p.BodyDigest, more.digest.Type, more.digest.Checksum = &more.digest, 0, ""
				in := r.inside()
				for ok && in.Next() {
					if in.Tag == tagFirstNumber {
						more.digest.Type = rmqpb.DigestType(int32(in.number)) //nolint:gosec // protobuf's decoders cut off the rest too
						continue
					}
					ok = in.Tag == tagSecondText && in.set(&more.digest.Checksum)
				}
				ok = ok && in.Err == nil
			case tagSystemStored:
				ok = p.StoreTimestamp == nil && r.moment(&more.stored.Seconds, &more.stored.Nanos)
				p.StoreTimestamp = &more.stored
			case tagSystemStoreHost:
				ok = r.set(&p.StoreHost)
			case tagSystemHandle:
				p.ReceiptHandle, ok = &more.handle, r.set(&more.handle)
			case tagSystemOffset:
				more.offset = int64(r.number) //nolint:gosec // a negative number is encoded so
				p.QueueOffset, ok = &more.offset, true
			case tagSystemInvisible:
				ok = p.InvisibleDuration == nil && r.moment(&more.invisible.Seconds, &more.invisible.Nanos)
				p.InvisibleDuration = &more.invisible
			case tagSystemAttempt:
				more.attempt = int32(r.number) //nolint:gosec // protobuf's decoders cut off the rest too
				p.DeliveryAttempt, ok = &more.attempt, true
			case tagSystemDeadLetter:
				ok = p.DeadLetterQueue == nil && r.pair(&more.dead.Topic, &more.dead.MessageId)
				p.DeadLetterQueue = &more.dead
			}
		}
		if !ok {
			return false
		}
	}
	return r.Err == nil
}

// deliveryOf returns a message that a server delivers, without its body.
func deliveryOf(pb *rmqpb.Message) *tidegate.Delivery {
	sys := pb.GetSystemProperties()
	d := &tidegate.Delivery{
		Message: tidegate.Message{
			ID:           sys.GetMessageId(),
			Topic:        pb.GetTopic().GetName(),
			Tag:          sys.GetTag(),
			Keys:         sys.GetKeys(),
			MessageGroup: sys.GetMessageGroup(),
			LiteTopic:    sys.GetLiteTopic(),
			DeliverAt:    timeOf(sys.GetDeliveryTimestamp()),
			Priority:     int(sys.GetPriority()),
			Properties:   pb.GetUserProperties(),
			TraceContext: sys.GetTraceContext(),
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
	return d
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
	"INNER_MULTI_DISPATCH", // the queue of the lite topic
}

// propertyTraceContext is one more, with the message's trace context. A property of a user
// may have that name too, with another value.
const propertyTraceContext = "TRACE_CONTEXT"

// deadLetterQueue returns the user's properties, and the origin of a dead letter. RocketMQ has a
// field for topic and ID of the origin, so these two leave the properties; deliveryOf adds them
// again.
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

func setIfMissing(m map[string]string, k, v string) {
	if _, ok := m[k]; !ok && v != "" {
		m[k] = v
	}
}

// timeOf returns the zero time for a timestamp that is missing or out of range.
func timeOf(ts *timestamppb.Timestamp) time.Time {
	if ts == nil || ts.CheckValid() != nil {
		return time.Time{}
	}
	return ts.AsTime()
}

// Moment decodes a Timestamp; one that is out of range is the zero time.
func Moment(raw []byte) (time.Time, error) {
	var ts timestamppb.Timestamp
	err := proto.Unmarshal(raw, &ts)
	return timeOf(&ts), err
}
