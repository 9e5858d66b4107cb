//go:build unix

package interop

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
)

// After a restart of the server its durable messages are there, with their attempts. Messages of
// go-amqp without a header are lost.
func TestRestart(t *testing.T) {
	s := start(t, artemis.Options{Properties: map[string]string{`addressSettings."#".autoCreateAddresses`: "true"}})
	r := transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Minute, Wait: time.Millisecond}
	c := client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout})
	if _, err := c.Receive(t.Context(), r); err != nil { // creates the queue
		t.Fatal(err)
	}
	session, end := dial(t, s.Address())
	defer end()
	sender := assert.Value(session.NewSender(t.Context(), "orders", nil))(t)
	assert.Must(t, sender.Send(t.Context(), goamqp.NewMessage([]byte("not durable")), nil))
	got := receive(t, c, r)
	assert.MustThat(t, string(got.Body) == "not durable", "received %q", got.Body)
	assert.Must(t, send(t.Context(), c, message("orders", 1)))
	failed := receive(t, c, r)
	assert.Must(t, assert.Err(c.Settle(t.Context(), failed, transport.Verdict{Kind: transport.Retry, Reason: "no such customer"})))
	if failed = receive(t, c, r); failed.Attempt != 2 {
		t.Fatalf("attempt %d, want 2", failed.Attempt)
	}
	s.Stop()
	assert.Must(t, s.Restart(t.Context()))
	again := receive(t, clientOf(t, s.Address()), r)
	assert.That(t, again.ID == failed.ID && again.Attempt >= 2,
		"received attempt %d of %q, want attempt 2 or later of %q", again.Attempt, again.ID, failed.ID)
}

// A send whose context ended after the message was written is stored later: MaybeStored is right.
func TestWrittenMessageIsStoredLater(t *testing.T) {
	s := start(t, artemis.Options{Properties: map[string]string{`addressSettings."#".autoCreateAddresses`: "true"}})
	c := clientOf(t, s.Address())
	r := transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Minute, Wait: time.Second}
	if _, err := c.Receive(t.Context(), r); err != nil { // creates the queue
		t.Fatal(err)
	}
	if err := send(t.Context(), c, message("orders", 1)); err != nil { // attaches the link
		t.Fatal(err)
	}
	first := receive(t, c, r)
	if errs := c.Ack(t.Context(), []*tidegate.Delivery{first}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	suspend(t, s.PID())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	late := message("orders", 1)
	err := send(ctx, c, late)
	e, ok := errors.AsType[*tidegate.Error](err)
	assert.That(t, ok && e.MaybeStored, "a send without a response: %v, want MaybeStored", err)
	assert.Must(t, syscall.Kill(s.PID(), syscall.SIGCONT))
	assert.Equal(t, "received", receive(t, c, r).ID, late.ID)
}
