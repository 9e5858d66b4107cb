package convert

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"math"
	"net"
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

// The conditions and texts are those of Artemis 2.37.
func TestOfOutcome(t *testing.T) {
	rejected := func(c amqp.ErrCond, text string) amqp.DeliveryState {
		return &amqp.StateRejected{Error: &amqp.Error{Condition: c, Description: text}}
	}
	for _, c := range []struct {
		state amqp.DeliveryState
		class tidegate.Class
		code  tidegate.Code
		maybe bool
	}{
		{&amqp.StateAccepted{}, tidegate.ClassOK, 0, false},
		{rejected("amqp:resource-limit-exceeded", `AMQ229102: Address "fail.a" is full.`), tidegate.ClassThrottled, 42900, false},
		{rejected("amqp:resource-limit-exceeded", "Address is full: reject.a"), tidegate.ClassThrottled, 42900, false},
		{rejected("amqp:unauthorized-access", "AMQ229032: User: a does not have permission='SEND' on address b"), tidegate.ClassPermanent, 40300, false},
		{rejected("amqp:decode-error", ""), tidegate.ClassPermanent, 40016, false},
		{rejected("amqp:internal-error", "out of order"), tidegate.ClassTransient, 50001, false},
		{rejected("failed", ""), tidegate.ClassTransient, 50001, false},
		{&amqp.StateRejected{}, tidegate.ClassTransient, 50001, false},
		{&amqp.StateReleased{}, tidegate.ClassTransient, 50001, false},
		{&amqp.StateModified{}, tidegate.ClassTransient, 50001, false},
		{nil, tidegate.ClassTransient, 50001, true},
	} {
		e := OfOutcome(c.state)
		if e == nil {
			assert.That(t, c.class == tidegate.ClassOK, "%v: no error, want %v", c.state, c.class)
			continue
		}
		if got := tidegate.Classify(e); got != c.class || e.Code != c.code || e.MaybeStored != c.maybe {
			t.Errorf("%v: %v, %v, MaybeStored %v; want %v, %d, %v", c.state, got, e, e.MaybeStored, c.class, int(c.code), c.maybe)
		}
	}
}

func TestOfLink(t *testing.T) {
	remote := func(c amqp.ErrCond) *amqp.Error { return described(c, "text") }
	for _, c := range []struct {
		err  error
		code tidegate.Code
	}{
		{remote("amqp:not-found"), 40402}, // AMQ119002 and AMQ119010, of an attach
		{&amqp.LinkError{RemoteErr: remote("amqp:not-found")}, 40402},
		{&amqp.LinkError{RemoteErr: remote("amqp:unauthorized-access")}, 40300},
		{&amqp.LinkError{RemoteErr: remote("amqp:link:message-size-exceeded")}, 41301},
		{remote("amqp:link:message-size-exceeded"), 41301}, // go-amqp's own check
		{&amqp.LinkError{RemoteErr: remote("amqp:link:detach-forced")}, 50001},
		{&amqp.LinkError{RemoteErr: remote("amqp:resource-deleted")}, 50001},
		{&amqp.SessionError{RemoteErr: remote("amqp:illegal-state")}, 50001},
		{&amqp.ConnError{RemoteErr: remote("amqp:connection:forced")}, 50001},
		{described("amqp:unauthorized-access", "AMQ229031: Unable to validate user from 127.0.0.1:60638. Username: null"), 40100},
		{described("amqp:internal-error", "AMQ229032: User: a does not have permission='CREATE_ADDRESS' on address b"), 40300},
		{&amqp.LinkError{}, 0},
		{&amqp.ConnError{}, 0},
		{context.DeadlineExceeded, 0}, // of the attach, not of the caller
		{nil, 0},
	} {
		e := OfLink(c.err)
		assert.That(t, e.Code == c.code && !e.MaybeStored && !e.NotConnected, "%v: %#v, want code %d", c.err, e, int(c.code))
		assert.That(t, c.code != 0 || errors.Is(e, tidegate.ErrUnavailable) && tidegate.Classify(e) == tidegate.ClassTransient,
			"%v: %v, want a transient error that matches ErrUnavailable", c.err, e)
	}
}

func described(c amqp.ErrCond, text string) *amqp.Error {
	return &amqp.Error{Condition: c, Description: text}
}

func TestOfDial(t *testing.T) {
	for _, c := range []struct {
		err          error
		code         tidegate.Code
		notConnected bool
	}{
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, 0, true},
		{&net.DNSError{IsTemporary: true}, 0, true},
		{&net.DNSError{IsNotFound: true}, 0, false},
		{x509.UnknownAuthorityError{}, 40001, false},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: handshake failure")}, 40001, false},
		{errors.New("SASL PLAIN auth failed with code 0x1: []"), 40100, false},
		{errors.New("no supported auth mechanism ([PLAIN])"), 40100, false},
		{&amqp.ConnError{RemoteErr: &amqp.Error{Condition: "amqp:unauthorized-access"}}, 40100, false},
		{&amqp.ConnError{RemoteErr: &amqp.Error{Condition: "amqp:connection:forced"}}, 0, true},
		{context.DeadlineExceeded, 0, true},
	} {
		e := OfDial(c.err)
		assert.That(t, e.Code == c.code && e.NotConnected == c.notConnected && !e.MaybeStored,
			"%v: %#v, want code %d, NotConnected %v", c.err, e, int(c.code), c.notConnected)
	}
}

func TestNoCredit(t *testing.T) {
	own := &amqp.Error{Condition: "amqp:link:transfer-limit-exceeded"}
	assert.That(t, NoCredit(own) && !NoCredit(&amqp.LinkError{RemoteErr: own}) && !NoCredit(context.Canceled) && !NoCredit(nil),
		"only go-amqp's own error means that there was no credit")
}

// At an address that has worked, faults of TLS, the host name and the credentials are outages.
func TestOfOutage(t *testing.T) {
	for _, c := range []struct {
		err          error
		code         tidegate.Code
		notConnected bool
		lapsed       bool
	}{
		{&net.DNSError{IsNotFound: true}, 0, true, false},
		{x509.UnknownAuthorityError{}, 0, true, false},
		{errors.New("SASL PLAIN auth failed with code 0x1: []"), 40100, false, true},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, 0, true, false},
	} {
		e := OfOutage(OfDial(c.err))
		if e.Code != c.code || e.NotConnected != c.notConnected || e.Lapsed != c.lapsed || e.MaybeStored ||
			tidegate.Classify(e) != tidegate.ClassTransient || !Awaitable(e) {
			t.Errorf("%v: %#v, want code %d, NotConnected %v, Lapsed %v", c.err, e, int(c.code), c.notConnected, c.lapsed)
		}
	}
	e := OfOutage(OfDial(&amqp.ConnError{RemoteErr: &amqp.Error{Condition: "amqp:not-found"}}))
	assert.That(t, !Awaitable(e), "a missing host of the connection: %#v", e)
}
