package brokertest_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/endtoend"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

func TestDisconnectAndReconnect(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		p := endtoend.NewProducer(t, b, producer.Options{})
		endtoend.MustSend(t, p, &tidegate.Message{Topic: "orders", Body: []byte("before")})
		b.Disconnect()
		b.Disconnect()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if r, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("during")}); !errors.Is(err, tidegate.ErrUnavailable) {
			t.Errorf("while the network is cut: %+v, %v; want ErrUnavailable", r, err)
		}
		if _, err := b.Dial(t.Context(), ""); err == nil {
			t.Error("Dial succeeds while the network is cut")
		}
		b.Reconnect()
		time.Sleep(5 * time.Minute) // longer than any backoff of the connection
		endtoend.MustSend(t, p, &tidegate.Message{Topic: "orders", Body: []byte("after")})
	})
}

// After a restart the broker has all stored messages, redelivers unacknowledged ones, and its
// clients reconnect.
func TestRestartKeepsTheData(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		p := endtoend.NewProducer(t, b, producer.Options{})
		var ids []string
		for _, body := range []string{"acknowledged", "in flight", "ready"} {
			r, err := p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte(body)})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, r.MessageID)
		}
		c, err := consumer.NewSimple(b.Client(), consumer.Subscription{Group: "billing", Topic: "orders"}, consumer.SimpleOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var held []*tidegate.Delivery
		for range 2 {
			ds, err := c.Receive(t.Context(), 1)
			if err != nil || len(ds) != 1 {
				t.Fatalf("%v, %v", ds, err)
			}
			held = append(held, ds...)
		}
		if err := c.Ack(t.Context(), held[0]); err != nil {
			t.Fatal(err)
		}
		engine := b.Broker
		b.Restart()
		if b.Broker == engine {
			t.Error("the engine is the old one")
		}
		got := map[string]bool{}
		for start := time.Now(); len(got) < 2 && time.Since(start) < 10*time.Minute; {
			ds, err := c.Receive(t.Context(), 10)
			if err != nil {
				time.Sleep(time.Second)
				continue
			}
			for _, d := range ds {
				got[d.ID] = true
				if err := c.Ack(t.Context(), d); err != nil {
					t.Error(err)
				}
			}
		}
		if got[ids[0]] || got[held[0].ID] || len(got) != 2 {
			t.Errorf("after the restart: %v, want all but the acknowledged message", got)
		}
	})
}

func TestClientWithItsOwnDialer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, other := brokertest.New(t), brokertest.New(t)
		if b.Address() == other.Address() {
			t.Errorf("two brokers have the address %s", b.Address())
		}
		b.CreateTopic("orders", settings.Topic{})
		var dials atomic.Int64
		c := b.ClientWith(rocketmq.Options{Dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			dials.Add(1)
			return b.Dial(ctx, addr)
		}})
		if _, err := c.ProducerSettings(t.Context(), "orders"); err != nil || dials.Load() == 0 {
			t.Errorf("%d connections through the test's own Dialer, %v", dials.Load(), err)
		}
	})
}
