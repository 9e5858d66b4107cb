package consumer

import (
	"context"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/flow"
	"github.com/tidegate/tidegate/transport"
)

// Retries and new messages wait for handlers in two queues. While
// both have messages, each four turns are three new messages and one retry, so that neither queue
// starves; a queue that is alone has all turns.
func TestRetriesAndNewMessagesShareTheHandlers(t *testing.T) {
	o := PushOptions{Concurrency: 1000}.withDefaults()
	h := newHand(&o)
	arrive := func(attempt, n int) {
		for range n {
			h.unread++
			it := newItem(&tidegate.Delivery{Attempt: attempt}, nil, transport.Capabilities{}, flow.Lease{})
			h.makeReady(it)
		}
	}
	_, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	attempts := func(n int) (fresh, retried int) {
		for range n {
			if it := h.take(cancel); it.current.Attempt == 1 {
				fresh++
			} else {
				retried++
			}
		}
		return fresh, retried
	}
	arrive(2, 100)
	arrive(1, 100)
	for order := range 30 {
		if fresh, retried := attempts(4); fresh != 3 || retried != 1 {
			t.Fatalf("turns %d to %d are %d new messages and %d retries, want 3 and 1", 4*order+1, 4*order+4, fresh, retried)
		}
	}
	if fresh, retried := attempts(80); fresh != 10 || retried != 70 {
		t.Errorf("the rest is %d new messages and %d retries, want 10 and 70", fresh, retried)
	}
}
