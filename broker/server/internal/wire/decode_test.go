package wire

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
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

// requests are encoded requests, by what they are, and whether decodeSend takes them.
func requests(t *testing.T) map[string]struct {
	raw  []byte
	take bool
} {
	topic := bytesField(messageTopic, string(bytesField(2, "t")))
	body, other := bytesField(messageBody, "body"), bytesField(messageBody, "other")
	unknown := bytesField(500, "?")
	return map[string]struct {
		raw  []byte
		take bool
	}{
		"empty":               {nil, true},
		"one message":         {encodedSend(t, "body"), true},
		"many messages":       {encodedSend(t, "a", "", "c"), true},
		"no body":             {message(topic), true},
		"no field":            {message(), true},
		"empty body":          {message(topic, bytesField(messageBody, "")), true},
		"body first":          {message(body, topic), true},
		"two bodies":          {message(topic, body, other), true},
		"unknown field":       {message(topic, unknown, body), true},
		"unknown after body":  {message(topic, body, unknown), true},
		"field of a request":  {slices.Concat(encodedSend(t, "body"), unknown), false},
		"a text is not UTF-8": {message(bytesField(messageTopic, string(bytesField(2, "\xff"))), body), false},
		"body is a number":    {message(topic, protowire.AppendVarint(protowire.AppendTag(nil, messageBody, protowire.VarintType), 7)), true},
		"cut off":             {encodedSend(t, "body")[:20], false},
		"cut off within":      {message(body[:3]), false},
	}
}

func FuzzDecodeSend(f *testing.F) {
	f.Add(message(bytesField(messageBody, "body")))
	f.Fuzz(func(t *testing.T, raw []byte) { checkDecodeSend(t, raw) })
}

// checkDecodeSend compares decodeSend with protobuf's decoder, and returns whether it took raw.
func checkDecodeSend(t *testing.T, raw []byte) bool {
	t.Helper()
	want, got := &rmqpb.SendMessageRequest{}, &rmqpb.SendMessageRequest{}
	err, took := proto.Unmarshal(raw, want), decodeSend(raw, got)
	if took && (err != nil || !proto.Equal(want, got)) {
		t.Errorf("decoded as %v, want %v, %v", got, want, err)
	}
	return took
}

func TestDecodeSend(t *testing.T) {
	for name, r := range requests(t) {
		t.Run(name, func(t *testing.T) {
			if took := checkDecodeSend(t, r.raw); took != r.take {
				t.Errorf("decodeSend returned %v, want %v", took, r.take)
			}
		})
	}
}

// The bodies of a request stay as they are until it is freed, whatever other requests bring.
func TestBodiesKeepTheirMemoryUntilFreed(t *testing.T) {
	read := func(c byte) (*Intake, *rmqpb.SendMessageRequest) {
		raw := encodedSend(t, string(bytes.Repeat([]byte{c}, 4<<10)), string(bytes.Repeat([]byte{c}, 100)))
		in, r := &Intake{}, &rmqpb.SendMessageRequest{}
		half := mem.BufferSlice{mem.Copy(raw[:len(raw)/2], protomem.Pool), mem.Copy(raw[len(raw)/2:], protomem.Pool)}
		if refused, err := in.decode(half, r); refused != nil || err != nil {
			t.Fatal(refused, err)
		}
		return in, r
	}
	first, a := read('a')
	for range 4 {
		second, b := read('b')
		for i, m := range a.GetMessages() {
			if want := bytes.Repeat([]byte{'a'}, len(m.GetBody())); !bytes.Equal(m.GetBody(), want) {
				t.Fatalf("body %d changed before its request was freed", i)
			}
		}
		if b.GetMessages()[0].GetBody()[0] != 'b' {
			t.Fatal("the second request has the body of the first one")
		}
		second.Free()
	}
	first.Free()
	first.Free() // does no harm
}
