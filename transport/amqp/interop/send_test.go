package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
)

// message returns a message with a body of size bytes.
func message(topic string, size int) *tidegate.Message {
	return &tidegate.Message{ID: tidegate.NewMessageID(), Topic: topic, Body: bytes.Repeat([]byte("x"), size)}
}

func send(ctx context.Context, c *amqp.Client, m *tidegate.Message) error {
	return c.Send(ctx, []*tidegate.Message{m})[0].Err
}

func TestSendDetectsDuplicates(t *testing.T) {
	s, a := server(t)
	topic := "duplicates-" + run
	assert.Must(t, errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "all")))
	m := message(topic, 1)
	c := client(t, s.Address(), amqp.Options{})
	for range 2 {
		assert.Must(t, send(t.Context(), c, m))
	}
	n, err := a.do(t.Context(), "queue."+topic+".all", "countMessages")
	assert.That(t, err == nil && n == "[1]", "the queue has %s messages, %v; want 1", n, err)
	again := client(t, s.Address(), amqp.Options{NoDuplicateDetection: true})
	assert.Must(t, send(t.Context(), again, m))
	n, err = a.do(t.Context(), "queue."+topic+".all", "countMessages")
	assert.That(t, err == nil && n == "[2]", "without duplicate detection the queue has %s messages, %v; want 2", n, err)
}

// The rows of a full address. Artemis grants 1000 credits at first.
func TestFullAddressThrottles(t *testing.T) {
	for _, c := range []struct {
		word     string
		rejected bool // a typed refusal precedes the missing credit
		accepted int  // at least, of 2 KiB; the address has 100 KiB
	}{
		{"fail", true, 20}, {"block", false, 1000}, {"reject", true, 60},
	} {
		t.Run(c.word, func(t *testing.T) {
			t.Parallel()
			s, a := server(t)
			topic, group := c.word+".orders-"+run, c.word+"-billing-"+run
			assert.Must(t, a.createGroup(t.Context(), topic, group))
			client := client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout})
			accepted, rejected := 0, 0
			// On a slow machine a link can also be throttled because its first credit comes late.
			for n, start := 0, time.Now(); n < 1001 || accepted < c.accepted && time.Since(start) < soon; n++ {
				err := send(t.Context(), client, message(topic, 2048))
				switch {
				case err == nil:
					accepted++
				case errors.Is(err, tidegate.ErrThrottled):
					rejected++
				default:
					t.Fatalf("after %d accepted and %d rejected messages: %v", accepted, rejected, err)
				}
				e, ok := errors.AsType[*tidegate.Error](err)
				assert.That(t, !ok || !e.MaybeStored, "MaybeStored: %v", err)
			}
			if c.rejected && rejected < 2 || accepted < c.accepted {
				t.Errorf("%d accepted, %d rejected; want refusals before the credit ends: %v, and at least %d accepted", accepted, rejected, c.rejected, c.accepted)
			}
			// A link that is opened now gets no credit. That the transport waits a second for
			// credit, and not until the end of the request, has tests in virtual time.
			assert.Is(t, "a new link", send(t.Context(), clientOf(t, s.Address()), message(topic, 1)), tidegate.ErrThrottled)
			if n, err := a.do(t.Context(), "queue."+topic+"."+group, "countMessages"); err != nil || n != "["+itoa(accepted)+"]" {
				t.Errorf("the queue has %s messages, %v; %d were accepted", n, err, accepted)
			}
			// Once there is space, sends succeed.
			assert.Must(t, assert.Err(a.do(t.Context(), "queue."+topic+"."+group, "removeAllMessages")))
			throttled := 0
			err := send(t.Context(), client, message(topic, 1))
			for start := time.Now(); errors.Is(err, tidegate.ErrThrottled) && time.Since(start) < soon; throttled++ {
				err = send(t.Context(), client, message(topic, 1))
			}
			assert.NoError(t, err, "after the address was emptied")
			t.Logf("%d messages accepted; with free space %d sends were throttled before one succeeded", accepted, throttled)
		})
	}
}

