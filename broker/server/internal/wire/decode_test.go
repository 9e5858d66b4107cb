package wire

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

func encodedSend(t *testing.T, bodies ...string) []byte {
	t.Helper()
	r := &rmqpb.SendMessageRequest{}
	for _, b := range bodies {
		r.Messages = append(r.Messages, &rmqpb.Message{
			Topic: &rmqpb.Resource{Name: "t"}, UserProperties: map[string]string{"k": "v"},
			SystemProperties: &rmqpb.SystemProperties{MessageId: "id of " + b}, Body: []byte(b),
		})
	}
	raw, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// message wraps an encoded Message as the field of a SendMessageRequest.
func message(fields ...[]byte) []byte {
	m := slices.Concat(fields...)
	return append(protowire.AppendVarint(protowire.AppendTag(nil, sendMessages, protowire.BytesType), uint64(len(m))), m...)
}

func bytesField(number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

// The messages and bodies of a request stay as they are until it is freed, while other requests
// are decoded.
func TestRequestsKeepTheirMemoryUntilFreed(t *testing.T) {
	read := func(c byte) (*Intake, *rmqpb.SendMessageRequest) {
		bodies := slices.Repeat([]string{string(bytes.Repeat([]byte{c}, 4<<10)), string(bytes.Repeat([]byte{c}, 100))}, minReused)
		raw := encodedSend(t, bodies...)
		in, r := &Intake{}, &rmqpb.SendMessageRequest{}
		half := mem.BufferSlice{mem.Copy(raw[:len(raw)/2], protomem.Pool), mem.Copy(raw[len(raw)/2:], protomem.Pool)}
		if refused, err := in.decode(half, r); refused != nil || err != nil {
			t.Fatal(refused, err)
		}
		return in, r
	}
	first, a := read('a')
	want := proto.CloneOf(a)
	for range 4 {
		second, b := read('b')
		if !proto.Equal(a, want) {
			t.Fatal("the first request changed before it was freed")
		}
		if b.GetMessages()[0].GetBody()[0] != 'b' {
			t.Fatal("the second request has the body of the first one")
		}
		second.Free()
	}
	first.Free()
	first.Free() // does no harm
	if len(a.GetMessages()) > 0 {
		t.Error("the first request still has messages after it was freed")
	}
}
