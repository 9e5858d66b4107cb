package wire

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// decodeSend decodes a request whose bodies share memory with raw. Its messages are in list, which
// is nil if their memory is not used again. decodeSend returns false, and leaves the request
// undefined, if raw has more than messages or cannot be decoded.
func decodeSend(raw []byte, request *rmqpb.SendMessageRequest) (list *sentList, ok bool) {
	n := 0
	for rest := raw; len(rest) > 0; n++ {
		if _, rest, ok = nextMessage(rest); !ok {
			return nil, false
		}
	}
	list, messages := newSent(n, request)
	size := 0
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
			return nil, false
		}
		if body != nil {
			m.message.Body = body
		}
	}
	return list, true
}

// nextMessage takes the first message of an encoded SendMessageRequest. It returns false if a field
// of another kind comes first.
func nextMessage(raw []byte) (value, rest []byte, ok bool) {
	number, kind, value, n := readField(raw)
	if n < 0 || number != sendMessages || kind != protowire.BytesType {
		return nil, nil, false
	}
	return value, raw[n:], true
}

// splitBody splits an encoded message before its body, which encoders write last. The body is nil,
// and all is head, if something follows the body or there is none.
func splitBody(m []byte) (head, body []byte) {
	for at := 0; at < len(m); {
		number, kind, value, n := readField(m[at:])
		if n < 0 {
			return m, nil
		}
		if number == messageBody && kind == protowire.BytesType {
			if at+n < len(m) {
				return m, nil
			}
			return m[:at], slices.Clip(value)
		}
		at += n
	}
	return m, nil
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
		number, kind, raw, n := readField(m.head[at:])
		if n < 0 || kind != protowire.BytesType {
			return false
		}
		at += n
		part := text[at-len(raw) : at]
		switch number {
		case messageTopic:
			if m.message.Topic != nil || !d.takeTopic(raw, part) {
				return false
			}
			m.message.Topic = d.topic
		case messageProperties:
			name, value, ok := readPair(raw, part)
			if !ok {
				return false
			}
			if m.message.UserProperties == nil {
				m.message.UserProperties = map[string]string{}
			}
			m.message.UserProperties[name] = value
		case messageSystem:
			if m.message.SystemProperties != nil || !d.system(&m.system, raw, part) {
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
		number, kind, value, n := readField(raw[at:])
		if n < 0 {
			return false
		}
		at += n
		var ok bool
		switch kind {
		case protowire.VarintType:
			ok = systemNumber(p, number, value)
		case protowire.BytesType:
			ok = d.systemText(p, number, value, text[at-len(value):at])
		}
		if !ok {
			return false
		}
	}
	return true
}

func systemNumber(p *rmqpb.SystemProperties, number protowire.Number, value []byte) bool {
	x := int32(varint(value)) //nolint:gosec // protobuf's decoders cut off the rest too
	switch number {
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

// systemText decodes a field of bytes, which text is too.
func (d *sendDecoder) systemText(p *rmqpb.SystemProperties, number protowire.Number, raw []byte, text string) bool {
	switch number {
	case sysBornTimestamp:
		if p.BornTimestamp != nil || !d.takeBorn(raw) {
			return false
		}
		p.BornTimestamp = d.born
		return true
	case sysDeliveryTimestamp:
		at, ok := readTimestamp(raw)
		ok = ok && p.DeliveryTimestamp == nil
		p.DeliveryTimestamp = at
		return ok
	}
	if !utf8.Valid(raw) {
		return false
	}
	switch number {
	case sysMessageID:
		p.MessageId = text
	case sysBornHost:
		p.BornHost = text
	case sysKeys:
		p.Keys = append(p.Keys, text)
	case sysTag:
		p.Tag = new(text)
	case sysMessageGroup:
		p.MessageGroup = new(text)
	case sysTraceContext:
		p.TraceContext = new(text)
	default:
		return false
	}
	return true
}

// readPair returns the two texts of a Resource, or of an entry of a map, from its encoding, which
// text is too.
func readPair(raw []byte, text string) (first, second string, ok bool) {
	for at := 0; at < len(raw); {
		number, kind, value, n := readField(raw[at:])
		if n < 0 || kind != protowire.BytesType || !utf8.Valid(value) {
			return "", "", false
		}
		at += n
		switch number {
		case pairFirst:
			first = text[at-len(value) : at]
		case pairSecond:
			second = text[at-len(value) : at]
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
		number, kind, value, n := readField(raw[at:])
		if n < 0 || kind != protowire.VarintType {
			return nil, false
		}
		at += n
		switch number {
		case timestampSeconds:
			t.Seconds = int64(varint(value)) //nolint:gosec // a negative number is encoded so
		case timestampNanos:
			t.Nanos = int32(varint(value)) //nolint:gosec // likewise
		default:
			return nil, false
		}
	}
	return t, true
}
