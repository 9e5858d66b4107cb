package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

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
		Queue:   int32(r.IntN(5) - 2), Born: moment(), Half: r.IntN(4) == 0, Ranked: r.IntN(3) == 0,
	}
	s.Encoder.Namespace = randomText(r, 10)
	for range r.IntN(4) {
		m := &tidegate.Message{
			ID: randomText(r, 40), Topic: randomText(r, 200), Tag: randomText(r, 10), MessageGroup: randomText(r, 150),
			TraceContext: randomText(r, 60), Body: bytes.Repeat([]byte{byte(r.Uint32())}, r.IntN(4)*r.IntN(400)),
		}
		if r.IntN(2) == 0 {
			m.MessageGroup = ""
		}
		if r.IntN(3) == 0 {
			m.LiteTopic = randomText(r, 64)
		}
		if r.IntN(3) == 0 {
			m.Priority = r.IntN(1<<uint(r.IntN(32))) - r.IntN(2) //nolint:gosec // small
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
		data, err := Codec{}.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		got, bound := data.Materialize(), 0
		data.Free()
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(requestOf(s))
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
	s := &Sending{Encoder: &Encoder{}, Born: time.Now(), Messages: []*tidegate.Message{
		{ID: "a", Properties: map[string]string{"k": "v", "": "", "l": strings.Repeat("w", 200)}, Body: []byte("b")},
	}}
	data, err := Codec{}.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	got := &rmqpb.SendMessageRequest{}
	if err := proto.Unmarshal(data.Materialize(), got); err != nil || !proto.Equal(got, requestOf(s)) {
		t.Errorf("decoded as %v, %v, want %v", got, err, requestOf(s))
	}
}

// A text that is not UTF-8 is an error, which names the message.
func TestSendingOfInvalidText(t *testing.T) {
	const bad = "\xff"
	for name, m := range map[string]*tidegate.Message{
		"tag": {Tag: bad}, "key": {Keys: []string{bad}}, "id": {ID: bad}, "group": {MessageGroup: bad}, "trace": {TraceContext: bad},
		"name of a property": {Properties: map[string]string{bad: ""}}, "value of a property": {Properties: map[string]string{"": bad}},
	} {
		for _, size := range []int{1, 2000} {
			m.Body = make([]byte, size)
			s := &Sending{Encoder: &Encoder{}, Messages: []*tidegate.Message{{ID: "good"}, m}}
			if _, err := (Codec{}).Marshal(s); !errors.Is(err, errNotUTF8) || !strings.Contains(err.Error(), fmt.Sprintf("message %q", m.ID)) {
				t.Errorf("%s, body of %d bytes: %v", name, size, err)
			}
		}
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
	err := Codec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, got)
	clear(data) // the response has memory of its own
	if (err == nil) != (wantErr == nil) || err == nil && !proto.Equal(want, got) {
		t.Errorf("decoded as %v, %v, want %v, %v", got, err, want, wantErr)
	}
	return took
}

func TestSizeBound(t *testing.T) {
	e := &Encoder{Host: "host", Namespace: "space"}
	rnd := rand.New(rand.NewPCG(1, 2))
	text := func(most int) string { return strings.Repeat("x", rnd.IntN(most+1)) }
	for range 300 {
		most := []int{0, 10, 130, 20000}[rnd.IntN(4)]
		m := &tidegate.Message{ID: text(most), Topic: text(most), Tag: text(most), MessageGroup: text(most), TraceContext: text(most),
			Body: []byte(text(10 * most)), Properties: map[string]string{}, DeliverAt: time.Unix(-1<<33, 999999999)}
		for range rnd.IntN(50) {
			m.Keys = append(m.Keys, text(most))
			m.Properties[fmt.Sprint(rnd.Uint64())+text(most/100)] = text(most)
		}
		n := proto.Size(requestOf(&Sending{
			Encoder: e, Queue: math.MaxInt32,
			Born: time.Unix(-1<<33, 999999999), Messages: []*tidegate.Message{m},
		}))
		if bound := e.SizeBound(m); bound < n || bound > n+256+8*len(m.Keys)+21*len(m.Properties) {
			t.Fatalf("%d bytes, bound %d, of %d keys and %d properties", n, bound, len(m.Keys), len(m.Properties))
		}
	}
}

// requestOf returns a request in the generated types, with which the hand-written encoding must
// agree.
func requestOf(s *Sending) *rmqpb.SendMessageRequest {
	r := &rmqpb.SendMessageRequest{}
	for _, m := range s.Messages {
		pb := messageOf(m)
		pb.Topic = &rmqpb.Resource{ResourceNamespace: s.Encoder.Namespace, Name: m.Topic}
		p := pb.SystemProperties
		p.BornTimestamp, p.BornHost, p.QueueId = timestamppb.New(s.Born), s.Encoder.Host, s.Queue
		if s.Half {
			p.MessageType = rmqpb.MessageType_TRANSACTION
		} else if s.Ranked && p.MessageType == rmqpb.MessageType_NORMAL {
			p.MessageType, p.Priority = rmqpb.MessageType_PRIORITY, new(int32(0))
		}
		if n := s.Encoder.Compression; n > 0 && len(m.Body) > n {
			if z := Gzip(m.Body); len(z) < len(m.Body) {
				pb.Body, p.BodyEncoding = z, rmqpb.Encoding_GZIP
			}
		}
		r.Messages = append(r.Messages, pb)
	}
	return r
}

// messageOf returns what sends and deliveries of a message have in common.
func messageOf(m *tidegate.Message) *rmqpb.Message {
	text := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	p := &rmqpb.SystemProperties{
		Tag: text(m.Tag), Keys: m.Keys, MessageId: m.ID, MessageGroup: text(m.MessageGroup), TraceContext: text(m.TraceContext),
		BodyEncoding: rmqpb.Encoding_IDENTITY, MessageType: rmqpb.MessageType_NORMAL,
	}
	if m.Priority != 0 {
		p.Priority, p.MessageType = new(int32(m.Priority)), rmqpb.MessageType_PRIORITY
	}
	if !m.DeliverAt.IsZero() {
		p.DeliveryTimestamp, p.MessageType = timestamppb.New(m.DeliverAt), rmqpb.MessageType_DELAY
	}
	if m.LiteTopic != "" {
		p.LiteTopic, p.MessageType = new(m.LiteTopic), rmqpb.MessageType_LITE
	}
	if m.MessageGroup != "" {
		p.MessageType = rmqpb.MessageType_FIFO
	}
	return &rmqpb.Message{UserProperties: m.Properties, SystemProperties: p, Body: m.Body}
}

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
	return append(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.BytesType), uint64(len(m))), m...)
}

