package convert

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// through sends a message through AMQP's encoding.
func through(t *testing.T, m *amqp.Message) *amqp.Message {
	t.Helper()
	b := assert.Value(m.MarshalBinary())(t)
	var back amqp.Message
	assert.Must(t, back.UnmarshalBinary(b))
	return &back
}

func TestRoundTrip(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	m := &tidegate.Message{
		ID: "id", Topic: "orders", Tag: "tag", Keys: []string{"k 1", "k2"}, MessageGroup: "g",
		Properties: map[string]string{"a": "b"}, TraceContext: "00-1-2-01", Body: []byte{0, 1, 255},
	}
	to := ToAMQP(m, Extras{BornHost: "host", BornAt: at, Duplicate: "dup"})
	assert.MustThat(t, to.Header != nil && to.Header.Durable, "the message is not durable")
	if got := to.ApplicationProperties["_AMQ_DUPL_ID"]; got != "dup" {
		t.Errorf("_AMQ_DUPL_ID is %v", got)
	}
	got := FromAMQP("orders", through(t, to))
	if !reflect.DeepEqual(got.Message, *m) {
		t.Errorf("got  %+v\nwant %+v", got.Message, *m)
	}
	assert.That(t, got.Failed == 0 && got.BornHost == "host" && got.BornAt.Equal(at) && got.StoredAt.IsZero(), "got %+v", got)
}

// Every message is durable: a message without the header is lost with the server's process.
func TestMinimalMessageIsDurable(t *testing.T) {
	back := through(t, ToAMQP(&tidegate.Message{ID: "id", Topic: "t", Body: []byte("x")}, Extras{}))
	assert.That(t, back.Header != nil && back.Header.Durable, "header %+v, want durable", back.Header)
}

func TestDeliveryTime(t *testing.T) {
	m := &tidegate.Message{ID: "id", Body: []byte("x"), DeliverAt: time.UnixMilli(5000)}
	got := ToAMQP(m, Extras{}).Annotations["x-opt-delivery-time"]
	assert.That(t, got == int64(5000), "x-opt-delivery-time is %v, want 5000", got)
}

// Messages of other programs.
func TestForeignMessages(t *testing.T) {
	subject := "tag"
	m := &amqp.Message{
		Header:                &amqp.MessageHeader{DeliveryCount: 3},
		Annotations:           amqp.Annotations{"x-opt-ingress-time": int64(5000)},
		Properties:            &amqp.MessageProperties{MessageID: uint64(7), Subject: &subject},
		ApplicationProperties: map[string]any{"n": int32(4), "RECONSUMETIMES": "2", "flag": true},
		Value:                 "text",
	}
	got := FromAMQP("t", through(t, m))
	want := tidegate.Message{ID: "7", Topic: "t", Tag: "tag", Properties: map[string]string{"n": "4", "flag": "true"}, Body: []byte("text")}
	assert.That(t, reflect.DeepEqual(got.Message, want) && got.Failed == 5 && got.StoredAt.Equal(time.UnixMilli(5000)),
		"got  %+v\nwant %+v", got, want)
	none := FromAMQP("t", &amqp.Message{Data: [][]byte{[]byte("a"), []byte("b")}})
	assert.That(t, none.Message.ID != "" && string(none.Message.Body) == "ab" && none.Failed == 0,
		"got %+v, want a new ID and the body ab", none)
}

