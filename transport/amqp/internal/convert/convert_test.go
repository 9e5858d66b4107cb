package convert

import (
	"reflect"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/tidegate/tidegate"
)

// through sends a message through AMQP's encoding.
func through(t *testing.T, m *amqp.Message) *amqp.Message {
	t.Helper()
	b, err := m.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	var back amqp.Message
	if err := back.UnmarshalBinary(b); err != nil {
		t.Fatal(err)
	}
	return &back
}

func TestRoundTrip(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	m := &tidegate.Message{
		ID: "id", Topic: "orders", Tag: "tag", Keys: []string{"k 1", "k2"}, MessageGroup: "g",
		Properties: map[string]string{"a": "b"}, TraceContext: "00-1-2-01", Body: []byte{0, 1, 255},
	}
	to := ToAMQP(m, Extras{BornHost: "host", BornAt: at, Duplicate: "dup"})
	if to.Header == nil || !to.Header.Durable {
		t.Fatal("the message is not durable")
	}
	if got := to.ApplicationProperties["_AMQ_DUPL_ID"]; got != "dup" {
		t.Errorf("_AMQ_DUPL_ID is %v", got)
	}
	got := FromAMQP("orders", through(t, to))
	if !reflect.DeepEqual(got.Message, *m) {
		t.Errorf("got  %+v\nwant %+v", got.Message, *m)
	}
	if got.Failed != 0 || got.BornHost != "host" || !got.BornAt.Equal(at) || !got.StoredAt.IsZero() {
		t.Errorf("got %+v", got)
	}
}

// Every message is durable: a message without the header is lost with the server's process.
func TestMinimalMessageIsDurable(t *testing.T) {
	back := through(t, ToAMQP(&tidegate.Message{ID: "id", Topic: "t", Body: []byte("x")}, Extras{}))
	if back.Header == nil || !back.Header.Durable {
		t.Errorf("header %+v, want durable", back.Header)
	}
}

func TestDeliveryTime(t *testing.T) {
	m := &tidegate.Message{ID: "id", Body: []byte("x"), DeliverAt: time.UnixMilli(5000)}
	if got := ToAMQP(m, Extras{}).Annotations["x-opt-delivery-time"]; got != int64(5000) {
		t.Errorf("x-opt-delivery-time is %v, want 5000", got)
	}
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
	if !reflect.DeepEqual(got.Message, want) || got.Failed != 5 || !got.StoredAt.Equal(time.UnixMilli(5000)) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	none := FromAMQP("t", &amqp.Message{Data: [][]byte{[]byte("a"), []byte("b")}})
	if none.Message.ID == "" || string(none.Message.Body) != "ab" || none.Failed != 0 {
		t.Errorf("got %+v, want a new ID and the body ab", none)
	}
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

func TestRetry(t *testing.T) {
	native, d := received(t)
	again := through(t, Retry(native, d, "billing", 1500*time.Millisecond))
	r := FromAMQP("orders", again)
	if r.Failed != 2 || !reflect.DeepEqual(r.Message, d.Message) || !again.Header.Durable {
		t.Errorf("got %+v, want attempt 3 of %+v", r, d.Message)
	}
	if got := again.ApplicationProperties["_AMQ_DUPL_ID"]; got != "id/billing/4000/2" {
		t.Errorf("_AMQ_DUPL_ID is %v", got)
	}
	if _, ok := again.Annotations["x-opt-delivery-time"]; ok || again.Annotations["x-opt-delivery-delay"] != int64(1500) {
		t.Errorf("annotations %v, want a delay of 1500 ms and no time", again.Annotations)
	}
	if _, ok := native.ApplicationProperties["RECONSUMETIMES"]; ok {
		t.Error("the message itself has changed")
	}
}

func TestDeadLetter(t *testing.T) {
	native, d := received(t)
	letter := through(t, DeadLetter(native, d, "billing", "hopeless"))
	r := FromAMQP("billing.DLQ", letter)
	got, ok := r.Message.DeadLetter()
	want := tidegate.DeadLetter{Topic: "orders", MessageID: "id", Queue: -1, Offset: -1, Group: "billing", Attempts: 2, Reason: "hopeless"}
	if !ok || got != want || r.Failed != 0 || !letter.Header.Durable {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := letter.ApplicationProperties["_AMQ_DUPL_ID"]; got != "id/billing/4000/dlq" {
		t.Errorf("_AMQ_DUPL_ID is %v", got)
	}
	if len(letter.Annotations) > 0 {
		t.Errorf("annotations %v, want none", letter.Annotations)
	}
}

// If two messages had one duplicate ID, the server would discard the copy of the second message.
func TestNoDuplicateIDWithoutTheTimeOfTheSend(t *testing.T) {
	for _, p := range []*amqp.MessageProperties{nil, {MessageID: "id"}} {
		foreign := &amqp.Message{Properties: p, ApplicationProperties: map[string]any{"_AMQ_DUPL_ID": "its own"}}
		d := &tidegate.Delivery{Message: FromAMQP("orders", foreign).Message, Attempt: 1}
		for _, m := range []*amqp.Message{Retry(foreign, d, "billing", 0), DeadLetter(foreign, d, "billing", "hopeless")} {
			if got, ok := m.ApplicationProperties["_AMQ_DUPL_ID"]; ok {
				t.Errorf("%+v: _AMQ_DUPL_ID is %v, want none", p, got)
			}
		}
	}
}

func TestDuplicateOfARedrive(t *testing.T) {
	m := &tidegate.Message{ID: "id"}
	if got := Duplicate(m); got != "id" {
		t.Errorf("got %q", got)
	}
	m.Properties = map[string]string{"DLQ_REDRIVES": "2"}
	if got := Duplicate(m); got != "id/redrive/2" {
		t.Errorf("got %q", got)
	}
}
