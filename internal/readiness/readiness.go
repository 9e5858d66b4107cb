// Package readiness has the report of a watch: that receives from some queues may find messages.
// The broker sends it in the Telemetry stream of a consumer group, and the client reads it.
package readiness

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// readyField is the field of a TelemetryCommand with the queues of watches, a MessageQueue each
// with topic and ID. RocketMQ's protocol does not have the field, and only clients that announce
// "watch" get it.
const readyField = 1000

// A Queue is the subject of a watch.
type Queue struct {
	Topic string
	Queue int32 // -1 for all queues
}

// Report returns the command that reports that receives from the queues may find messages.
func Report(queues []Queue) (*rmqpb.TelemetryCommand, error) {
	var b []byte
	for _, q := range queues {
		encoded, err := proto.Marshal(&rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: q.Topic}, Id: q.Queue})
		if err != nil {
			return nil, err
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, readyField, protowire.BytesType), encoded)
	}
	cmd := &rmqpb.TelemetryCommand{Status: &rmqpb.Status{Code: rmqpb.Code_OK}}
	cmd.ProtoReflect().SetUnknown(b)
	return cmd, nil
}

// Queues returns the queues of a command of Report, and none for another command.
func Queues(cmd *rmqpb.TelemetryCommand) (queues []Queue) {
	for b := []byte(cmd.ProtoReflect().GetUnknown()); len(b) > 0; {
		number, kind, value, n := field(b)
		if n < 0 {
			return queues
		}
		b = b[n:]
		var q rmqpb.MessageQueue
		if number == readyField && kind == protowire.BytesType && proto.Unmarshal(value, &q) == nil {
			queues = append(queues, Queue{q.GetTopic().GetName(), q.GetId()})
		}
	}
	return queues
}

// field returns the first field of b, the bytes of its value, and its length, which is negative if
// b is damaged. value is empty unless kind is BytesType.
func field(b []byte) (number protowire.Number, kind protowire.Type, value []byte, length int) {
	number, kind, length = protowire.ConsumeTag(b)
	if length < 0 {
		return 0, 0, nil, length
	}
	n := protowire.ConsumeFieldValue(number, kind, b[length:])
	if n < 0 {
		return 0, 0, nil, n
	}
	if kind == protowire.BytesType {
		value, _ = protowire.ConsumeBytes(b[length:])
	}
	return number, kind, value, length + n
}
