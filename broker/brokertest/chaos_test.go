package brokertest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/endtoend"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// seen are the deliveries of one message.
type seen struct {
	times    []time.Duration // since the start
	attempts []int
}

// consumeWith consumes n messages of the topic with the chaos, one after another, and returns the
// bodies in the order of their first delivery, and the deliveries of each.
func consumeWith(t *testing.T, b *brokertest.Broker, c brokertest.Chaos, n int) (order []string, of map[string]*seen) {
	t.Helper()
	var mu sync.Mutex
	start := time.Now()
	of = map[string]*seen{}
	p, err := consumer.NewPush(b.ChaosClient(c), consumer.Subscription{Group: "billing", Topic: "orders"},
		func(_ context.Context, d *tidegate.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			body := string(d.Body)
			if of[body] == nil {
				of[body] = &seen{}
				order = append(order, body)
			}
			of[body].times = append(of[body].times, time.Since(start))
			of[body].attempts = append(of[body].attempts, d.Attempt)
			return nil
		}, consumer.PushOptions{Concurrency: 1})
	assert.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	b.WaitIdle("billing", "orders")
	stop()
	assert.NoError(t, <-done)
	assert.Equal(t, "messages were delivered", len(of), n)
	return order, of
}

func TestChaosDuplicates(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		for n := range 100 {
			b.Send(endtoend.Order(n))
		}
		_, of := consumeWith(t, b, brokertest.Chaos{Duplicate: 1}, 100)
		for body, s := range of {
			assert.That(t, slices.Equal(s.attempts, []int{1, 1}),
				"message %s was delivered with attempts %v, want twice with attempt 1", body, s.attempts)
		}
	})
}

func TestChaosPostpones(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		for n := range 200 {
			b.Send(endtoend.Order(n))
		}
		_, of := consumeWith(t, b, brokertest.Chaos{Seed: 1, Late: 0.5, Lateness: 10 * time.Minute}, 200)
		late := 0
		for body, s := range of {
			assert.That(t, slices.Equal(s.attempts, []int{1}),
				"message %s was delivered with attempts %v, want once with attempt 1", body, s.attempts)
			if s.times[0] > time.Minute {
				late++
			}
			// A message can be postponed several times; ten halves are one in a thousand.
			if s.times[0] > 200*time.Minute {
				t.Errorf("message %s came after %v", body, s.times[0])
			}
		}
		assert.That(t, late >= 60 && late <= 140, "%d of 200 messages were late, want about half", late)
	})
}

func TestChaosReordersOnlyAcrossGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, fifo := range map[string]bool{"plain": false, "fifo": true} {
			b := brokertest.New(t)
			if fifo {
				b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO})
				b.CreateGroup("billing", settings.Group{FIFO: true})
			} else {
				b.CreateTopic("orders", settings.Topic{Queues: 1})
			}
			var want []string
			for n := range 60 {
				m := endtoend.Order(n)
				if fifo {
					m.MessageGroup = "one"
				}
				b.Send(m)
				want = append(want, fmt.Sprint(n))
			}
			got, _ := consumeWith(t, b, brokertest.Chaos{Seed: 2, Reorder: 1, Late: 0.2}, 60)
			same := slices.Equal(got, want)
			assert.That(t, same == fifo, "%s: order %v; the same as sent: %v, want %v", name, got, same, fifo)
		}
	})
}

func TestChaosIsSeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var orders [3][]string
		for i, seed := range []uint64{7, 7, 8} {
			b := brokertest.New(t)
			b.CreateTopic("orders", settings.Topic{Queues: 1})
			for n := range 60 {
				b.Send(endtoend.Order(n))
			}
			orders[i], _ = consumeWith(t, b, brokertest.Chaos{Seed: seed, Late: 0.5}, 60)
		}
		if !slices.Equal(orders[0], orders[1]) || slices.Equal(orders[0], orders[2]) {
			t.Errorf("the orders of seeds 7, 7 and 8 are\n%v\n%v\n%v", orders[0], orders[1], orders[2])
		}
	})
}

func TestChaosRejectsBadValues(t *testing.T) {
	f := &failing{TB: t}
	b := brokertest.New(f)
	for want, c := range map[string]brokertest.Chaos{
		"Chaos.Duplicate is 1.5": {Duplicate: 1.5}, "Chaos.Late is -1": {Late: -1}, "Chaos.Lateness is -1s": {Lateness: -time.Second},
	} {
		f.message = ""
		got := f.catch(func() { b.ChaosClient(c) })
		assert.That(t, strings.Contains(got, want), "%+v: %q, want %q in it", c, got, want)
	}
}

