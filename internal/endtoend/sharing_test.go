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
