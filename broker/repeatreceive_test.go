package broker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// Messages that were acknowledged, changed or released meanwhile are not replayed, the rest is.
// When none is left, the attempt ID is that of a new receive.
func TestRepeatedReceivePartly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		sends, _ := fifo(t, b, settings.OnExhaustedDeadLetter)
		sends("a:1", "b:1", "c:1", "d:1", "a:2")
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, AttemptID: "x", InvisibleDuration: time.Minute}
		ds := expectMessages(t, receive(t, b, r), "a:1/1 b:1/1 c:1/1 d:1/1")
		by := map[string]*tidegate.Delivery{}
		for _, d := range ds {
			by[d.ID] = d
		}
		ackDeliveries(t, b, []*tidegate.Delivery{by["a:1"]})
		if _, err := b.Extend(t.Context(), by["b:1"], time.Hour, false); err != nil {
			t.Fatal(err)
		}
		serve(b).Return(t.Context(), []*tidegate.Delivery{by["c:1"]})
		again := expectMessages(t, receive(t, b, r), "d:1/1")
		if !again[0].InvisibleUntil.Equal(by["d:1"].InvisibleUntil) {
			t.Errorf("replayed %+v, want %+v", again[0], by["d:1"])
		}
		ackDeliveries(t, b, again)
		next := expectMessages(t, receive(t, b, r), "a:2/1 c:1/1") // c:1 was not delivered
		expectMessages(t, receive(t, b, r), "a:2/1 c:1/1")
		time.Sleep(time.Minute) // past their end the attempt counts
		synctest.Wait()
		expectMessages(t, receive(t, b, r), "a:2/2 c:1/2")
		if errs := b.Ack(t.Context(), next[:1]); !errors.Is(errs[0], tidegate.ErrInvalidHandle) {
			t.Errorf("a handle whose time was over: %v", errs[0])
		}
	})
}

// The release of the lost response, by the server or by the client that received a part of it,
// takes nothing from the receiver of the repetition.
func TestLostResponseIsReleasedLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		sends, _ := fifo(t, b, settings.OnExhaustedDeadLetter)
		sends("a:1", "b:1", "a:2")
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, AttemptID: "x", InvisibleDuration: time.Minute}
		lost := expectMessages(t, receive(t, b, r), "a:1/1 b:1/1")
		again := expectMessages(t, receive(t, b, r), "a:1/1 b:1/1")
		serve(b).Return(t.Context(), lost[:1])
		if _, err := b.Extend(t.Context(), lost[1], 0, false); !errors.Is(err, tidegate.ErrInvalidHandle) {
			t.Errorf("a handle of the lost response is released: %v", err)
		}
		once := r
		once.AttemptID = ""
		expectMessages(t, receive(t, b, once), "")
		again = expectMessages(t, receive(t, b, r), idsOf(again))
		if err := b.Ack(t.Context(), lost[:1])[0]; !errors.Is(err, tidegate.ErrInvalidHandle) {
			t.Errorf("a handle of the lost response is valid: %v", err)
		}
		b = reopen(t, b, fs)
		ackDeliveries(t, b, again)
		expectMessages(t, receive(t, b, r), "a:2/1")
	})
}

// A client that was cut off receives again while its first receive still waits: the first one ends,
// and the second gets the messages.
func TestRepeatedReceiveWhileItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		sends, _ := fifo(t, b, settings.OnExhaustedDeadLetter)
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, AttemptID: "x", Wait: time.Hour}
		const n = 5
		answers := make(chan string, n)
		start := time.Now()
		for range n {
			go func() { answers <- fmt.Sprint(idsOf(receive(t, b, r)), time.Since(start)) }()
			time.Sleep(time.Second)
			synctest.Wait()
		}
		for i := range n - 1 {
			if got, want := <-answers, (time.Duration(i+1) * time.Second).String(); got != want {
				t.Errorf("a repeated receive returned %q, want %q", got, want)
			}
		}
		sends("a:1")
		if got, want := <-answers, fmt.Sprint("a:1/1", n*time.Second); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		// Another attempt is another receive.
		r.AttemptID, r.Wait = "y", 0
		expectMessages(t, receive(t, b, r), "")
	})
}

// All repetitions come at the same time, on a slow store. Each gets the same response, and no
// message is delivered twice.
func TestRepeatedReceiveAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		sends, _ := fifo(t, b, settings.OnExhaustedDeadLetter)
		putAddress(t, b, "t", settings.Address{PersistDeliveryCountBeforeDelivery: new(true)}) // deliveries wait for the store
		sends("a:1", "b:1", "c:1", "d:1")
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 2, AttemptID: "x"}
		release := holdProgress(b)
		answers := make(chan string, 8)
		for range cap(answers) {
			go func() { answers <- idsOf(receive(t, b, r)) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late := r
		late.Queue, late.InvisibleDuration = transport.AnyQueue, time.Minute
		if _, err := b.Receive(ctx, late); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a repetition whose context ends: %v", err)
		}
		release()
		want := <-answers
		for range cap(answers) - 1 {
			if got := <-answers; got != want || got == "" {
				t.Errorf("a repetition got %q, another one %q", got, want)
			}
		}
		r.AttemptID, r.Max = "y", 32
		if rest := receive(t, b, r); len(rest) != 2 {
			t.Errorf("%d messages are left, want 2", len(rest))
		}
		if a, err := subscriptions(b)[0].Audit(); err != nil || a.Receiving != 0 {
			t.Errorf("%d receives are left over, %v", a.Receiving, err)
		}
	})
}
