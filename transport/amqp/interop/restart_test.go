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
	sender, err := session.NewSender(t.Context(), "orders", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sender.Send(t.Context(), goamqp.NewMessage([]byte("not durable")), nil); err != nil {
		t.Fatal(err)
	}
	got := receive(t, c, r)
	if string(got.Body) != "not durable" {
		t.Fatalf("received %q", got.Body)
	}
	if err := send(t.Context(), c, message("orders", 1)); err != nil {
		t.Fatal(err)
	}
	failed := receive(t, c, r)
	if _, err := c.Settle(t.Context(), failed, transport.Verdict{Kind: transport.Retry, Reason: "no such customer"}); err != nil {
		t.Fatal(err)
	}
	if failed = receive(t, c, r); failed.Attempt != 2 {
		t.Fatalf("attempt %d, want 2", failed.Attempt)
	}
	s.Stop()
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := receive(t, clientOf(t, s.Address()), r)
	if again.ID != failed.ID || again.Attempt < 2 {
		t.Errorf("received attempt %d of %q, want attempt 2 or later of %q", again.Attempt, again.ID, failed.ID)
	}
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
	if e, ok := errors.AsType[*tidegate.Error](err); !ok || !e.MaybeStored {
		t.Errorf("a send without a response: %v, want MaybeStored", err)
	}
	if err := syscall.Kill(s.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, c, r); got.ID != late.ID {
		t.Errorf("received %q, want %q", got.ID, late.ID)
	}
}
