package wire

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// randomText returns a text of up to n bytes, which is empty as often as not.
func randomText(r *rand.Rand, n int) string {
	if r.IntN(2) == 0 {
		return ""
	}
	return strings.Repeat("é~\x00", n/4+1)[:2*r.IntN(n/2+1)]
}

// randomSending returns a request in which each field is empty, short or long.
func randomSending(r *rand.Rand) *Sending {
	moment := func() time.Time {
		return time.Unix(r.Int64N(1<<34)-1<<33, r.Int64N(3)*r.Int64N(1e9)/2).UTC()
	}
	s := &Sending{
		Encoder: &Encoder{Host: randomText(r, 20), Compression: r.IntN(2) * 200},
		Topic:   &rmqpb.Resource{ResourceNamespace: randomText(r, 10), Name: randomText(r, 200)},
		Queue:   int32(r.IntN(5) - 2), Born: moment(), Half: r.IntN(4) == 0,
	}
	s.Encoder.Namespace = s.Topic.GetResourceNamespace()
	for range r.IntN(4) {
		m := &tidegate.Message{
			ID: randomText(r, 40), Topic: s.Topic.GetName(), Tag: randomText(r, 10), MessageGroup: randomText(r, 150),
			TraceContext: randomText(r, 60), Body: bytes.Repeat([]byte{byte(r.Uint32())}, r.IntN(4)*r.IntN(400)),
		}
		for range r.IntN(3) {
			m.Keys = append(m.Keys, randomText(r, 20))
		}
		if r.IntN(2) == 0 { // protobuf encodes several in any order
			m.Properties = map[string]string{randomText(r, 200): randomText(r, 300)}
		}
		if r.IntN(2) == 0 {
			m.DeliverAt = moment()
		}
		s.Messages = append(s.Messages, m)
	}
	return s
}

// Invariant: a Sending is encoded as protobuf encodes its request, within the bound of its size.
func TestSendingIsEncodedAsProtobuf(t *testing.T) {
	for seed := range uint64(500) {
		s := randomSending(rand.New(rand.NewPCG(seed, 1)))
		data, err := FrameCodec{}.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		got, bound := data.Materialize(), 0
		data.Free()
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Request())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("seed %d: encoded as\n%x, want\n%x", seed, got, want)
		}
		for _, m := range s.Messages {
			bound += frameRoom + s.Encoder.SizeBound(m)
		}
		if len(got) > bound {
			t.Fatalf("seed %d: %d bytes, more than the bound of %d", seed, len(got), bound)
		}
	}
}

// A message with several properties is decoded without a change.
func TestSendingWithProperties(t *testing.T) {
	s := &Sending{Encoder: &Encoder{}, Topic: &rmqpb.Resource{Name: "t"}, Born: time.Now(), Messages: []*tidegate.Message{
		{ID: "a", Properties: map[string]string{"k": "v", "": "", "l": strings.Repeat("w", 200)}, Body: []byte("b")},
	}}
	data, err := FrameCodec{}.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	got := &rmqpb.SendMessageRequest{}
	if err := proto.Unmarshal(data.Materialize(), got); err != nil || !proto.Equal(got, s.Request()) {
		t.Errorf("decoded as %v, %v, want %v", got, err, s.Request())
	}
}

// A text that is not UTF-8 is an error, which names the field as protobuf's encoder does.
func TestSendingOfInvalidText(t *testing.T) {
	const bad = "\xff"
	for name, m := range map[string]*tidegate.Message{
		"tag": {Tag: bad}, "key": {Keys: []string{bad}}, "id": {ID: bad}, "group": {MessageGroup: bad}, "trace": {TraceContext: bad},
		"name of a property": {Properties: map[string]string{bad: ""}}, "value of a property": {Properties: map[string]string{"": bad}},
	} {
		for _, size := range []int{1, 2000} {
			m.Body = make([]byte, size)
			s := &Sending{Encoder: &Encoder{}, Topic: &rmqpb.Resource{Name: "t"}, Messages: []*tidegate.Message{{ID: "good"}, m}}
			_, want := proto.Marshal(s.Request())
			_, err := FrameCodec{}.Marshal(s)
			if err == nil || err.Error() != want.Error() {
				t.Errorf("%s, body of %d bytes: %v, want %v", name, size, err, want)
			}
		}
	}
}