// Artemis rejects with the same outcome if it is to use the outcome modified for transient errors.
func TestThrottlesAsModified(t *testing.T) {
	s := start(t, artemis.Options{
		Properties: limited("fail", "FAIL", nil), Acceptor: map[string]string{"amqpUseModifiedForTransientDeliveryErrors": "true"},
	})
	a, err := connect(t.Context(), s.Address())
	assert.Must(t, err)
	assert.Must(t, a.createGroup(t.Context(), "fail.orders", "billing"))
	c := clientOf(t, s.Address())
	for range 100 {
		if err = send(t.Context(), c, message("fail.orders", 2048)); err != nil {
			break
		}
	}
	if e, ok := errors.AsType[*tidegate.Error](err); !ok || !errors.Is(err, tidegate.ErrThrottled) || e.MaybeStored {
		t.Errorf("the first refusal: %v, want a throttle and nothing stored", err)
	}
}

// While the disk is too full the server grants no credit.
func TestFullDiskThrottles(t *testing.T) {
	s := start(t, artemis.Options{Properties: map[string]string{
		"maxDiskUsage": "0", "diskScanPeriod": "100", `addressSettings."#".autoCreateAddresses`: "true",
	}})
	c := clientOf(t, s.Address())
	var err error
	for begin := time.Now(); err == nil && time.Since(begin) < soon; { // until the server has looked at its disk
		err = send(t.Context(), client(t, s.Address(), amqp.Options{}), message("orders", 1))
	}
	begin := time.Now()
	err = send(t.Context(), c, message("orders", 1))
	if e, ok := errors.AsType[*tidegate.Error](err); !ok || !errors.Is(err, tidegate.ErrThrottled) || e.MaybeStored {
		t.Errorf("a send: %v, want a throttle and nothing stored", err)
	}
	t.Logf("the throttle took %v", time.Since(begin))
}

// With the policy PAGE the server accepts messages beyond the size of the address, and keeps them.
func TestPagedMessagesAreKept(t *testing.T) {
	s, a := server(t)
	topic, group := "page.orders-"+run, "page-billing-"+run
	assert.Must(t, a.createGroup(t.Context(), topic, group))
	c := clientOf(t, s.Address())
	for range 200 {
		assert.Must(t, send(t.Context(), c, message(topic, 2048)))
	}
	n, err := a.do(t.Context(), "queue."+topic+"."+group, "countMessages")
	assert.That(t, err == nil && n == "[200]", "the queue has %s messages, %v; want 200", n, err)
}

// With the policy DROP the loss cannot be detected: the package comment warns of it.
func TestDropIsNotDetectable(t *testing.T) {
	s, a := server(t)
	topic, group := "drop.orders-"+run, "drop-billing-"+run
	assert.Must(t, a.createGroup(t.Context(), topic, group))
	c := clientOf(t, s.Address())
	for range 200 {
		assert.Must(t, send(t.Context(), c, message(topic, 2048)))
	}
	n, err := a.do(t.Context(), "queue."+topic+"."+group, "countMessages")
	assert.That(t, err == nil && n != "[200]", "the queue has %s messages, %v; want fewer than 200", n, err)
}

func TestMissingAddress(t *testing.T) {
	s, _ := server(t)
	err := send(t.Context(), clientOf(t, s.Address()), message("nowhere-"+run, 1))
	e, ok := errors.AsType[*tidegate.Error](err)
	assert.That(t, ok && e.Code == tidegate.CodeTopicNotFound && !e.MaybeStored, "got %v, want 40402 and nothing stored", err)
}

