package readiness_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/readiness"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A client reads the queues that the broker reports. A client of RocketMQ reads a command without a
// content.
func TestReadyQueues(t *testing.T) {
	t.Parallel()
	for _, queues := range [][]readiness.Queue{
		nil,
		{{Topic: "orders", Queue: 0}},
		{{Topic: "orders", Queue: -1}, {Topic: "payments", Queue: 7}, {Topic: "", Queue: 3}},
	} {
		cmd, err := readiness.Report(queues)
		if err != nil {
			t.Fatal(err)
		}
		encoded, err := proto.Marshal(cmd)
		if err != nil {
			t.Fatal(err)
		}
		read := &rmqpb.TelemetryCommand{}
		if err := proto.Unmarshal(encoded, read); err != nil {
			t.Fatal(err)
		}
		if got := readiness.Queues(read); !slices.Equal(got, queues) {
			t.Errorf("%v were read as %v", queues, got)
		}
		if read.GetStatus().GetCode() != rmqpb.Code_OK || read.GetCommand() != nil {
			t.Errorf("RocketMQ's clients read %v, want the status OK alone", read)
		}
	}
}

// Commands of other kinds have no queues, also with fields that this version does not know.
func TestReadyQueuesOfOtherCommands(t *testing.T) {
	t.Parallel()
	settings := &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: &rmqpb.Settings{}}}
	if got := readiness.Queues(settings); len(got) > 0 {
		t.Errorf("settings have the queues %v", got)
	}
	queue, err := proto.Marshal(&rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: "orders"}, Id: 2})
	if err != nil {
		t.Fatal(err)
	}
	var unknown []byte
	unknown = protowire.AppendVarint(protowire.AppendTag(unknown, 1000, protowire.VarintType), 5)       // another type
	unknown = protowire.AppendBytes(protowire.AppendTag(unknown, 1001, protowire.BytesType), queue)     // another number
	unknown = protowire.AppendBytes(protowire.AppendTag(unknown, 1000, protowire.BytesType), []byte{7}) // no queue
	settings.ProtoReflect().SetUnknown(unknown)
	if got := readiness.Queues(settings); len(got) > 0 {
		t.Errorf("unknown fields have the queues %v", got)
	}
	unknown = protowire.AppendBytes(protowire.AppendTag(unknown, 1000, protowire.BytesType), queue)
	settings.ProtoReflect().SetUnknown(append(unknown, 0xff)) // cut off
	if got := readiness.Queues(settings); !slices.Equal(got, []readiness.Queue{{Topic: "orders", Queue: 2}}) {
		t.Errorf("beside damaged fields there are the queues %v", got)
	}
}

// Any bytes of a peer are read without a panic. The result survives another round of encoding.
func FuzzReadyQueues(f *testing.F) {
	for _, queues := range [][]readiness.Queue{{{Topic: "orders", Queue: 1}}, {{Topic: "a", Queue: -1}, {Topic: "b"}}} {
		cmd, err := readiness.Report(queues)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(cmd.ProtoReflect().GetUnknown()))
	}
	f.Add([]byte{0xc2, 0x3e, 0x05, 0x0a})       // a queue that ends early
	f.Add([]byte{0xc0, 0x3e, 0xff, 0xff, 0xff}) // a number that does not end
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, unknown []byte) {
		cmd := &rmqpb.TelemetryCommand{}
		cmd.ProtoReflect().SetUnknown(unknown)
		queues := readiness.Queues(cmd)
		again, err := readiness.Report(queues)
		if err != nil {
			t.Fatalf("queues %v that were read cannot be written: %v", queues, err)
		}
		if got := readiness.Queues(again); !slices.Equal(got, queues) {
			t.Errorf("%v were read as %v", queues, got)
		}
	})
}
