package wire

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// A sent is one message of a SendMessageRequest. The messages of a request are allocated together.
type sent struct {
	message rmqpb.Message
	system  rmqpb.SystemProperties
	head    []byte // the encoding of the message, except for the body
}

// decodeSend decodes a request whose bodies share memory with raw. It returns false, and leaves the
// request undefined, if raw has more than messages or cannot be decoded.
func decodeSend(raw []byte, request *rmqpb.SendMessageRequest) bool {
	n := 0
	for rest := raw; len(rest) > 0; n++ {
		var ok bool
		if _, rest, ok = nextMessage(rest); !ok {
			return false
		}
	}
	messages, size := make([]sent, n), 0
	request.Messages = make([]*rmqpb.Message, n)
	for i := range messages {
		var value, body []byte
		value, raw, _ = nextMessage(raw)
		m := &messages[i]
		m.head, body = splitBody(value)
		m.message.Body = body
		size += len(m.head)
		request.Messages[i] = &m.message
	}
	var all strings.Builder // of the heads: each text is a part of it
	all.Grow(size)
	for i := range messages {
		all.Write(messages[i].head)
	}
	d, texts := sendDecoder{}, all.String()
	for i := range messages {
		m := &messages[i]
		text := texts[:len(m.head)]
		texts = texts[len(m.head):]
		if d.decode(m, text) {
			continue
		}
		body := m.message.GetBody()
		if proto.Unmarshal(m.head, &m.message) != nil {
			return false
		}
		if body != nil {
			m.message.Body = body
		}
	}
	return true
}

// nextMessage takes the first message of an encoded SendMessageRequest. It returns false if a field
// of another kind comes first.
func nextMessage(raw []byte) (value, rest []byte, ok bool) {
	f, ok := readField(raw)
	return f.value, raw[f.length:], ok && f.number == sendMessages && f.kind == protowire.BytesType
}

// splitBody splits an encoded message before its body, which encoders write last. The body is nil,
// and all is head, if something follows the body or there is none.
func splitBody(m []byte) (head, body []byte) {
	for at := 0; at < len(m); {
		f, ok := readField(m[at:])
		if !ok {
			return m, nil
		}
		if f.number == messageBody && f.kind == protowire.BytesType {
			if at+f.length < len(m) {
				return m, nil
			}
			return m[:at], slices.Clip(f.value)
		}
		at += f.length
	}
	return m, nil
}

// A rawField is the first field of an encoded message.
type rawField struct {
	number protowire.Number
	kind   protowire.Type
	value  []byte // of a BytesType
	x      uint64 // of a VarintType
	length int    // of the field
}

// text returns the value as a part of the text that begins with the field.
func (f *rawField) text(from string) string { return from[f.length-len(f.value) : f.length] }

// readField reads the first field of raw. It returns false if there is none, or if raw cannot be
// decoded.
func readField(raw []byte) (f rawField, ok bool) {
	var n int
	if len(raw) > 0 && raw[0] < 0x80 { // most tags are of one byte
		f.number, f.kind, n = protowire.Number(raw[0]>>3), protowire.Type(raw[0]&7), 1
		if f.number < protowire.MinValidNumber {
			return rawField{}, false
		}
	} else if f.number, f.kind, n = protowire.ConsumeTag(raw); n < 0 {
		return rawField{}, false
	}
	var size int
	switch f.kind {
	case protowire.BytesType:
		f.value, size = protowire.ConsumeBytes(raw[n:])
	case protowire.VarintType:
		f.x, size = protowire.ConsumeVarint(raw[n:])
	default:
		size = protowire.ConsumeFieldValue(f.number, f.kind, raw[n:])
	}
	if size < 0 {
		return rawField{}, false
	}
	f.length = n + size
	return f, true
}

// A sendDecoder decodes the messages of one request. Most of them have the same topic and time of
// creation, which they share.
type sendDecoder struct {
	topic *rmqpb.Resource
	born  *timestamppb.Timestamp

	topicRaw, bornRaw []byte // the encodings of topic and born
}

// decode fills in a message from its head, which text is too. It returns false, and leaves the
// message undefined, if the head has other fields than producers send, has one twice that is not
// repeated, or cannot be decoded.
func (d *sendDecoder) decode(m *sent, text string) bool {
	for at := 0; at < len(m.head); {
		f, ok := readField(m.head[at:])
		if !ok || f.kind != protowire.BytesType {
			return false
		}
		from := text[at:]
		at += f.length
		switch f.number {
		case messageTopic:
			if m.message.Topic != nil || !d.takeTopic(f.value, f.text(from)) {
				return false
			}
			m.message.Topic = d.topic
		case messageProperties:
			name, value, ok := readPair(f.value, f.text(from))
			if !ok {
				return false
			}
			if m.message.UserProperties == nil {
				m.message.UserProperties = map[string]string{}
			}
			m.message.UserProperties[name] = value
		case messageSystem:
			if m.message.SystemProperties != nil || !d.system(&m.system, f.value, f.text(from)) {
				return false
			}
			m.message.SystemProperties = &m.system
		default:
			return false
		}
	}
	return true
}