func BenchmarkMarshalSending(b *testing.B) {
	s := &Sending{Encoder: &Encoder{Host: "host"}, Topic: &rmqpb.Resource{Name: "topic"}, Born: time.Now()}
	for range 100 {
		s.Messages = append(s.Messages, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "topic", Body: make([]byte, 1024)})
	}
	for name, v := range map[string]func() any{
		"protobuf": func() any { return s.Encoder.Request(s.Topic, s.Queue, s.Messages) },
		"sending":  func() any { return s },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				data, err := FrameCodec{}.Marshal(v())
				if err != nil {
					b.Fatal(err)
				}
				data.Free()
			}
		})
	}
}

// sentResponses returns encoded responses by name, and whether decodeSent takes them.
func sentResponses(t testing.TB) map[string]struct {
	raw  []byte
	take bool
} {
	ok, failed := &rmqpb.Status{Code: rmqpb.Code_OK, Message: "OK"}, &rmqpb.Status{Code: 12345, Message: "é"}
	whole := encode(t, &rmqpb.SendMessageResponse{Status: failed, Entries: []*rmqpb.SendResultEntry{
		{Status: ok, MessageId: "a", TransactionId: "b", Offset: 5, RecallHandle: "c"},
		{Status: ok, MessageId: "é", Offset: -1},
		{Status: failed}, {Status: &rmqpb.Status{}}, {}, {Status: ok},
	}})
	field := func(tag uint64, value string) []byte {
		return append(appendTag(nil, tag, len(value)), value...)
	}
	entry := func(value []byte) []byte { return field(tagSentEntries, string(value)) }
	status := field(tagEntryStatus, "\x08\x07")
	return map[string]struct {
		raw  []byte
		take bool
	}{
		"empty":                 {nil, true},
		"whole":                 {whole, true},
		"cut off":               {whole[:len(whole)-1], false},
		"status twice":          {append(bytes.Clone(status), status...), false},
		"status of entry twice": {entry(append(bytes.Clone(status), status...)), false},
		"ID twice":              {entry(append(field(tagEntryMessage, "a"), field(tagEntryMessage, "b")...)), true},
		"unknown":               {field(0x7a, "?"), false},
		"unknown in an entry":   {entry(field(0x7a, "?")), false},
		"unknown in a status":   {entry(field(tagEntryStatus, "\x18\x01")), false},
		"ID is not UTF-8":       {entry(field(tagEntryMessage, "\xff")), false},
		"text is not UTF-8":     {entry(field(tagEntryStatus, "\x12\x01\xff")), false},
		"ID is a number":        {entry([]byte{2 << 3, 1}), false},
		"entry is a number":     {[]byte{2 << 3, 1}, false},
		"cut off in an entry":   {entry([]byte{byte(tagEntryMessage), 5}), false},
	}
}

func TestDecodeSent(t *testing.T) {
	for name, c := range sentResponses(t) {
		t.Run(name, func(t *testing.T) {
			if took := checkDecodeSent(t, c.raw); took != c.take {
				t.Errorf("decodeSent returned %v, want %v", took, c.take)
			}
		})
	}
}

// Invariant: decodeSent returns false, or the same fields as protobuf's decoder.
func FuzzDecodeSent(f *testing.F) {
	for _, c := range sentResponses(f) {
		f.Add(c.raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) { checkDecodeSent(t, raw) })
}

// checkDecodeSent compares the codec with protobuf's decoder, and returns whether decodeSent took
// raw.
func checkDecodeSent(t *testing.T, raw []byte) bool {
	t.Helper()
	want := &rmqpb.SendMessageResponse{}
	wantErr := proto.Unmarshal(raw, want)
	took := decodeSent(raw, &rmqpb.SendMessageResponse{})
	if took && wantErr != nil {
		t.Errorf("decodeSent took bytes that protobuf rejects: %v", wantErr)
	}
	data, got := bytes.Clone(raw), &rmqpb.SendMessageResponse{}
	err := FrameCodec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, got)
	clear(data) // the response has memory of its own
	if (err == nil) != (wantErr == nil) || err == nil && !proto.Equal(want, got) {
		t.Errorf("decoded as %v, %v, want %v, %v", got, err, want, wantErr)
	}
	return took
}
