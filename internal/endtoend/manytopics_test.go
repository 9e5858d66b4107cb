package endtoend

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
)

// plain hides the optional interfaces of a transport, except the one that a failover needs.
type plain struct {
	transport.Transport
	transport.Pinger
}

// watches counts the receives that leave watches, and the others that wait.
type watches struct {
	*failover.Transport
	mu            sync.Mutex
	left, waiting int
}

func (w *watches) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, <-chan struct{}, error) {
	ds, ready, err := w.Transport.ReceiveOrWatch(ctx, r)
	w.mu.Lock()
	defer w.mu.Unlock()
	if ready != nil {
		w.left++
	}
	return ds, ready, err
}

func (w *watches) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	w.mu.Lock()
	if r.Wait > 0 {
		w.waiting++
	}
	w.mu.Unlock()
	return w.Transport.Receive(ctx, r)
}

// A consumer of 20 topics receives at once from both brokers of a failover, with watches and, where
// an endpoint's transport has none, with waiting receives. It still does after one broker was away.
func TestManyTopics(t *testing.T) {
	for name, hides := range map[string]bool{"watches": false, "no watches at the second endpoint": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				brokers := []*brokertest.Broker{brokertest.New(t), brokertest.New(t)}
				topics := map[string]tidegate.Filter{}
				for i := range 20 {
					topic := fmt.Sprint("t", i)
					topics[topic] = tidegate.Filter{}
					for _, b := range brokers {
						b.CreateTopic(topic, settings.Topic{Queues: 1})
					}
				}
				var second transport.Transport = brokers[1].Client()
				if hides {
					second = plain{second, second.(transport.Pinger)}
				}
				x, err := failover.New([]failover.Endpoint{{Name: "a", Transport: brokers[0].Client()}, {Name: "b", Transport: second}}, failover.Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer x.Close()
				w := &watches{Transport: x}
				handled := make(chan string, 100)
				p, err := consumer.NewPush(w, consumer.Subscription{Group: "g", Topics: topics}, func(_ context.Context, d *tidegate.Delivery) error {
					handled <- d.ID
					return nil
				}, consumer.PushOptions{OnReceiveFailure: func(consumer.ReceiveFailure) {}})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- p.Run(ctx) }()
				atOnce := func() {
					t.Helper()
					time.Sleep(time.Minute)
					for topic := range topics {
						for i, b := range brokers {
							m := &tidegate.Message{ID: tidegate.NewMessageID(), Topic: topic, Body: []byte("x")}
							if r := b.Broker.Send(t.Context(), []*tidegate.Message{m})[0]; r.Err != nil {
								t.Fatal(r.Err)
							}
							sent := time.Now()
							select {
							case id := <-handled:
								if id != m.ID || time.Since(sent) > 100*time.Millisecond {
									t.Errorf("handled %s after %v, want %s at once", id, time.Since(sent), m.ID)
								}
							case <-time.After(time.Minute):
								t.Errorf("the message of %s at broker %d is not handled", topic, i)
							}
						}
					}
				}
				atOnce()
				time.Sleep(time.Second) // the acknowledgements have arrived
				brokers[0].Disconnect()
				time.Sleep(time.Minute)
				brokers[0].Reconnect()
				atOnce()
				w.mu.Lock()
				if w.left < 20*3 || hides != (w.waiting >= 20) {
					t.Errorf("%d receives left watches, and %d waited", w.left, w.waiting)
				}
				w.mu.Unlock()
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