func bytesField(number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

// requests are encoded requests, with their description, and whether DecodeSend accepts them.
func requests(t *testing.T) map[string]struct {
	raw  []byte
	take bool
} {
	topic := bytesField(1, string(bytesField(2, "t")))
	body, other := bytesField(4, "body"), bytesField(4, "other")
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
		"empty body":          {message(topic, bytesField(4, "")), true},
		"body first":          {message(body, topic), true},
		"two bodies":          {message(topic, body, other), true},
		"unknown field":       {message(topic, unknown, body), true},
		"unknown after body":  {message(topic, body, unknown), true},
		"field of a request":  {slices.Concat(encodedSend(t, "body"), unknown), false},
		"a text is not UTF-8": {message(bytesField(1, string(bytesField(2, "\xff"))), body), false},
		"body is a number":    {message(topic, protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 7)), true},
		"cut off":             {encodedSend(t, "body")[:20], false},
		"cut off within":      {message(body[:3]), false},
		"tag of number 0":     {message([]byte{0x02, 0x00}), false},
		"end of a group":      {message(protowire.AppendTag(nil, 1, protowire.EndGroupType)), false},
		"long tag":            {slices.Concat([]byte{0x8a, 0x00, 0x00}, encodedSend(t, "body")), true},
	}
}

// Invariant: DecodeSend returns false, or the same as protobuf's decoder.
func FuzzDecodeSend(f *testing.F) {
	f.Add(message(bytesField(4, "body")))
	for _, c := range sendHeads() {
		f.Add(message(c.head, bytesField(4, "body")))
	}
	f.Fuzz(func(t *testing.T, raw []byte) { checkDecodeSend(t, raw) })
}

// checkDecodeSend compares DecodeSend with protobuf's decoder, and returns whether it took raw.
func checkDecodeSend(t *testing.T, raw []byte) bool {
	t.Helper()
	want, got := &rmqpb.SendMessageRequest{}, &rmqpb.SendMessageRequest{}
	err := proto.Unmarshal(raw, want)
	list, took := DecodeSend(raw, got)
	if took && (err != nil || !proto.Equal(want, got)) {
		t.Errorf("decoded as %v, want %v, %v", got, want, err)
	}
	if took && list != nil {
		if list.Free(); len(got.Messages) > 0 {
			t.Error("the request has messages whose memory other requests use")
		}
	}
	return took
}

func TestDecodeSend(t *testing.T) {
	for name, r := range requests(t) {
		t.Run(name, func(t *testing.T) {
			if took := checkDecodeSend(t, r.raw); took != r.take {
				t.Errorf("DecodeSend returned %v, want %v", took, r.take)
			}
		})
	}
}

