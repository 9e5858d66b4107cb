package endtoend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A handling is one call of a handler.
type handling struct {
	begin    time.Time
	lease    time.Time // the end of the invisible time; zero once the handler has failed
	running  bool
	endpoint string // "primary" or "secondary"
}

// A handled records the calls of a handler by message.
type handled struct {
	mu    sync.Mutex
	calls map[string][]handling
}

// begin notes a call and returns the function that notes its end. It fails the test if the message
// is delivered a second time before the first lease is over.
func (h *handled) begin(t *testing.T, d *tidegate.Delivery) (end func(error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, endpoint := time.Now(), strings.Split(d.Endpoint, "/")[0]
	for _, c := range h.calls[d.ID] {
		assert.That(t, !c.running && !now.Before(c.lease),
			"message %s came from %s while a delivery of %s was leased until %v", d.ID, endpoint, c.endpoint, c.lease.Sub(now))
	}
	n := len(h.calls[d.ID])
	h.calls[d.ID] = append(h.calls[d.ID], handling{begin: now, lease: d.InvisibleUntil, running: true, endpoint: endpoint})
	return func(err error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		c := &h.calls[d.ID][n]
		if c.running = false; err != nil {
			c.lease = time.Time{}
		}
	}
}

// from counts the calls for messages of an endpoint that began in a span of time.
func (h *handled) from(endpoint string, after, before time.Time) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, calls := range h.calls {
		for _, c := range calls {
			if c.endpoint == endpoint && c.begin.After(after) && c.begin.Before(before) {
				n++
			}
		}
	}
	return n
}

// The primary broker dies with unread messages, and the secondary takes the new ones. When the
// primary is back, one consumer reads both until each is drained. Every message is handled, is
// acknowledged at the endpoint that delivered it, and is not delivered again while it is leased.
// Later messages of either endpoint are consumed too: a consumer never leaves an endpoint.
func TestConsumerReadsBothEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		brokers := map[string]*brokertest.Broker{"primary": brokertest.New(t), "secondary": brokertest.New(t)}
		var ends []failover.Endpoint
		for _, name := range []string{"primary", "secondary"} {
			brokers[name].CreateTopic("orders", settings.Topic{})
			ends = append(ends, failover.Endpoint{Name: name, Transport: brokers[name].Client()})
		}
		x := assert.Value(failover.New(ends, failover.Options{}))(t)
		t.Cleanup(func() { x.Close() })

		seen := &handled{calls: map[string][]handling{}}
		var mu sync.Mutex
		dispositions := map[consumer.Disposition]int{}
		c := assert.Value(consumer.NewPush(x, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) (err error) {
			end := seen.begin(t, d)
			defer func() { end(err) }()
			time.Sleep(time.Second)
			if string(d.Body) == "fails once" && d.Attempt == 1 {
				return errors.New("no such customer")
			}
			return nil
		}, consumer.PushOptions{Concurrency: 4, OnDelivery: func(o consumer.Outcome) {
			mu.Lock()
			defer mu.Unlock()
			dispositions[o.Disposition]++
		}}))(t)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()

		p := assert.Value(producer.New(x, producer.Options{}))(t)
		t.Cleanup(func() { p.Close() })
		stored := map[string]string{} // message ID → endpoint
		send := func(n int, gap time.Duration, body string) {
			for range n {
				r := assert.Value(p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte(body)}))(t)
				stored[r.MessageID] = strings.Split(r.Endpoint, "/")[0]
				time.Sleep(gap)
			}
		}
		send(60, 0, "x")
		time.Sleep(5500 * time.Millisecond)
		brokers["primary"].Disconnect()
		send(300, 200*time.Millisecond, "x")                                                      // 5 a second, of which the consumer handles 4
		acked := map[string]int64{"primary": brokers["primary"].Stats("billing", "orders").Acked} // a restart resets the counts
		brokers["primary"].Restart()
		back := time.Now()
		time.Sleep(2 * time.Minute)
		for _, name := range []string{"primary", "secondary"} {
			if n := seen.from(name, back, back.Add(time.Minute)); n < 15 {
				t.Errorf("%d messages of %s were handled in the minute after the primary's return, want both in turns", n, name)
			}
		}

		assert.That(t, x.Active() == "primary", "sends go to %s, want primary", x.Active())
		// The secondary gets messages from others, and a retry that is due when it was empty for
		// long.
		for _, r := range brokers["secondary"].Send(&tidegate.Message{Topic: "orders", Body: []byte("fails once")}, &tidegate.Message{Topic: "orders", Body: []byte("x")}) {
			stored[r.MessageID] = "secondary"
		}
		send(20, 0, "x")
		time.Sleep(time.Minute)
		stop()
		assert.NoError(t, <-done)

		total, again := map[string]int{}, 0
		for id, endpoint := range stored {
			total[endpoint]++
			calls := seen.calls[id]
			again += len(calls) - 1
			assert.That(t, len(calls) != 0, "message %s of %s was lost", id, endpoint)
			for _, c := range calls {
				assert.That(t, c.endpoint == endpoint, "message %s of %s was delivered by %s", id, endpoint, c.endpoint)
			}
		}
		assert.That(t, total["primary"] >= 80 && total["secondary"] >= 250 && len(seen.calls) == len(stored), "stored %v, %d handled", total, len(seen.calls))
		for name, b := range brokers {
			s := b.Stats("billing", "orders")
			assert.That(t, acked[name]+s.Acked == int64(total[name]) && s.Ready+s.Inflight+s.WaitingRetry+s.DeadLetters == 0,
				"%s: %d acknowledged before, then %+v, want %d acknowledged there", name, acked[name], s, total[name])
		}
		// The leased messages at the death of the primary, and the one that fails once.
		t.Log(fmt.Sprint(again, " deliveries repeated, ", dispositions))
		assert.That(t, again <= 4+2+1, "%d deliveries were repeated", again)
	})
}

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

