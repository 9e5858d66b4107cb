//go:build unix

package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
)

// A message is not delivered before its delivery time.
func TestDeliveryTime(t *testing.T) {
	s, a := server(t)
	topic := "delayed-" + run
	assert.Must(t, errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "billing")))
	c := clientOf(t, s.Address())
	m := message(topic, 1)
	m.DeliverAt = time.Now().Add(1500 * time.Millisecond)
	assert.Must(t, send(t.Context(), c, m))
	receive(t, c, transport.ReceiveRequest{Group: "billing", Topic: topic, Queue: transport.AnyQueue, InvisibleDuration: time.Minute, Wait: 5 * time.Second})
	d := time.Since(m.DeliverAt)
	assert.That(t, d >= -2*time.Millisecond, "the message came %v before its delivery time", -d)
	t.Logf("the message came %v after its delivery time", d)
}

// A server that does not respond: a send may be stored, and a repetition is stored once. An
// acknowledgement has no response; a crash of the server loses it.
func TestUnresponsiveServer(t *testing.T) {
	s := start(t, artemis.Options{Properties: map[string]string{
		"journalDatasync": "true", `addressSettings."#".autoCreateAddresses`: "true",
	}})
	c := clientOf(t, s.Address())
	r := transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 200, InvisibleDuration: time.Hour, Wait: time.Millisecond}
	if _, err := c.Receive(t.Context(), r); err != nil { // creates the queue
		t.Fatal(err)
	}
	first := message("orders", 1)
	assert.Must(t, send(t.Context(), c, first))
	got := receive(t, c, r)
	closing := clientOf(t, s.Address())
	assert.Must(t, assert.Err(closing.Receive(t.Context(), r)))
	suspend(t, s.PID())
	if errs := c.Ack(t.Context(), []*tidegate.Delivery{got}); errs[0] != nil {
		t.Errorf("an acknowledgement that was written: %v", errs[0])
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	second := message("orders", 1)
	err := send(ctx, c, second)
	if e, ok := errors.AsType[*tidegate.Error](err); !ok || !e.MaybeStored || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a send without a response: %v, want MaybeStored", err)
	}
	if err := closing.Close(); err != nil { // it returns although the server never responds
		t.Error(err)
	}
	s.Kill() // which also ends a stopped process
	assert.Must(t, s.Restart(t.Context()))
	assert.Equal(t, "received, whose acknowledgement the server never read", receive(t, c, r).ID, first.ID)
	for range 2 {
		assert.Must(t, send(t.Context(), c, second))
	}
	assert.Equal(t, "received", receive(t, c, r).ID, second.ID)
	if ds, err := c.Receive(t.Context(), r); err != nil || len(ds) > 0 {
		t.Errorf("received %d messages, %v; want none: the repetition is a duplicate", len(ds), err)
	}
}

// suspend stops a process and waits until all its threads have stopped. Linux gives the signal to
// one thread, and the others run until that thread is scheduled.
func suspend(t *testing.T, pid int) {
	t.Helper()
	assert.Must(t, syscall.Kill(pid, syscall.SIGSTOP))
	for start := time.Now(); ; wait(t, 10*time.Millisecond) {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // none on other systems
		assert.Must(t, err)
		runs := slices.ContainsFunc(files, func(file string) bool {
			b, err := os.ReadFile(file)
			_, state, ok := strings.Cut(string(b), ") ")
			return err == nil && ok && !strings.HasPrefix(state, "T")
		})
		if !runs {
			return
		}
		assert.MustThat(t, time.Since(start) <= soon, "process %d does not stop", pid)
	}
}

// TestAcknowledgementsAtACrash reports the acknowledgements that a crash of the server loses right
// after they were written.
func TestAcknowledgementsAtACrash(t *testing.T) {
	if !*figures {
		t.Log("-figures starts it")
		return
	}
	for _, datasync := range []string{"true", "false"} {
		s := start(t, artemis.Options{Properties: map[string]string{
			"journalDatasync": datasync, `addressSettings."#".autoCreateAddresses`: "true",
		}})
		c := client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout})
		r := transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 200, InvisibleDuration: time.Hour, Wait: time.Millisecond}
		if _, err := c.Receive(t.Context(), r); err != nil { // creates the queue
			t.Fatal(err)
		}
		const messages = 200
		for range messages {
			assert.Must(t, send(t.Context(), c, message("orders", 1)))
		}
		r.Wait = time.Second
		acked := 0
		for acked < messages {
			ds := assert.Value(c.Receive(t.Context(), r))(t)
			for _, err := range c.Ack(t.Context(), ds) {
				assert.Must(t, err)
			}
			acked += len(ds)
		}
		s.Kill()
		assert.Must(t, s.Restart(t.Context()))
		again := 0
		for begin := time.Now(); time.Since(begin) < 4*time.Second; {
			ds, err := c.Receive(t.Context(), r)
			assert.MustThat(t, err == nil || tidegate.Classify(err) == tidegate.ClassTransient, "%v", err)
			again += len(ds)
		}
		t.Logf("journal-datasync %s: %d of %d acknowledged messages came again", datasync, again, messages)
		assert.That(t, again <= messages, "%d messages came again, more than there were", again)
	}
}
