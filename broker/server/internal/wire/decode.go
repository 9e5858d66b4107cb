package wire

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// decode fills in the request, unless its counts are too large. It frees the data, except for the
// bodies of a SendMessage, which share memory with it until Free.
func (in *Intake) decode(data mem.BufferSlice, request proto.Message) (refused, err error) {
	buf := data.MaterializeToBuffer(protomem.Pool)
	data.Free()
	raw := buf.ReadOnlyData()
	refused = checkSize(request, raw)
	if send, ok := request.(*rmqpb.SendMessageRequest); ok && refused == nil {
		if list, ok := decodeSend(raw, send); ok {
			in.shared, in.sent = buf, list
			return nil, nil
		}
	}
	ack, isAck := request.(*rmqpb.AckMessageRequest)
	switch {
	case refused != nil:
	case isAck && decodeAck(raw, ack):
	default:
		if err = proto.Unmarshal(raw, request); err != nil {
			err = status.Error(codes.Internal, "the request is malformed: "+err.Error())
		}
	}
	buf.Free()
	return refused, err
}

// Free ends the use of the last request if it is a SendMessage: no message and no body of it may be
// used afterwards, because other requests use their memory. Texts, topics, keys and properties
// remain valid. Without Free the collector frees the memory.
func (in *Intake) Free() {
	if in.shared != nil {
		in.shared.Free()
		in.shared = nil
	}
	if in.sent != nil {
		in.sent.free()
		in.sent = nil
	}
}