// Transact with two brokers, of which the primary is away at times. The half message goes to the
// active broker, and the resolution to the broker that has the half message. Each committed message
// is delivered once, by that broker, and each transaction is in the accounts.
func TestTransactOverAFailover(t *testing.T) {
	lost := errors.New("the local transaction failed")
	for _, tt := range []struct {
		name   string
		before bool  // the primary is away before the half message
		during bool  // the primary goes away, or returns, during the local transaction
		local  error // of the local transaction; the checker rolls back if it is set
		from   string
	}{
		{name: "no fault", from: "primary"},
		{name: "away before the half message", before: true, from: "secondary"},
		{name: "away before the resolution", during: true, from: "primary"},
		{name: "back before the resolution", before: true, during: true, from: "secondary"},
		{name: "a failed local transaction", before: true, local: lost},
		{name: "a failed local transaction, away before the resolution", during: true, local: lost},
	} {
		t.Run(tt.name, inBubble(func(t *testing.T) {
			primary, secondary := brokertest.New(t), brokertest.New(t)
			var ends []failover.Endpoint
			for name, b := range map[string]*brokertest.Broker{"primary": primary, "secondary": secondary} {
				b.CreateTopic("orders", settings.Topic{Type: settings.TopicTransaction})
				ends = append(ends, failover.Endpoint{Name: name, Transport: b.Client()})
			}
			slices.SortFunc(ends, func(a, b failover.Endpoint) int { return strings.Compare(a.Name, b.Name) })
			x, err := failover.New(ends, failover.Options{SwitchBack: time.Second})
			assert.Must(t, err)
			t.Cleanup(func() { x.Close() })

			var mu sync.Mutex
			var delivered []string // endpoints
			c := assert.Value(consumer.NewPush(x, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				delivered = append(delivered, strings.Split(d.Endpoint, "/")[0])
				return nil
			}, consumer.PushOptions{OnReceiveFailure: func(consumer.ReceiveFailure) {}}))(t)
			p := assert.Value(producer.New(x, producer.Options{Checker: func(context.Context, transport.TransactionCheck) transport.Resolution {
				if tt.local != nil {
					return transport.Rollback
				}
				return transport.Commit
			}}))(t)
			ctx, stop := context.WithCancel(t.Context())
			var background sync.WaitGroup
			background.Go(func() { assert.NoError(t, c.Run(ctx)) })
			background.Go(func() { assert.NoError(t, p.ServeChecks(ctx, "orders")) })
			time.Sleep(time.Second)

			if tt.before {
				primary.Disconnect()
				time.Sleep(100 * time.Millisecond) // the client has noticed it
			}
			local := 0
			_, err = p.Transact(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")}, func(context.Context, *tidegate.Message) error {
				local++
				switch {
				case tt.during && tt.before:
					primary.Reconnect()
					time.Sleep(30 * time.Second)
				case tt.during:
					primary.Disconnect()
				}
				return tt.local
			})
			assert.That(t, errors.Is(err, tt.local) && local == 1, "Transact: %v after %d local transactions, want %v after one", err, local, tt.local)
			time.Sleep(time.Minute)
			primary.Reconnect()
			time.Sleep(5 * time.Minute) // for the checks
			accounts, err := p.Shutdown(t.Context())
			assert.That(t, err == nil && accounts.Accepted == 1 && accounts.Delivered == 1, "accounts %+v, %v; want one accepted and delivered", accounts, err)
			stop()
			background.Wait()
			var want []string
			if tt.from != "" {
				want = []string{tt.from}
			}
			assert.That(t, slices.Equal(delivered, want), "delivered by %q, want %q", delivered, want)
		}))
	}
}

