package producer

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Each message of a request has an event with the number of messages in the request. A message that
// reaches a limit while it waits in the queue has an event without an attempt: its Duration and
// Messages are 0, and nothing can have been stored.
func TestEventsOfMessagesThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			return all(len(msgs), throttled(0))
		}}
		var mu sync.Mutex
		attempted, waited := 0, 0
		p := newProducer(t, f, Options{OnAttempt: func(a Attempt) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case a.Messages > 0:
				attempted++
			case a.Duration != 0 || a.MaybeStored || a.Stop == NotStopped || a.Class != tidegate.ClassThrottled:
				t.Errorf("event %+v of a message that waited", a)
			default:
				waited++
			}
		}})
		const messages = 200
		for i, err := range sendAll(t.Context(), p, numbered(messages)) {
			if e := sendError(t, err); e.Reason != StopExhausted || e.MaybeStored {
				t.Errorf("message %d: %+v", i, e)
			}
		}
		sent := 0
		for _, c := range f.sent {
			sent += len(c.ids)
		}
		mu.Lock()
		defer mu.Unlock()
		if attempted != sent || waited == 0 || waited > messages {
			t.Errorf("%d events of attempts and %d of messages that waited, want %d and some", attempted, waited, sent)
		}
	})
}