// takeTopic sets d.topic.
func (d *sendDecoder) takeTopic(raw []byte, text string) bool {
	if d.topic != nil && bytes.Equal(raw, d.topicRaw) {
		return true
	}
	namespace, name, ok := readPair(raw, text)
	if ok {
		d.topic, d.topicRaw = &rmqpb.Resource{ResourceNamespace: namespace, Name: name}, raw
	}
	return ok
}

// takeBorn sets d.born.
func (d *sendDecoder) takeBorn(raw []byte) bool {
	if d.born != nil && bytes.Equal(raw, d.bornRaw) {
		return true
	}
	born, ok := readTimestamp(raw)
	if ok {
		d.born, d.bornRaw = born, raw
	}
	return ok
}

// system fills in p from its encoding, which text is too.
func (d *sendDecoder) system(p *rmqpb.SystemProperties, raw []byte, text string) bool {
	for at := 0; at < len(raw); {
		f, ok := readField(raw[at:])
		if !ok {
			return false
		}
		from := text[at:]
		at += f.length
		switch f.kind {
		case protowire.VarintType:
			ok = systemNumber(p, &f)
		case protowire.BytesType:
			ok = d.systemText(p, &f, from)
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

func systemNumber(p *rmqpb.SystemProperties, f *rawField) bool {
	x := int32(f.x) //nolint:gosec // protobuf's decoders cut off the rest too
	switch f.number {
	case sysBodyEncoding:
		p.BodyEncoding = rmqpb.Encoding(x)
	case sysMessageType:
		p.MessageType = rmqpb.MessageType(x)
	case sysQueueID:
		p.QueueId = x
	default:
		return false
	}
	return true
}

// systemText decodes a field of bytes, with which the text from begins.
func (d *sendDecoder) systemText(p *rmqpb.SystemProperties, f *rawField, from string) bool {
	switch f.number {
	case sysBornTimestamp:
		if p.BornTimestamp != nil || !d.takeBorn(f.value) {
			return false
		}
		p.BornTimestamp = d.born
		return true
	case sysDeliveryTimestamp:
		at, ok := readTimestamp(f.value)
		ok = ok && p.DeliveryTimestamp == nil
		p.DeliveryTimestamp = at
		return ok
	}
	if !utf8.Valid(f.value) {
		return false
	}
	switch value := f.text(from); f.number {
	case sysMessageID:
		p.MessageId = value
	case sysBornHost:
		p.BornHost = value
	case sysKeys:
		p.Keys = append(p.Keys, value)
	case sysTag:
		p.Tag = new(value)
	case sysMessageGroup:
		p.MessageGroup = new(value)
	case sysTraceContext:
		p.TraceContext = new(value)
	default:
		return false
	}
	return true
}

// readPair returns the two texts of a Resource, or of an entry of a map, from its encoding, which
// text is too.
func readPair(raw []byte, text string) (first, second string, ok bool) {
	for at := 0; at < len(raw); {
		f, ok := readField(raw[at:])
		if !ok || f.kind != protowire.BytesType || !utf8.Valid(f.value) {
			return "", "", false
		}
		from := text[at:]
		at += f.length
		switch f.number {
		case pairFirst:
			first = f.text(from)
		case pairSecond:
			second = f.text(from)
		default:
			return "", "", false
		}
	}
	return first, second, true
}

// Numbers of the fields of a Timestamp.
const (
	timestampSeconds = 1
	timestampNanos   = 2
)

func readTimestamp(raw []byte) (t *timestamppb.Timestamp, ok bool) {
	t = &timestamppb.Timestamp{}
	for at := 0; at < len(raw); {
		f, ok := readField(raw[at:])
		if !ok || f.kind != protowire.VarintType {
			return nil, false
		}
		at += f.length
		switch f.number {
		case timestampSeconds:
			t.Seconds = int64(f.x) //nolint:gosec // a negative number is encoded so
		case timestampNanos:
			t.Nanos = int32(f.x) //nolint:gosec // likewise
		default:
			return nil, false
		}
	}
	return t, true
}
