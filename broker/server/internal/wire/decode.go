package wire

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// decode fills in the request, unless its counts are too large. It frees the data, except for the
// bodies of a SendMessage, which share memory with it until Free.
func (in *Intake) decode(data mem.BufferSlice, request proto.Message) (refused, err error) {
	buf := data.MaterializeToBuffer(protomem.Pool)
	data.Free()
	raw := buf.ReadOnlyData()
	refused = checkSize(request, raw)
	send, isSend := request.(*rmqpb.SendMessageRequest)
	ack, isAck := request.(*rmqpb.AckMessageRequest)
	switch {
	case refused != nil:
	case isSend && decodeSend(raw, send):
		in.shared = buf
		return nil, nil
	case isAck && decodeAck(raw, ack):
	default:
		if err = proto.Unmarshal(raw, request); err != nil {
			err = status.Error(codes.Internal, "the request cannot be read: "+err.Error())
		}
	}
	buf.Free()
	return refused, err
}

// Free ends the use of the memory that the bodies of the last request share. No body may be used
// afterwards. Without Free the collector frees the memory.
func (in *Intake) Free() {
	if in.shared != nil {
		in.shared.Free()
		in.shared = nil
	}
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
	messages := make([]rmqpb.Message, n)
	request.Messages = make([]*rmqpb.Message, n)
	for i := range messages {
		var value []byte
		value, raw, _ = nextMessage(raw)
		head, body := splitBody(value)
		m := &messages[i]
		if proto.Unmarshal(head, m) != nil {
			return false
		}
		if body != nil {
			m.Body = body
		}
		request.Messages[i] = m
	}
	return true
}

// nextMessage takes the first message of an encoded SendMessageRequest. It returns false if a field
// of another kind comes first.
func nextMessage(raw []byte) (value, rest []byte, ok bool) {
	number, kind, n := protowire.ConsumeTag(raw)
	if n < 0 || number != sendMessages || kind != protowire.BytesType {
		return nil, nil, false
	}
	value, size := protowire.ConsumeBytes(raw[n:])
	if size < 0 {
		return nil, nil, false
	}
	return value, raw[n+size:], true
}

// splitBody splits an encoded message before its body, which encoders write last. The body is nil,
// and all is head, if something follows the body or there is none.
func splitBody(m []byte) (head, body []byte) {
	for at := 0; at < len(m); {
		number, kind, n := protowire.ConsumeTag(m[at:])
		if n < 0 {
			return m, nil
		}
		size := protowire.ConsumeFieldValue(number, kind, m[at+n:])
		if size < 0 {
			return m, nil
		}
		end := at + n + size
		if number == messageBody && kind == protowire.BytesType {
			if end < len(m) {
				return m, nil
			}
			body, _ = protowire.ConsumeBytes(m[at+n:])
			return m[:at], slices.Clip(body)
		}
		at = end
	}
	return m, nil
}