// Without copies a retry waits for the redelivery-delay of the address, times its multiplier.
func TestRedeliveryDelay(t *testing.T) {
	p := maps.Clone(properties)
	p[`addressSettings."#".autoCreateAddresses`] = "true"
	p[`addressSettings."#".redeliveryDelay`] = "1000"
	p[`addressSettings."#".redeliveryMultiplier`] = "2"
	s := start(t, artemis.Options{Properties: p})
	c := client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout})
	r := transport.ReceiveRequest{
		Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Minute, Wait: time.Millisecond,
	}
	if _, err := c.Receive(t.Context(), r); err != nil { // creates the queue
		t.Fatal(err)
	}
	assert.Must(t, send(t.Context(), c, message("orders", 1)))
	r.Wait = time.Second
	d := receive(t, c, r)
	again := func(what string, attempt int, delay time.Duration, end func() error) {
		t.Helper()
		start := time.Now()
		assert.Must(t, end())
		d = receive(t, c, r)
		if waited := time.Since(start); d.Attempt != attempt || waited < delay-50*time.Millisecond {
			t.Errorf("%s: attempt %d after %v, want attempt %d after %v or more", what, d.Attempt, waited, attempt, delay)
		}
	}
	again("a failure", 2, time.Second, func() error {
		_, err := c.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Reason: "no such customer"})
		return err
	})
	again("a second failure", 3, 2*time.Second, func() error {
		_, err := c.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Reason: "no such customer"})
		return err
	})
	if errs := c.Ack(t.Context(), []*tidegate.Delivery{d}); errs[0] != nil {
		t.Error(errs[0])
	}
}

// The end of a client right after its acknowledgements were written loses none of them.
func TestAcknowledgementsBeforeTheConnectionEnds(t *testing.T) {
	s, a := server(t)
	topic := "acked-" + run
	assert.Must(t, errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "billing")))
	const messages = 200
	c := client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout})
	for range messages {
		assert.Must(t, send(t.Context(), c, message(topic, 1)))
	}
	var n network
	ending := client(t, s.Address(), amqp.Options{Dialer: n.dial, RequestTimeout: requestTimeout})
	r := transport.ReceiveRequest{Group: "billing", Topic: topic, Queue: transport.AnyQueue, Max: messages, InvisibleDuration: time.Minute, Wait: time.Second}
	for acked := 0; acked < messages; {
		ds := assert.Value(ending.Receive(t.Context(), r))(t)
		for _, err := range ending.Ack(t.Context(), ds) {
			assert.Must(t, err)
		}
		acked += len(ds)
	}
	n.cut(true)
	for start := time.Now(); ; { // the server reads the last bytes of the connection
		left, err := a.do(t.Context(), "queue."+topic+".billing", "countMessages")
		if err == nil && left == "[0]" {
			return
		}
		assert.MustThat(t, time.Since(start) <= soon, "the queue has %s messages, %v; want 0", left, err)
		wait(t, 100*time.Millisecond)
	}
}

// A frame that acknowledges a range of deliveries ends these deliveries only.
func TestAcknowledgedRanges(t *testing.T) {
	s, a := server(t)
	topic := "ranges-" + run
	assert.Must(t, errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "billing")))
	const messages = 50
	c := client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout})
	for range messages {
		assert.Must(t, send(t.Context(), c, message(topic, 1)))
	}
	r := transport.ReceiveRequest{Group: "billing", Topic: topic, Queue: transport.AnyQueue, Max: messages, InvisibleDuration: time.Minute, Wait: time.Second}
	var all []*tidegate.Delivery
	for start := time.Now(); len(all) < messages && time.Since(start) < soon; {
		ds := assert.Value(c.Receive(t.Context(), r))(t)
		all = append(all, ds...)
	}
	var acked, kept []*tidegate.Delivery
	for i, d := range all {
		if i%10 == 3 {
			kept = append(kept, d)
		} else {
			acked = append(acked, d)
		}
	}
	for _, err := range c.Ack(t.Context(), acked) {
		assert.NoError(t, err)
	}
	c.Close() // the server gets the others back
	c = client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout})
	left := map[string]bool{}
	for start := time.Now(); len(left) < len(kept) && time.Since(start) < soon; {
		ds := assert.Value(c.Receive(t.Context(), r))(t)
		for _, d := range ds {
			left[d.ID] = true
		}
	}
	for _, d := range kept {
		assert.That(t, left[d.ID], "message %s was not acknowledged, and is gone", d.ID)
	}
	assert.That(t, len(left) == len(kept) && len(kept) == messages/10, "%d messages are left, want %d", len(left), messages/10)
}

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