// Bodies with a structure arrive as JSON, such as those of JMS: a StreamMessage is a sequence, a
// MapMessage a map.
func TestStructuredBodies(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.FixedZone("", 3600))
	id := amqp.UUID{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef}
	for _, tt := range []struct {
		name string
		m    amqp.Message
		want string
	}{
		{"sequence", amqp.Message{Sequence: [][]any{{"a", int64(9007199254740993), true, nil, 1.5, []byte{0xff, 0}}}}, `["a",9007199254740993,true,null,1.5,"/wA="]`},
		{"two sequences", amqp.Message{Sequence: [][]any{{"a"}, {"b", int32(-2)}}}, `["a","b",-2]`},
		{"a sequence without elements", amqp.Message{Sequence: [][]any{{}}}, `[]`},
		{"sequence of sequences", amqp.Message{Sequence: [][]any{{[]any{"a", []any{}}, map[string]any{"k": []any{int8(1)}}}}}, `[["a",[]],{"k":[1]}]`},
		{"map", amqp.Message{Value: map[string]any{"b": "x<y", "a": int32(1), "n": nil, "m": map[string]any{"k": 0.25}}}, `{"a":1,"b":"x<y","m":{"k":0.25},"n":null}`},
		{"a map without entries", amqp.Message{Value: map[string]any{}}, `{}`},
		{"map of other keys", amqp.Message{Value: map[any]any{int32(7): "x", true: "y"}}, `{"7":"x","true":"y"}`},
		{"map of keys with one text", amqp.Message{Value: map[any]any{int32(7): "x", "7": "y"}}, `[[7,"x"],["7","y"]]`},
		{"list", amqp.Message{Value: []any{"a", uint64(18446744073709551615)}}, `["a",18446744073709551615]`},
		{"array", amqp.Message{Value: []string{"a", "b"}}, `["a","b"]`},
		{"arrays", amqp.Message{Value: map[string]any{"b": []byte("hi"), "i": []int64{1, 2}, "a": [][]byte{{1}}}}, `{"a":["AQ=="],"b":"aGk=","i":[1,2]}`},
		{"time, UUID and symbol", amqp.Message{Value: []any{at, id, amqp.Symbol("s")}}, `["2026-01-02T02:04:05.678Z","01234567-89ab-cdef-0123-456789abcdef","s"]`},
		{"floats without a number", amqp.Message{Value: []any{math.NaN(), math.Inf(-1), float32(0.1)}}, `["NaN","-Inf",0.1]`},
	} {
		got := FromAMQP("t", through(t, &tt.m)).Message.Body
		assert.That(t, string(got) == tt.want && json.Valid(got), "%s: %s, want %s", tt.name, got, tt.want)
	}
}

// go-amqp decodes text that is not UTF-8, and does not encode it.
func TestTextThatIsNotUTF8(t *testing.T) {
	got := FromAMQP("t", &amqp.Message{Value: []any{"caf\xe9", "\u2028é"}}).Message.Body
	want := `["Y2Fm6Q==","\u2028é"]`
	assert.That(t, string(got) == want, "%s, want %s", got, want)
}

// Simple values are text, as in the body of a JMS TextMessage.
func TestSimpleBodies(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	for _, tt := range []struct {
		value any
		want  string
	}{
		{"text", "text"}, {"", ""}, {[]byte{0xff}, "\xff"}, {int64(-3), "-3"}, {true, "true"}, {2.5, "2.5"},
		{at, "2023-11-14T22:13:20.123Z"}, {amqp.UUID{15: 1}, "00000000-0000-0000-0000-000000000001"},
	} {
		got := string(FromAMQP("t", through(t, &amqp.Message{Value: tt.value})).Message.Body)
		assert.That(t, got == tt.want, "%v: %q, want %q", tt.value, got, tt.want)
	}
}

// A property of structure is JSON, a time is RFC 3339, and bytes that are no text are base64: no
// value is in the notation of Go, and none is a text that is not UTF-8.
func TestForeignProperties(t *testing.T) {
	m := &amqp.Message{
		Properties: &amqp.MessageProperties{MessageID: []byte{0xff, 0xfe}},
		ApplicationProperties: map[string]any{
			"time": time.UnixMilli(1_700_000_000_123), "map": map[string]any{"k": int32(1)}, "binary": []byte{0xff}, "bytes": []byte("text"), "list": []any{"a"},
		},
	}
	got := FromAMQP("t", through(t, m)).Message
	want := map[string]string{"time": "2023-11-14T22:13:20.123Z", "map": `{"k":1}`, "binary": "/w==", "bytes": "text", "list": `["a"]`}
	assert.That(t, reflect.DeepEqual(got.Properties, want) && got.ID == "//4=",
		"ID %q, properties %q, want %q", got.ID, got.Properties, want)
}

// received returns a message as a group receives it for the second time.
func received(t *testing.T) (*amqp.Message, *tidegate.Delivery) {
	t.Helper()
	m := &tidegate.Message{ID: "id", Topic: "orders", Tag: "tag", Properties: map[string]string{"p": "v"}, Body: []byte("x"), DeliverAt: time.UnixMilli(5000)}
	native := through(t, ToAMQP(m, Extras{Duplicate: "id", BornAt: time.UnixMilli(4000)}))
	native.Header.DeliveryCount = 1
	r := FromAMQP("orders", native)
	return native, &tidegate.Delivery{Message: r.Message, Attempt: r.Failed + 1}
}

