package endtoend

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
)

// Sends succeed at most two seconds after each of twenty restarts under load, and the broker has
// each accepted message once.
func TestTwentyRestarts(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		p := NewProducer(t, b, producer.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var sent atomic.Int64
		var mu sync.Mutex
		ids := map[string]bool{} // guarded by mu: of the accepted messages
		var senders sync.WaitGroup
		for range 8 {
			senders.Go(func() {
				for ctx.Err() == nil {
					call, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					r, err := p.Send(call, &tidegate.Message{Topic: "orders", Body: []byte("x")})
					assert.NoError(t, err)
					cancel()
					mu.Lock()
					ids[r.MessageID] = true
					mu.Unlock()
					sent.Add(1)
					time.Sleep(200 * time.Millisecond)
				}
			})
		}
		for round := range 20 {
			time.Sleep(time.Second)
			b.Disconnect()
			time.Sleep(time.Duration(round) * 200 * time.Millisecond)
			b.Reconnect()
			b.Restart()
			before := sent.Load()
			time.Sleep(2 * time.Second)
			got := sent.Load() - before
			assert.That(t, got >= 8, "restart %d: %d messages were sent in the two seconds after it", round, got)
		}
		cancel()
		senders.Wait()
		if info, err := b.Topic("orders"); err != nil || info.StoredMessages != int64(len(ids)) {
			t.Errorf("%d messages were accepted, the broker has %d, %v", len(ids), info.StoredMessages, err)
		}
	})
}
