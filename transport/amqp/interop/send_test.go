package interop

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
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
