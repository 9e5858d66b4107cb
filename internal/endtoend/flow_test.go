package endtoend

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
)

// A broker is restarted 20 times under load: each time messages flow again within two seconds, and
// none is lost.
func TestMessagesFlowAfterEachRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{})
		var mu sync.Mutex
		handled := map[string]bool{}
		var latest time.Time
		stop := runPush(t, b.Client(), func(_ context.Context, d *tidegate.Delivery) error {
			mu.Lock()
			handled[string(d.Body)], latest = true, time.Now()
			mu.Unlock()
			<-time.After(25 * time.Millisecond)
			return nil
		}, consumer.PushOptions{})
		for n := range 20 {
			for i := range 20 {
				b.Send(Order(100*n + i))
				<-time.After(50 * time.Millisecond)
			}
			b.Restart()
			back := time.Now()
			b.Send(Order(10_000 + n))
			<-time.After(2 * time.Second)
			mu.Lock()
			if !latest.After(back) {
				t.Errorf("restart %d: no message in the 2 s after it", n)
			}
			mu.Unlock()
		}
		b.WaitIdle("billing", "orders")
		stop()
		if len(handled) != 20*21 {
			t.Errorf("%d of %d messages were handled", len(handled), 20*21)
		}
	})
}

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
					if err != nil {
						t.Error(err)
					}
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
			if got := sent.Load() - before; got < 8 {
				t.Errorf("restart %d: %d messages were sent in the two seconds after it", round, got)
			}
		}
		cancel()
		senders.Wait()
		if info, err := b.Topic("orders"); err != nil || info.StoredMessages != int64(len(ids)) {
			t.Errorf("%d messages were accepted, the broker has %d, %v", len(ids), info.StoredMessages, err)
		}
	})
}
