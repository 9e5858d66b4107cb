package wire

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// requests are encoded requests, with their description, and whether decodeSend accepts them.
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
		"tag of number 0":     {message([]byte{0x02, 0x00}), false},
		"end of a group":      {message(protowire.AppendTag(nil, messageTopic, protowire.EndGroupType)), false},
		"long tag":            {slices.Concat([]byte{0x8a, 0x00, 0x00}, encodedSend(t, "body")), true},
	}
}

// Invariant: decodeSend returns false, or the same as protobuf's decoder.
func FuzzDecodeSend(f *testing.F) {
	f.Add(message(bytesField(messageBody, "body")))
	for _, c := range sendHeads() {
		f.Add(message(c.head, bytesField(messageBody, "body")))
	}
	f.Fuzz(func(t *testing.T, raw []byte) { checkDecodeSend(t, raw) })
}

// checkDecodeSend compares decodeSend with protobuf's decoder, and returns whether it took raw.
func checkDecodeSend(t *testing.T, raw []byte) bool {
	t.Helper()
	want, got := &rmqpb.SendMessageRequest{}, &rmqpb.SendMessageRequest{}
	err := proto.Unmarshal(raw, want)
	list, took := decodeSend(raw, got)
	if took && (err != nil || !proto.Equal(want, got)) {
		t.Errorf("decoded as %v, want %v, %v", got, want, err)
	}
	if took && list != nil {
		if list.free(); len(got.Messages) > 0 {
			t.Error("the request has messages whose memory other requests use")
		}
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

// A sendHead is an encoded message without a body, and whether sendDecoder takes it.
type sendHead struct {
	head []byte
	take bool
}

func numberField(number protowire.Number, x uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), x)
}

// sendHeads are the heads of messages, by name.
func sendHeads() map[string]sendHead {
	whole := func(p *rmqpb.SystemProperties) []byte {
		raw, err := proto.Marshal(&rmqpb.Message{
			Topic: &rmqpb.Resource{ResourceNamespace: "n", Name: "t"}, SystemProperties: p,
			UserProperties: map[string]string{"k": "v", "": "", "é": "\x00"},
		})
		if err != nil {
			panic(err)
		}
		return raw
	}
	sys := func(fields ...[]byte) []byte {
		return bytesField(messageSystem, string(slices.Concat(fields...)))
	}
	topic := bytesField(messageTopic, string(bytesField(2, "t")))
	property := func(fields ...[]byte) []byte {
		return bytesField(messageProperties, string(slices.Concat(fields...)))
	}
	heads := map[string]sendHead{
		"all that producers send": {whole(&rmqpb.SystemProperties{
			Tag: new("tag"), Keys: []string{"a", "", "b"}, MessageId: "id", BodyEncoding: rmqpb.Encoding_GZIP,
			MessageType: rmqpb.MessageType_DELAY, BornTimestamp: timestamppb.New(time.Unix(-5, 7)), BornHost: "host",
			DeliveryTimestamp: timestamppb.New(time.Unix(1<<40, 999)), QueueId: math.MinInt32,
			MessageGroup: new(""), TraceContext: new("trace"),
		}), true},
		"properties of servers": {whole(&rmqpb.SystemProperties{
			ReceiptHandle: new("h"), QueueOffset: new(int64(5)), StoreHost: "s", StoreTimestamp: timestamppb.Now(),
			InvisibleDuration: durationpb.New(time.Second), DeliveryAttempt: new(int32(3)),
		}), false},
		"digest":                  {sys(bytesField(sysBodyDigest, string(numberField(1, 1)))), false},
		"empty system properties": {sys(), true},
		"empty topic":             {bytesField(messageTopic, ""), true},
		"no time":                 {sys(bytesField(sysBornTimestamp, "")), true},
		"two topics":              {slices.Concat(topic, topic), false},
		"two system properties":   {slices.Concat(sys(bytesField(sysMessageID, "a")), sys(bytesField(sysTag, "b"))), false},
		"two born times":          {sys(bytesField(sysBornTimestamp, string(numberField(1, 1))), bytesField(sysBornTimestamp, string(numberField(2, 2)))), false},
		"two delivery times":      {sys(bytesField(sysDeliveryTimestamp, string(numberField(1, 1))), bytesField(sysDeliveryTimestamp, string(numberField(2, 2)))), false},
		"two IDs":                 {sys(bytesField(sysMessageID, "a"), bytesField(sysMessageID, "b")), true},
		"two tags":                {sys(bytesField(sysTag, "a"), bytesField(sysTag, "b")), true},
		"number above 32 bits":    {sys(numberField(sysQueueID, math.MaxUint64-5), numberField(sysMessageType, 1<<33+2)), true},
		"unknown type":            {sys(numberField(sysMessageType, 77)), true},
		"ID is a number":          {sys(numberField(sysMessageID, 7)), false},
		"queue is a text":         {sys(bytesField(sysQueueID, "7")), false},
		"fixed number":            {sys(protowire.AppendFixed32(protowire.AppendTag(nil, sysQueueID, protowire.Fixed32Type), 7)), false},
		"time is a text":          {sys(bytesField(sysBornTimestamp, string(bytesField(1, "7")))), false},
		"unknown in a time":       {sys(bytesField(sysDeliveryTimestamp, string(numberField(3, 7)))), false},
		"ID is not UTF-8":         {sys(bytesField(sysMessageID, "\xff")), false},
		"property twice":          {slices.Concat(property(bytesField(1, "k"), bytesField(2, "a")), property(bytesField(1, "k"), bytesField(2, "b"))), true},
		"value before the name":   {property(bytesField(2, "v"), bytesField(1, "k")), true},
		"name alone":              {property(bytesField(1, "k")), true},
		"empty property":          {property(), true},
		"unknown in a property":   {property(bytesField(1, "k"), bytesField(3, "?")), false},
		"property is not UTF-8":   {property(bytesField(1, "k"), bytesField(2, "\xff")), false},
		"unknown in a topic":      {bytesField(messageTopic, string(bytesField(3, "?"))), false},
		"cut off in a topic":      {bytesField(messageTopic, "\x12"), false},
		"topic is a number":       {numberField(messageTopic, 7), false},
	}
	return heads
}

