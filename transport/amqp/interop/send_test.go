package interop

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/amqp"
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
	if err := errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "all")); err != nil {
		t.Fatal(err)
	}
	m := message(topic, 1)
	c := client(t, s.Address(), amqp.Options{})
	for range 2 {
		if err := send(t.Context(), c, m); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := a.do(t.Context(), "queue."+topic+".all", "countMessages"); err != nil || n != "[1]" {
		t.Errorf("the queue has %s messages, %v; want 1", n, err)
	}
	again := client(t, s.Address(), amqp.Options{NoDuplicateDetection: true})
	if err := send(t.Context(), again, m); err != nil {
		t.Fatal(err)
	}
	if n, err := a.do(t.Context(), "queue."+topic+".all", "countMessages"); err != nil || n != "[2]" {
		t.Errorf("without duplicate detection the queue has %s messages, %v; want 2", n, err)
	}
}

// The rows of a full address. Artemis grants 1000 credits at first.
func TestFullAddressThrottles(t *testing.T) {
	for _, c := range []struct {
		word     string
		rejected bool // a typed refusal precedes the missing credit
	}{
		{"fail", true}, {"block", false}, {"reject", true},
	} {
		t.Run(c.word, func(t *testing.T) {
			t.Parallel()
			s, a := server(t)
			topic, group := c.word+".orders-"+run, c.word+"-billing-"+run
			if err := a.createGroup(t.Context(), topic, group); err != nil {
				t.Fatal(err)
			}
			client := client(t, s.Address(), amqp.Options{})
			accepted, rejected := 0, 0
			var slowest time.Duration
			for range 1001 {
				start := time.Now()
				err := send(t.Context(), client, message(topic, 2048))
				switch {
				case err == nil:
					accepted++
				case errors.Is(err, tidegate.ErrThrottled):
					rejected++
				default:
					t.Fatalf("after %d accepted and %d rejected messages: %v", accepted, rejected, err)
				}
				if e, ok := errors.AsType[*tidegate.Error](err); ok && e.MaybeStored {
					t.Errorf("MaybeStored: %v", err)
				}
				slowest = max(slowest, time.Since(start))
			}
			if c.rejected != (rejected > 1) || accepted == 0 {
				t.Errorf("%d accepted, %d rejected; want refusals before the credit ends: %v", accepted, rejected, c.rejected)
			}
			if slowest > 1200*time.Millisecond {
				t.Errorf("the slowest throttle took %v, want at most 1.2 s", slowest)
			}
			// A link that is opened now gets no credit.
			start := time.Now()
			if err := send(t.Context(), clientOf(t, s.Address()), message(topic, 1)); !errors.Is(err, tidegate.ErrThrottled) {
				t.Errorf("a new link: %v, want a throttle", err)
			}
			if d := time.Since(start); d > 1500*time.Millisecond {
				t.Errorf("the throttle of a new link took %v", d)
			}
			if n, err := a.do(t.Context(), "queue."+topic+"."+group, "countMessages"); err != nil || n != "["+itoa(accepted)+"]" {
				t.Errorf("the queue has %s messages, %v; %d were accepted", n, err, accepted)
			}
			// Once there is space, a send succeeds within a second.
			if _, err := a.do(t.Context(), "queue."+topic+"."+group, "removeAllMessages"); err != nil {
				t.Fatal(err)
			}
			start = time.Now()
			err := send(t.Context(), client, message(topic, 1))
			for err != nil && time.Since(start) < 5*time.Second {
				err = send(t.Context(), client, message(topic, 1))
			}
			if d := time.Since(start); err != nil || d > time.Second {
				t.Errorf("after the address was emptied a send took %v: %v", d, err)
			}
		})
	}
}

// With the policy DROP the loss cannot be detected: the package comment warns of it.
func TestDropIsNotDetectable(t *testing.T) {
	s, a := server(t)
	topic, group := "drop.orders-"+run, "drop-billing-"+run
	if err := a.createGroup(t.Context(), topic, group); err != nil {
		t.Fatal(err)
	}
	c := clientOf(t, s.Address())
	for range 200 {
		if err := send(t.Context(), c, message(topic, 2048)); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := a.do(t.Context(), "queue."+topic+"."+group, "countMessages"); err != nil || n == "[200]" {
		t.Errorf("the queue has %s messages, %v; want fewer than 200", n, err)
	}
}

func TestMissingAddress(t *testing.T) {
	s, _ := server(t)
	err := send(t.Context(), clientOf(t, s.Address()), message("nowhere-"+run, 1))
	if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != tidegate.CodeTopicNotFound || e.MaybeStored {
		t.Errorf("got %v, want 40402 and nothing stored", err)
	}
}
