package interop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	goamqp "github.com/Azure/go-amqp"
)

// The tests of this file repeat observations that the transport avoids, with go-amqp alone.

// A queue is the queue of a group, with messages "0" to "n-1" in it.
type queue struct {
	name    string
	session *goamqp.Session
	admin   *admin
}

// filled creates a topic with the group "billing" and n messages of a message group.
func filled(t *testing.T, topic string, n int) queue {
	t.Helper()
	s, a := server(t)
	topic += "-" + run
	assert.Must(t, errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "billing")))
	session, end := dial(t, s.Address())
	t.Cleanup(end)
	sender := assert.Value(session.NewSender(t.Context(), topic, nil))(t)
	group := "customer"
	for i := range n {
		m := goamqp.NewMessage([]byte(itoa(i)))
		m.Header, m.Properties = &goamqp.MessageHeader{Durable: true}, &goamqp.MessageProperties{MessageID: itoa(i), GroupID: &group}
		assert.Must(t, sender.Send(t.Context(), m, nil))
	}
	return queue{topic + "::" + topic + ".billing", session, a}
}

// receiver attaches a receiver and grants credit.
func (q queue) receiver(t *testing.T, credit uint32) *goamqp.Receiver {
	t.Helper()
	r := assert.Value(q.session.NewReceiver(t.Context(), q.name, &goamqp.ReceiverOptions{Credit: -1, SourceCapabilities: []string{"topic"}}))(t)
	assert.Must(t, r.IssueCredit(credit))
	return r
}

// next returns the next message, nil if none comes within the time.
func next(t *testing.T, r *goamqp.Receiver, d time.Duration) *goamqp.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	m, err := r.Receive(ctx, nil)
	assert.MustThat(t, err == nil || ctx.Err() != nil, "%v", err)
	return m
}

// soon bounds waits for events that take a second at most on an idle machine. Tests on a real
// server check counts, order and that nothing comes too early; how late an event is depends on the
// machine.
const soon = 5 * time.Minute

// requestTimeout bounds one request; the server shares the machine with the tests.
const requestTimeout = time.Minute

// empty waits until the queue has no message. Artemis counts -1 after it has dropped one.
func (q queue) empty(t *testing.T) {
	t.Helper()
	_, name, _ := strings.Cut(q.name, "::")
	for start := time.Now(); ; wait(t, 50*time.Millisecond) {
		got, err := q.admin.do(t.Context(), "queue."+name, "countMessages")
		if err == nil && (got == "[0]" || got == "[-1]") {
			return
		}
		assert.MustThat(t, time.Since(start) <= soon, "the queue has %s messages, %v; want none", got, err)
	}
}

// An acknowledgement that the server confirms does not exist.
func TestNoConfirmedAcknowledgements(t *testing.T) {
	q := filled(t, "confirmed", 0)
	_, err := q.session.NewReceiver(t.Context(), q.name, &goamqp.ReceiverOptions{
		SettlementMode: goamqp.ReceiverSettleModeSecond.Ptr(), SourceCapabilities: []string{"topic"},
	})
	assert.That(t, err != nil && strings.Contains(err.Error(), "second"),
		"a receiver that settles second: %v, want a refusal of the mode", err)
}

// Credit is exact: the messages beyond it stay available to other consumers.
func TestCreditIsExact(t *testing.T) {
	q := filled(t, "credit", 5)
	r := q.receiver(t, 3)
	for i := range 3 {
		m := next(t, r, soon)
		assert.MustThat(t, m != nil && string(m.GetData()) == itoa(i), "message %d: %v", i, m)
	}
	m := next(t, r, 300*time.Millisecond)
	assert.That(t, m == nil, "received %+v beyond the credit", m)
}

// A call of DrainCredit does not return, and the link stays unusable.
func TestDrainedLinkIsUnusable(t *testing.T) {
	q := filled(t, "drained", 0)
	r := q.receiver(t, 5)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	assert.Is(t, "DrainCredit", r.DrainCredit(ctx, nil), context.DeadlineExceeded)
	assert.That(t, r.IssueCredit(1) != nil, "the link takes credit after a drain")
}

