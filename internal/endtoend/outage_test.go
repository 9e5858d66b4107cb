package endtoend

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// The ReceiveBackoff of a consumer bounds the delay of its return after an outage. The waits of
// gRPC between attempts to connect, by then two minutes, do not.
func TestConsumersComeBackAfterAnOutage(t *testing.T) {
	const atMost = 36*time.Second + time.Second // the default's upper bound, and the time to connect
	for name, before := range map[string]time.Duration{"while it consumes": time.Minute, "before it has begun": 0} {
		for _, outage := range []time.Duration{10 * time.Minute, 10*time.Minute + 13*time.Second, 11 * time.Minute} {
			t.Run(name+" "+outage.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := brokertest.New(t)
					b.CreateTopic("orders", settings.Topic{})
					send := func() {
						msg := &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}
						if r := b.Broker.Send(t.Context(), []*tidegate.Message{msg}); r[0].Err != nil { // past the network
							t.Fatal(r[0].Err)
						}
					}
					if before == 0 {
						b.Disconnect()
					}
					var last atomic.Int64
					p, err := consumer.NewPush(b.ClientWith(rocketmq.Options{}), consumer.Subscription{Group: "billing", Topic: "orders"},
						func(context.Context, *tidegate.Delivery) error {
							last.Store(time.Now().UnixNano())
							return nil
						}, consumer.PushOptions{})
					if err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithCancel(t.Context())
					ended := make(chan error, 1)
					go func() { ended <- p.Run(ctx) }()
					time.Sleep(before)
					b.Disconnect()
					time.Sleep(outage)
					send()
					b.Reconnect()
					up := time.Now()
					time.Sleep(5 * time.Minute)
					if late := time.Unix(0, last.Load()).Sub(up); late < 0 || late > atMost {
						t.Errorf("consumed %v after the broker was back, want at most %v", late, atMost)
					}
					cancel()
					if err := <-ended; err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// One message that is too large for a consumer neither ends it nor keeps the
// others from it.
func TestTooLargeMessageIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{})
		p := NewProducer(t, b, producer.Options{})
		MustSend(t, p, &tidegate.Message{Topic: "orders", Body: make([]byte, 2<<20)})
		MustSend(t, p, &tidegate.Message{Topic: "orders", Body: []byte("x")})
		var handled atomic.Int64
		push, err := consumer.NewPush(b.ClientWith(rocketmq.Options{MaxReceiveSize: 1 << 20}), consumer.Subscription{Group: "billing", Topic: "orders"},
			func(context.Context, *tidegate.Delivery) error { handled.Add(1); return nil }, consumer.PushOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- push.Run(ctx) }()
		time.Sleep(time.Second)
		if handled.Load() != 1 {
			t.Errorf("%d handled with the first receive, want the one that can be read", handled.Load())
		}
		time.Sleep(10 * time.Minute)
		MustSend(t, p, &tidegate.Message{Topic: "orders", Body: []byte("x")})
		time.Sleep(time.Minute)
		cancel()
		if err := <-ended; err != nil || handled.Load() != 2 {
			t.Errorf("Run: %v, %d handled, want 2", err, handled.Load())
		}
	})
}