// The decoder takes all that producers send. Others, and errors, it leaves to protobuf's decoder.
func TestSendDecoderTakesTheFieldsOfProducers(t *testing.T) {
	for name, c := range sendHeads() {
		t.Run(name, func(t *testing.T) {
			checkDecodeSend(t, message(c.head))
			checkDecodeSend(t, slices.Concat(message(c.head, bytesField(messageBody, "a")), message(c.head), message(c.head)))
			m := sent{head: c.head}
			if took := (&sendDecoder{}).decode(&m, string(c.head)); took != c.take {
				t.Errorf("the decoder returned %v, want %v", took, c.take)
			}
		})
	}
}

// A request has nothing of an earlier one whose memory it uses again.
func TestDecodeSendUsesMemoryAgain(t *testing.T) {
	for range 2 {
		for name, c := range sendHeads() {
			for _, n := range []int{minReused, minReused + 5, minReused - 1} {
				if raw := bytes.Repeat(message(c.head), n); !checkDecodeSend(t, raw) && c.take {
					t.Errorf("%s: decodeSend returned false", name)
				}
			}
		}
	}
}

// The messages of a request have topics and times of their own, also if they share some.
func TestDecodeSendOfDifferentMessages(t *testing.T) {
	r := &rmqpb.SendMessageRequest{}
	for i := range 12 {
		r.Messages = append(r.Messages, &rmqpb.Message{
			Topic: &rmqpb.Resource{Name: fmt.Sprint("t", i/2%3)}, Body: []byte{byte(i)},
			SystemProperties: &rmqpb.SystemProperties{MessageId: fmt.Sprint(i), BornTimestamp: &timestamppb.Timestamp{Seconds: int64(i / 3 % 2)}},
		})
	}
	r.Messages[5].Topic, r.Messages[6].SystemProperties.BornTimestamp = nil, nil
	raw, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if !checkDecodeSend(t, raw) {
		t.Error("decodeSend returned false")
	}
}

// A request shares no memory with the buffer that it was read into, except for its bodies.
func TestSendKeepsOnlyBodies(t *testing.T) {
	var raw []byte
	for _, name := range []string{"all that producers send", "properties of servers"} {
		raw = append(raw, message(sendHeads()[name].head)...)
	}
	want, got := &rmqpb.SendMessageRequest{}, &rmqpb.SendMessageRequest{}
	if err := proto.Unmarshal(bytes.Clone(raw), want); err != nil {
		t.Fatal(err)
	}
	if refused, err := (&Intake{}).decode(mem.BufferSlice{mem.SliceBuffer(raw)}, got); refused != nil || err != nil {
		t.Fatal(refused, err)
	}
	clear(raw)
	if !proto.Equal(want, got) {
		t.Errorf("decoded as %v, want %v", got, want)
	}
}

// BenchmarkDecodeSend decodes a request of 100 messages of 1 KiB.
func BenchmarkDecodeSend(b *testing.B) {
	r, body := &rmqpb.SendMessageRequest{}, make([]byte, 1024)
	for i := range 100 {
		r.Messages = append(r.Messages, &rmqpb.Message{
			Topic: &rmqpb.Resource{Name: "topic"}, Body: body,
			SystemProperties: &rmqpb.SystemProperties{
				MessageId: fmt.Sprintf("%036d", i), BodyEncoding: rmqpb.Encoding_IDENTITY,
				MessageType: rmqpb.MessageType_NORMAL, BornTimestamp: timestamppb.New(time.Unix(1, 1)), BornHost: "host",
			},
		})
	}
	raw, err := proto.Marshal(r)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		in := &Intake{}
		if refused, err := in.decode(mem.BufferSlice{mem.Copy(raw, protomem.Pool)}, &rmqpb.SendMessageRequest{}); refused != nil || err != nil {
			b.Fatal(refused, err)
		}
		in.Free()
	}
}
