package server_test

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A rate divided by a floor's is the cost of a broker's work only if the floor's responses cost
// gRPC and the client as much as the broker's: the same frames, and messages with the same fields.
func TestFloorsRespondAsTheBrokerDoes(t *testing.T) {
	want := framesOf(t, serveBroker(t))
	for name, floor := range map[string]rmqpb.MessagingServiceServer{"relay": newRelay(t), "canned": newCanned(make([]byte, 1024))} {
		got := framesOf(t, serveFloor(t, floor))
		got = slices.CompactFunc(got, slices.Equal) // the canned responses have 32 messages
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s responds with\n%v, want\n%v", name, got, want)
		}
	}
}

// framesOf sends and receives a message, and returns the fields that are set in each frame of the
// response.
func framesOf(t *testing.T, address string) (frames [][]protoreflect.FullName) {
	client := newLoad(t, address, 1, 1).clients[0] // it has sent a message
	stream, err := client.ReceiveMessage(identified(t.Context()), &rmqpb.ReceiveMessageRequest{
		Group: benchGroup, MessageQueue: &rmqpb.MessageQueue{Topic: benchTopic, Id: -1}, BatchSize: 32,
		FilterExpression:  &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"},
		InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(time.Second),
	})
	for err == nil {
		var r *rmqpb.ReceiveMessageResponse
		if r, err = stream.Recv(); err == nil {
			fields := fieldsOf(r.ProtoReflect())
			slices.Sort(fields)
			frames = append(frames, fields)
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return frames
}

// fieldsOf returns the fields that are set in a message and in the messages of the protocol in it.
// It omits the number of the queue and the offset, which are zero for the first message.
func fieldsOf(m protoreflect.Message) (names []protoreflect.FullName) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Name() == "queue_id" || f.Name() == "queue_offset" {
			return true
		}
		names = append(names, f.FullName())
		if d := f.Message(); d != nil && !f.IsMap() && !f.IsList() && d.ParentFile() == m.Descriptor().ParentFile() {
			names = append(names, fieldsOf(v.Message())...)
		}
		return true
	})
	return names
}