// A copy ends when its message would have ended, with the same priority. A retry is never early: a
// part of a millisecond counts as one.
func TestCopyKeepsItsHeader(t *testing.T) {
	native, d := received(t)
	native.Header.TTL, native.Header.Priority = time.Minute, 7
	for delay, want := range map[time.Duration]any{0: nil, time.Nanosecond: int64(1), time.Millisecond: int64(1), time.Millisecond + 1: int64(2)} {
		again := through(t, Retry(native, d, "billing", delay))
		assert.That(t, again.Header.TTL == time.Minute && again.Header.Priority == 7 && again.Header.DeliveryCount == 0,
			"the header is %+v", again.Header)
		got := again.Annotations["x-opt-delivery-delay"]
		assert.That(t, got == want, "a delay of %v is %v ms, want %v", delay, got, want)
	}
}

func TestRetry(t *testing.T) {
	native, d := received(t)
	again := through(t, Retry(native, d, "billing", 1500*time.Millisecond))
	r := FromAMQP("orders", again)
	assert.That(t, r.Failed == 2 && reflect.DeepEqual(r.Message, d.Message) && again.Header.Durable,
		"got %+v, want attempt 3 of %+v", r, d.Message)
	got := again.ApplicationProperties["_AMQ_DUPL_ID"]
	assert.That(t, got == "id/billing/4000/2", "_AMQ_DUPL_ID is %v", got)
	if _, ok := again.Annotations["x-opt-delivery-time"]; ok || again.Annotations["x-opt-delivery-delay"] != int64(1500) {
		t.Errorf("annotations %v, want a delay of 1500 ms and no time", again.Annotations)
	}
	_, ok := native.ApplicationProperties["RECONSUMETIMES"]
	assert.That(t, !ok, "the message itself has changed")
}

func TestDeadLetter(t *testing.T) {
	first, d := received(t)
	native := through(t, Retry(first, d, "billing", 0)) // its two attempts do not count for a redrive
	letter := through(t, DeadLetter(native, d, "billing", "hopeless"))
	r := FromAMQP("billing.DLQ", letter)
	got, ok := r.Message.DeadLetter()
	want := tidegate.DeadLetter{Topic: "orders", MessageID: "id", Queue: -1, Offset: -1, Group: "billing", Attempts: 2, Reason: "hopeless"}
	assert.That(t, ok && got == want && r.Failed == 0 && letter.Header.Durable, "got %+v, want %+v", got, want)
	if got := letter.ApplicationProperties["_AMQ_DUPL_ID"]; got != "id/billing/4000/dlq" {
		t.Errorf("_AMQ_DUPL_ID is %v", got)
	}
	assert.That(t, len(letter.Annotations) == 0, "annotations %v, want none", letter.Annotations)
}

// If two messages had one duplicate ID, the server would discard the copy of the second message.
func TestNoDuplicateIDWithoutTheTimeOfTheSend(t *testing.T) {
	for _, p := range []*amqp.MessageProperties{nil, {MessageID: "id"}} {
		foreign := &amqp.Message{Properties: p, ApplicationProperties: map[string]any{"_AMQ_DUPL_ID": "its own"}}
		d := &tidegate.Delivery{Message: FromAMQP("orders", foreign).Message, Attempt: 1}
		for _, m := range []*amqp.Message{Retry(foreign, d, "billing", 0), DeadLetter(foreign, d, "billing", "hopeless")} {
			got, ok := m.ApplicationProperties["_AMQ_DUPL_ID"]
			assert.That(t, !ok, "%+v: _AMQ_DUPL_ID is %v, want none", p, got)
		}
	}
}

func TestDuplicateOfARedrive(t *testing.T) {
	m := &tidegate.Message{ID: "id"}
	assert.Equal(t, "Duplicate(m)", Duplicate(m), "id")
	m.Properties = map[string]string{"DLQ_REDRIVES": "2"}
	assert.Equal(t, "Duplicate(m)", Duplicate(m), "id/redrive/2")
}
