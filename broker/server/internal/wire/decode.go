package wire

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
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
			err = status.Error(codes.Internal, "the request is malformed: "+err.Error())
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