// The engine in the same process, and the same engine through gRPC, pass the
// suite that every transport passes.
func TestTransports(t *testing.T) {
	for name, open := range map[string]func(*brokertest.Broker) transport.Transport{
		"engine": func(b *brokertest.Broker) transport.Transport { return b.Broker },
		"grpc":   func(b *brokertest.Broker) transport.Transport { return b.Client() },
	} {
		t.Run(name, func(t *testing.T) {
			s := transporttest.AllGuarantees()
			s.Virtual, s.Capabilities = true, transport.Capabilities{
				Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true, RetryResult: true, RepeatReceive: true, RepeatChange: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
				Watch: name == "grpc",
			}
			transporttest.Run(t, func(t *testing.T) transporttest.Fixture {
				b := brokertest.New(t)
				createGroup := func(ctx context.Context, name, lite string, s transport.ConsumerSettings) error {
					g := settings.Group{FIFO: s.FIFO, MaxAttempts: s.MaxAttempts, Retry: s.Retry.(backoff.Steps), Lite: settings.LiteGroup{Topic: lite}}
					if s.FIFO {
						g.FIFORetryInterval = settings.Duration(s.Retry.Delay(0))
					}
					_, err := b.PutGroup(ctx, name, g)
					return err
				}
				fixture := transporttest.Fixture{
					Transport: open(b),
					CreateTopic: func(ctx context.Context, name string, kind settings.TopicType) error {
						_, err := b.PutTopic(ctx, name, settings.Topic{Type: kind})
						return err
					},
					CreateGroup: func(ctx context.Context, name string, s transport.ConsumerSettings) error {
						return createGroup(ctx, name, "", s)
					},
					CreateLiteGroup: createGroup,
				}
				if name == "grpc" {
					fixture.Disconnect = b.Disconnect
				}
				return fixture
			}, s)
		})
	}
}

func TestDisconnectAndReconnect(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		p := endtoend.NewProducer(t, b, producer.Options{})
		endtoend.MustSend(t, p, &tidegate.Message{Topic: "orders", Body: []byte("before")})
		b.Disconnect()
		b.Disconnect()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("during")})
		assert.That(t, errors.Is(err, tidegate.ErrUnavailable), "while the network is cut: %+v, %v; want ErrUnavailable", r, err)
		assert.That(t, assert.Err(b.Dial(t.Context(), "")) != nil, "Dial succeeds while the network is cut")
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
			r := assert.Value(p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte(body)}))(t)
			ids = append(ids, r.MessageID)
		}
		c := assert.Value(consumer.NewSimple(b.Client(), consumer.Subscription{Group: "billing", Topic: "orders"}, consumer.SimpleOptions{}))(t)
		var held []*tidegate.Delivery
		for range 2 {
			ds, err := c.Receive(t.Context(), 1)
			assert.MustThat(t, err == nil && len(ds) == 1, "%v, %v", ds, err)
			held = append(held, ds...)
		}
		assert.Must(t, c.Ack(t.Context(), held[0]))
		engine := b.Broker
		b.Restart()
		assert.That(t, b.Broker != engine, "the engine is the old one")
		got := map[string]bool{}
		for start := time.Now(); len(got) < 2 && time.Since(start) < 10*time.Minute; {
			ds, err := c.Receive(t.Context(), 10)
			if err != nil {
				time.Sleep(time.Second)
				continue
			}
			for _, d := range ds {
				got[d.ID] = true
				assert.NoError(t, c.Ack(t.Context(), d))
			}
		}
		assert.That(t, !got[ids[0]] && !got[held[0].ID] && len(got) == 2,
			"after the restart: %v, want all but the acknowledged message", got)
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
		_, err := c.ProducerSettings(t.Context(), "orders")
		assert.That(t, err == nil && dials.Load() != 0, "%d connections through the test's own Dialer, %v", dials.Load(), err)
	})
}

// A receive from the broker goes on after its first messages, as in production. A middleware that a
// test adds decides about responses from the next part on.
func TestReceivesGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		assert.Must(t, assert.Err(b.PutTopic(t.Context(), "orders", settings.Topic{})))
		c := b.Client()
		send := func(id string) {
			t.Helper()
			assert.Must(t, c.Send(t.Context(), []*tidegate.Message{{ID: id, Topic: "orders", Body: []byte(id)}})[0].Err)
		}
		r := transport.ReceiveRequest{Group: "g", Topic: "orders", Queue: transport.AnyQueue, Max: 16, Wait: 20 * time.Second, InvisibleDuration: time.Minute}
		receive := func(ids ...string) (parts int, took time.Duration) {
			t.Helper()
			begin, done := time.Now(), make(chan struct{})
			go func() {
				defer close(done)
				_, err := c.ReceiveParts(t.Context(), r, func([]*tidegate.Delivery, time.Time) { parts++ })
				assert.NoError(t, err)
			}()
			for _, id := range ids {
				time.Sleep(time.Second)
				send(id)
			}
			<-done
			return parts, time.Since(begin)
		}
		if parts, took := receive("1", "2", "3"); parts != 3 || took != 20*time.Second {
			t.Errorf("%d parts in %v, want 3 in 20 s", parts, took)
		}
		defer b.Intercept(func(ctx context.Context, _ server.Call, next func(context.Context) error) error { return next(ctx) })()
		if parts, took := receive("4"); parts > 1 || took != time.Second {
			t.Errorf("with a middleware, %d parts in %v, want one in 1 s", parts, took)
		}
	})
}