// A dead letter by the outcome rejected has no reason; one without a queue is lost.
func TestRejectedAndExhaustedMessages(t *testing.T) {
	q := filled(t, "rejected", 1)
	r := q.receiver(t, 1)
	assert.Must(t, r.RejectMessage(t.Context(), next(t, r, soon), &goamqp.Error{Condition: "app:hopeless", Description: "no such customer"}))
	q.empty(t)
	l := assert.Value(q.session.NewReceiver(t.Context(), "DLA", &goamqp.ReceiverOptions{SourceCapabilities: []string{"queue"}}))(t)
	letter := next(t, l, soon)
	assert.MustThat(t, letter != nil && letter.Properties.MessageID == "0" && letter.Header.DeliveryCount == 0,
		"the dead letter is %+v, want message 0 with the delivery count 0", letter)
	all := fmt.Sprint(letter.Annotations, letter.ApplicationProperties, letter.DeliveryAnnotations)
	assert.That(t, !strings.Contains(all, "no such customer"), "the dead letter has the reason: %s", all)
	assert.NoError(t, l.AcceptMessage(t.Context(), letter))

	q = filled(t, "void.exhausted", 1)
	r = q.receiver(t, 1)
	assert.Must(t, r.ModifyMessage(t.Context(), next(t, r, soon), &goamqp.ModifyMessageOptions{DeliveryFailed: true}))
	q.empty(t)
	if names, err := q.admin.do(t.Context(), "broker", "getQueueNames"); err != nil || strings.Contains(names, "void-letters") {
		t.Errorf("queues %s, %v; want none of the dead letter address", names, err)
	}
}

// A released message counts no attempt, but waits for the redelivery-delay. A message of a link
// that is closed does not wait.
func TestReleasedMessages(t *testing.T) {
	q := filled(t, "late.released", 1)
	r := q.receiver(t, 3)
	for what, release := range map[string]func(m *goamqp.Message) error{
		"released":             func(m *goamqp.Message) error { return r.ReleaseMessage(t.Context(), m) },
		"modified, not failed": func(m *goamqp.Message) error { return r.ModifyMessage(t.Context(), m, nil) },
	} {
		m := next(t, r, soon)
		start := time.Now()
		assert.Must(t, release(m))
		if m = next(t, r, soon); m == nil || m.Header.DeliveryCount != 0 || time.Since(start) < 950*time.Millisecond {
			t.Fatalf("%s: %+v after %v, want it after 1 s with the count 0", what, m, time.Since(start))
		}
		if err := r.ReleaseMessage(t.Context(), m); err != nil { // for the next round
			t.Fatal(err)
		}
		assert.Must(t, r.IssueCredit(2))
	}

	q = filled(t, "never.closed", 1) // a redelivery-delay of an hour
	for range 2 {
		r = q.receiver(t, 1)
		m := next(t, r, soon)
		assert.MustThat(t, m != nil && m.Header.DeliveryCount == 0, "received %+v, want the message with the count 0", m)
		assert.Must(t, r.Close(t.Context()))
	}
}

// A failed message of a message group is redelivered after its successors that the server has
// delivered.
func TestFailedMessageLosesItsOrder(t *testing.T) {
	q := filled(t, "order", 3)
	r := q.receiver(t, 4)
	var order []string
	var first *goamqp.Message
	for len(order) < 4 {
		m := next(t, r, soon)
		if m == nil {
			break
		}
		order = append(order, string(m.GetData()))
		if first == nil {
			first = m
		}
		if len(order) == 3 { // all are delivered
			assert.Must(t, r.ModifyMessage(t.Context(), first, &goamqp.ModifyMessageOptions{DeliveryFailed: true}))
		}
	}
	want := []string{"0", "1", "2", "0"}
	assert.That(t, slices.Equal(order, want), "received %v, want %v", order, want)
}

// A message to the queue of a group reaches no other group, also after a delay.
func TestSendToAQueue(t *testing.T) {
	q := filled(t, "queues", 0)
	topic, _, _ := strings.Cut(q.name, "::")
	assert.Must(t, q.admin.createGroup(t.Context(), topic, "other"))
	sender := assert.Value(q.session.NewSender(t.Context(), q.name, nil))(t)
	for _, delay := range []int64{0, 200} {
		m := goamqp.NewMessage([]byte("x"))
		m.Annotations = goamqp.Annotations{"x-opt-delivery-delay": delay}
		assert.Must(t, sender.Send(t.Context(), m, nil))
	}
	r := q.receiver(t, 3)
	for range 2 {
		assert.MustThat(t, next(t, r, soon) != nil, "the group has not received both messages")
	}
	n, err := q.admin.do(t.Context(), "queue."+topic+".other", "countMessages")
	assert.That(t, err == nil && n == "[0]", "the other group has %s messages, %v; want none", n, err)
}
