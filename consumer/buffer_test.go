package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// MaxBuffered bounds the messages that wait for a handler, for handlers of any speed.
func TestMaxBufferedBoundsTheMessagesInHand(t *testing.T) {
	for buffered, want := range map[int][2]int{ // the most messages in hand: at least and at most
		-1: {1, 1}, 5: {6, 6}, 0: {100, 1 + 1024},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			s.caps = ours
			s.fill(2000)
			stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
				consumer.PushOptions{Concurrency: 1, MaxBuffered: buffered})
			time.Sleep(10 * time.Second)
			stop()
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.maxHand < want[0] || s.maxHand > want[1] {
				t.Errorf("MaxBuffered %d: %d messages in hand, want %d to %d", buffered, s.maxHand, want[0], want[1])
			}
		})
	}
}
