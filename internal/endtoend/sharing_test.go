package endtoend

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
)

// An outage of two seconds under load costs no send with a ctx of 30 s an error, and
// sends succeed at most two seconds after the server is back.
func TestOutageUnderLoad(t *testing.T) {
	for name, restart := range map[string]bool{"connections cut": false, "restart": true} {
		t.Run(name, func(t *testing.T) {
			brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
				b.CreateTopic("orders", settings.Topic{})
				p := NewProducer(t, b, producer.Options{})
				var sent atomic.Int64
				var slowest atomic.Int64
				var wg sync.WaitGroup
				stop := time.Now().Add(10 * time.Second)
				for range 32 {
					wg.Go(func() {
						for time.Now().Before(stop) {
							ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
							start := time.Now()
							if _, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("x")}); err != nil {
								t.Error(err)
							}
							cancel()
							if took := int64(time.Since(start)); took > slowest.Load() {
								slowest.Store(took)
							}
							sent.Add(1)
							time.Sleep(100 * time.Millisecond)
						}
					})
				}
				time.Sleep(3 * time.Second)
				b.Disconnect()
				time.Sleep(2 * time.Second)
				if restart {
					b.Restart()
				} else {
					b.Reconnect()
				}
				wg.Wait()
				if took := time.Duration(slowest.Load()); took > 4*time.Second {
					t.Errorf("the slowest of %d sends took %v, the outage 2s", sent.Load(), took)
				}
			})
		})
	}
}

// Calls share requests at a broker that announces it, and every message keeps its
// ID, tag and result.
func TestCallsShareRequestsAtTheBroker(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		p := NewProducer(t, b, producer.Options{})
		if _, err := p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("first")}); err != nil {
			t.Fatal(err)
		}
		var requests atomic.Int64
		b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			if call.Op == "SendMessage" {
				requests.Add(1)
				time.Sleep(10 * time.Millisecond)
			}
			return next(ctx)
		})
		const n = 200
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				m := &tidegate.Message{ID: fmt.Sprintf("id-%d", i), Tag: fmt.Sprintf("tag-%d", i), Topic: "orders", Body: []byte("x")}
				if r, err := p.Send(t.Context(), m); err != nil || r.MessageID != m.ID || r.Attempts != 1 {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
		wg.Wait()
		if got := requests.Load(); got > n/10 {
			t.Errorf("%d requests for %d messages", got, n)
		}
		c, err := consumer.NewSimple(b.Client(), consumer.Subscription{Group: "g", Topic: "orders"}, consumer.SimpleOptions{})
		if err != nil {
			t.Fatal(err)
		}
		tags := map[string]string{}
		for len(tags) < n {
			ds, err := c.Receive(t.Context(), 32)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range ds {
				if string(d.Body) != "first" {
					tags[d.ID] = d.Tag
				}
				if err := c.Ack(t.Context(), d); err != nil {
					t.Error(err)
				}
			}
		}
		for i := range n {
			if got := tags[fmt.Sprintf("id-%d", i)]; got != fmt.Sprintf("tag-%d", i) {
				t.Errorf("message id-%d has the tag %q", i, got)
			}
		}
	})
}