// A consumer subscribes to lite topics while the secondary broker is unreachable, and then the
// primary one. It gets the messages of each from both, of each lite topic in order, when they are
// back.
func TestLiteTopicsOfBothEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		brokers := map[string]*brokertest.Broker{"primary": brokertest.New(t), "secondary": brokertest.New(t)}
		var ends []failover.Endpoint
		for _, name := range []string{"primary", "secondary"} {
			brokers[name].CreateTopic("sessions", settings.Topic{Type: settings.TopicLite})
			ends = append(ends, failover.Endpoint{Name: name, Transport: brokers[name].Client()})
		}
		x := assert.Value(failover.New(ends, failover.Options{}))(t)
		t.Cleanup(func() { x.Close() })
		send := func(broker string, number int, liteTopics ...string) {
			for _, name := range liteTopics {
				m := &tidegate.Message{ID: fmt.Sprint(broker, name, number), Topic: "sessions", LiteTopic: name, Body: fmt.Append(nil, number)}
				brokers[broker].Send(m)
			}
		}
		var mu sync.Mutex
		handled := map[string]string{} // the endpoint and lite topic → the bodies
		c := assert.Value(consumer.NewPush(x, consumer.Subscription{Group: "agents", Topic: "sessions", Lite: true}, func(_ context.Context, d *tidegate.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			handled[strings.Split(d.Endpoint, "/")[0]+" "+d.LiteTopic] += string(d.Body)
			return nil
		}, consumer.PushOptions{OnReceiveFailure: func(consumer.ReceiveFailure) {}}))(t)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(time.Second)
		for down, name := range map[string]string{"secondary": "a", "primary": "b"} {
			brokers[down].Disconnect()
			time.Sleep(time.Second)
			assert.NoError(t, c.Subscribe(t.Context(), name, transport.LiteStart{}))
			brokers[down].Reconnect()
			time.Sleep(15 * time.Second)
		}
		for _, broker := range []string{"primary", "secondary"} {
			for number := range 3 {
				send(broker, number, "a", "b", "not-subscribed")
			}
		}
		time.Sleep(10 * time.Second)
		stop()
		assert.NoError(t, <-done)
		assert.Equal(t, "the handled messages", fmt.Sprint(handled), "map[primary a:012 primary b:012 secondary a:012 secondary b:012]")
	})
}