// A sendHead is an encoded message without a body, and whether the decoder takes it.
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
		return bytesField(3, string(slices.Concat(fields...)))
	}
	topic := bytesField(1, string(bytesField(2, "t")))
	property := func(fields ...[]byte) []byte {
		return bytesField(2, string(slices.Concat(fields...)))
	}
	heads := map[string]sendHead{
		"all that producers send": {whole(&rmqpb.SystemProperties{
			Tag: new("tag"), Keys: []string{"a", "", "b"}, MessageId: "id", BodyEncoding: rmqpb.Encoding_GZIP,
			MessageType: rmqpb.MessageType_DELAY, BornTimestamp: timestamppb.New(time.Unix(-5, 7)), BornHost: "host",
			DeliveryTimestamp: timestamppb.New(time.Unix(1<<40, 999)), QueueId: math.MinInt32,
			MessageGroup: new(""), TraceContext: new("trace"), Priority: new(int32(-1)), LiteTopic: new("lite"),
		}), true},
		"properties of servers": {whole(&rmqpb.SystemProperties{
			ReceiptHandle: new("h"), QueueOffset: new(int64(5)), StoreHost: "s", StoreTimestamp: timestamppb.Now(),
			InvisibleDuration: durationpb.New(time.Second), DeliveryAttempt: new(int32(3)),
		}), false},
		"digest":                  {sys(bytesField(4, string(numberField(1, 1)))), false},
		"empty system properties": {sys(), true},
		"empty topic":             {bytesField(1, ""), true},
		"no time":                 {sys(bytesField(7, "")), true},
		"two topics":              {slices.Concat(topic, topic), false},
		"two system properties":   {slices.Concat(sys(bytesField(3, "a")), sys(bytesField(1, "b"))), false},
		"two born times":          {sys(bytesField(7, string(numberField(1, 1))), bytesField(7, string(numberField(2, 2)))), false},
		"two delivery times":      {sys(bytesField(11, string(numberField(1, 1))), bytesField(11, string(numberField(2, 2)))), false},
		"two IDs":                 {sys(bytesField(3, "a"), bytesField(3, "b")), true},
		"two tags":                {sys(bytesField(1, "a"), bytesField(1, "b")), true},
		"number above 32 bits":    {sys(numberField(13, math.MaxUint64-5), numberField(6, 1<<33+2)), true},
		"unknown type":            {sys(numberField(6, 77)), true},
		"ID is a number":          {sys(numberField(3, 7)), false},
		"queue is a text":         {sys(bytesField(13, "7")), false},
		"fixed number":            {sys(protowire.AppendFixed32(protowire.AppendTag(nil, 13, protowire.Fixed32Type), 7)), false},
		"time is a text":          {sys(bytesField(7, string(bytesField(1, "7")))), false},
		"unknown in a time":       {sys(bytesField(11, string(numberField(3, 7)))), false},
		"ID is not UTF-8":         {sys(bytesField(3, "\xff")), false},
		"property twice":          {slices.Concat(property(bytesField(1, "k"), bytesField(2, "a")), property(bytesField(1, "k"), bytesField(2, "b"))), true},
		"value before the name":   {property(bytesField(2, "v"), bytesField(1, "k")), true},
		"name alone":              {property(bytesField(1, "k")), true},
		"empty property":          {property(), true},
		"unknown in a property":   {property(bytesField(1, "k"), bytesField(3, "?")), false},
		"property is not UTF-8":   {property(bytesField(1, "k"), bytesField(2, "\xff")), false},
		"unknown in a topic":      {bytesField(1, string(bytesField(3, "?"))), false},
		"cut off in a topic":      {bytesField(1, "\x12"), false},
		"topic is a number":       {numberField(1, 7), false},
	}
	return heads
}

// The decoder takes all that producers send. Others, and errors, it leaves to protobuf's decoder.
func TestSendDecoderTakesTheFieldsOfProducers(t *testing.T) {
	for name, c := range sendHeads() {
		t.Run(name, func(t *testing.T) {
			checkDecodeSend(t, message(c.head))
			checkDecodeSend(t, slices.Concat(message(c.head, bytesField(4, "a")), message(c.head), message(c.head)))
			m := received{head: c.head}
			if took := (&decoder{}).decode(&m, string(c.head)); took != c.take {
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
					t.Errorf("%s: DecodeSend returned false", name)
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
		t.Error("DecodeSend returned false")
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
	if _, ok := DecodeSend(raw, got); !ok {
		t.Fatal("DecodeSend returned false")
	}
	clear(raw)
	if !proto.Equal(want, got) {
		t.Errorf("decoded as %v, want %v", got, want)
	}
}
