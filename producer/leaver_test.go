package producer

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A caller may leave, or the producer close, between the response and the result: for example while
// the result of another message of the request is awaited, or while a function observes an attempt.
// The server has stored the message, so the error must have MaybeStored.
func TestLeavingAfterTheResponse(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		f := &laneFake{do: func(context.Context, int, transport.Lane, []*tidegate.Message) []error { return nil }}
		observing := make(chan struct{})
		p := newProducer(t, f, Options{OnAttempt: func(Attempt) { <-observing }})
		ctx, cancel := context.WithCancel(t.Context())
		var got []transport.SendResult
		var wg sync.WaitGroup
		wg.Go(func() { got = sendBy(ctx, p, entry, message(), message()) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(observing)
		wg.Wait()
		for i, r := range got {
			if r.Err != nil && !sendError(t, r.Err).MaybeStored {
				t.Errorf("message %d was stored, but the error is %v", i, r.Err)
			}
		}
	})
}

// Send does not keep the message after its return, also when the caller leaves and the request
// continues for other messages.
func TestLeaversMayReuseTheirMessage(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		var mu sync.Mutex
		var sent []string
		f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			sleepFor(ctx, 2*time.Second) // for example for a connection, before it encodes the request
			mu.Lock()
			defer mu.Unlock()
			for _, m := range msgs {
				sent = append(sent, m.ID+" "+string(m.Body)+" "+m.Keys[0]+" "+m.Properties["p"])
			}
			return nil
		}}
		p := newProducer(t, f, Options{})
		var wg sync.WaitGroup
		for _, m := range numbered(2) { // so that further messages share a request
			wg.Go(func() { p.Send(t.Context(), fill(m, "busy")) })
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel) // the request began after 100 ms
		msgs := []*tidegate.Message{named("a"), named("b"), named("c")}
		for _, m := range msgs {
			fill(m, "old")
		}
		wg.Go(func() { p.Send(t.Context(), fill(named("stays"), "old")) })
		for _, r := range sendBy(ctx, p, entry, msgs...) {
			if !errors.Is(r.Err, context.Canceled) {
				t.Errorf("got %v", r.Err)
			}
		}
		for _, m := range msgs {
			copy(m.Body, "new")
			m.Keys[0], m.Properties["p"] = "new", "new"
		}
		wg.Wait()
		synctest.Wait()
		for _, s := range sent {
			if strings.Contains(s, "new") {
				t.Errorf("sent %q", s)
			}
		}
		if len(sent) < 6 {
			t.Errorf("sent %q", sent)
		}
	})
}

func fill(m *tidegate.Message, text string) *tidegate.Message {
	m.Body, m.Keys, m.Properties = []byte(text), []string{text}, map[string]string{"p": text}
	return m
}

// A message whose ctx ends while its lane is being paused ends with the cause of its ctx.
func TestLeavingAPausedLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the user has left")
		ctx, cancel := context.WithCancelCause(t.Context())
		f := &laneFake{do: func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			time.Sleep(time.Second)
			if n == 2 {
				cancel(cause)
			}
			return all(len(msgs), throttled(0))
		}}
		p := newProducer(t, f, Options{})
		var wg sync.WaitGroup
		for _, m := range numbered(2) {
			wg.Go(func() { p.Send(t.Context(), m) })
		}
		synctest.Wait()
		for i, err := range sendAll(ctx, p, numbered(50)) {
			if !errors.Is(err, cause) || !errors.Is(err, context.Canceled) {
				t.Errorf("message %d: %v", i, err)
			}
		}
		wg.Wait()
	})
}
