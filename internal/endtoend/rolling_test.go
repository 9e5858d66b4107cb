package endtoend

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// Fifty restarts of consumers at random instants under load, one after the other: no message waits
// for the end of a lease, and none spends an attempt.
func TestRollingRestarts(t *testing.T) {
	const beat = 16 * time.Millisecond
	for name, group := range map[string]settings.Group{"unordered": {}, "fifo": {FIFO: true}} {
		t.Run(name, inBubble(func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rnd := rand.New(rand.NewPCG(seed, 1))
			b := brokertest.New(t)
			topic := settings.Topic{}
			if group.FIFO {
				topic.Type = settings.TopicFIFO
			}
			b.CreateTopic("orders", topic)
			b.CreateGroup("billing", group)
			network := &lag{b: b, delay: 3 * time.Millisecond}
			var mu sync.Mutex
			handled := map[string]int{}
			var latest time.Duration
			handle := func(_ context.Context, d *tidegate.Delivery) error {
				mu.Lock()
				handled[d.ID]++
				latest = max(latest, time.Since(d.BornAt))
				assert.That(t, d.Attempt == 1, "message %s: attempt %d", d.ID, d.Attempt)
				work := time.Duration(rnd.Int64N(int64(80 * time.Millisecond)))
				mu.Unlock()
				<-time.After(work)
				return nil
			}
			var reports consumer.StopReport // the sum of all
			reported := func(r consumer.StopReport) {
				mu.Lock()
				defer mu.Unlock()
				reports.Acked += r.Acked
				reports.Released += r.Released
				reports.Cancelled += r.Cancelled
				reports.Retried += r.Retried
				reports.Unsettled += r.Unsettled
			}
			run := func() (stop func()) {
				client := assert.Value(rocketmq.New(b.Address(), rocketmq.Options{Dialer: network.dial}))(t)
				c := assert.Value(consumer.NewPush(client, consumer.Subscription{Group: "billing", Topic: "orders"}, handle, consumer.PushOptions{Concurrency: 8, OnStop: reported}))(t)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- c.Run(ctx) }()
				return func() {
					begin := time.Now()
					cancel()
					assert.NoError(t, <-done)
					took := time.Since(begin)
					assert.That(t, took <= time.Second, "Run took %v to end", took)
					client.Close()
				}
			}
			p := NewProducer(t, b, producer.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			sent := 0
			var sending sync.WaitGroup
			sending.Go(func() {
				for ; ctx.Err() == nil; sent++ {
					m := &tidegate.Message{ID: fmt.Sprint(sent), Topic: "orders", Body: []byte("x")}
					if group.FIFO {
						m.MessageGroup = fmt.Sprint(sent % 50)
					}
					MustSend(t, p, m)
					<-time.After(beat)
				}
			})
			instances := []func(){run(), run(), run()}
			for i := range 50 {
				mu.Lock()
				wait := time.Duration(rnd.Int64N(int64(300 * time.Millisecond)))
				mu.Unlock()
				<-time.After(wait)
				instances[i%3]()
				instances[i%3] = run()
			}
			cancel()
			sending.Wait()
			<-time.After(2 * time.Second)
			for _, stop := range instances {
				stop()
			}
			<-time.After(time.Second) // the network empties
			assert.That(t, len(handled) == sent, "%d of %d messages were handled", len(handled), sent)
			for id, n := range handled {
				assert.That(t, n == 1, "message %s was handled %d times", id, n)
			}
			if reports.Acked < 20 || reports.Cancelled+reports.Retried+reports.Unsettled != 0 {
				t.Errorf("the reports of all stops together: %+v; want the running handlers' messages acknowledged and the unread ones released", reports)
			}
			assert.That(t, latest <= 2*time.Second, "a message was handled %v after it was sent", latest)
		}))
	}
}
