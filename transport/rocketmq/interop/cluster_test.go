package interop

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// onCluster runs a program against a RocketMQ with several brokers and proxies. Programs kill
// processes of it, so they do not run at the same time.
func onCluster(t *testing.T, program func(x *target)) {
	t.Helper()
	if *port == 0 {
		t.Log("-rocketmq with the port of several brokers and proxies starts it")
		return
	}
	x := open(t)
	if o := x.real.Options(); o.Brokers < 2 || o.Proxies < 2 {
		t.Logf("the RocketMQ has %d brokers and %d proxies; 2 of each start it", o.Brokers, o.Proxies)
		return
	}
	program(x)
}

// A ledger has the messages that were sent and received. mu guards it.
type ledger struct {
	mu       sync.Mutex
	accepted map[string]bool // IDs
	received map[string]int  // deliveries by ID
	failed   []error
	resent   int // accepted sends of which an earlier attempt may be stored
	wake     chan struct{}
}

func newLedger() *ledger {
	return &ledger{accepted: map[string]bool{}, received: map[string]int{}, wake: make(chan struct{}, 1)}
}

// note changes the ledger and wakes the waits for it.
func (l *ledger) note(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// await waits until a condition of the ledger holds.
func (l *ledger) await(x *target, what string, holds func() bool) {
	x.t.Helper()
	for {
		l.mu.Lock()
		ok := holds()
		l.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-l.wake:
		case <-x.ctx.Done():
			l.mu.Lock()
			defer l.mu.Unlock()
			x.t.Fatalf("%s: %d accepted, %d received, failed %v", what, len(l.accepted), len(l.received), l.failed)
		}
	}
}

// more waits until n further messages are accepted.
func (l *ledger) more(x *target, what string, n int) {
	x.t.Helper()
	l.mu.Lock()
	want := len(l.accepted) + n
	l.mu.Unlock()
	l.await(x, what, func() bool { return len(l.accepted) >= want })
}

// send sends messages from some senders to a topic, each at most ten times a second, until stop is
// called, which waits for the last responses.
func (l *ledger) send(x *target, p *producer.Producer, topic string, senders int) (stop func()) {
	var all sync.WaitGroup
	stopped := make(chan struct{})
	for i := range senders {
		all.Go(func() {
			for n := 0; backoff.Sleep(x.ctx, 100*time.Millisecond) == nil; n++ {
				select {
				case <-stopped:
					return
				default:
				}
				r, err := p.Send(x.ctx, &tidegate.Message{Topic: topic, Body: fmt.Appendf(nil, "%d/%d", i, n)})
				l.note(func() {
					if err != nil {
						l.failed = append(l.failed, err)
						return
					}
					l.accepted[r.MessageID] = true
				})
			}
		})
	}
	var once sync.Once
	stop = func() {
		once.Do(func() { close(stopped) })
		all.Wait()
	}
	x.t.Cleanup(stop)
	return stop
}

// receive consumes a topic.
func (l *ledger) receive(x *target, sub consumer.Subscription) {
	x.t.Helper()
	c, err := consumer.NewPush(x.client, sub, func(_ context.Context, d *tidegate.Delivery) error {
		l.note(func() { l.received[d.ID]++ })
		return nil
	}, consumer.PushOptions{})
	p := &push{x: x, done: make(chan struct{})}
	p.run(c, err)
}

// settle waits until all accepted messages are received, and checks that no send failed.
func (l *ledger) settle(x *target) {
	x.t.Helper()
	l.await(x, "accepted messages are missing", func() bool {
		for id := range l.accepted {
			if l.received[id] == 0 {
				return false
			}
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	again := 0
	for _, n := range l.received {
		again += n - 1
	}
	x.t.Logf("%d messages accepted and received, %d deliveries again, %d sends that repeat a doubtful one, %d sends failed", len(l.accepted), again, l.resent, len(l.failed))
	for i, err := range l.failed {
		assert.That(x.t, i >= 5, "a send failed: %v", err)
	}
}

// While one of two brokers is killed and starts again, no send fails and no accepted message is
// lost. The proxies keep the broker in their routes for a while, and respond with "connect to …
// failed" for each message that they assign to it.
func TestClusterBrokerRestarts(t *testing.T) {
	onCluster(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("orders", settings.TopicNormal)}
		l := newLedger()
		l.receive(x, sub)
		p := x.producer(producer.Options{OnAttempt: func(a producer.Attempt) {
			if a.MaybeStored {
				l.note(func() { l.resent++ })
			}
		}})
		stop := l.send(x, p, sub.Topic, 16)
		l.more(x, "before the kill", 200)
		assert.Must(t, x.real.Kill(x.ctx, "broker-b"))
		l.more(x, "without broker-b", 500)
		assert.Must(t, x.real.Start(x.ctx, "broker-b"))
		l.more(x, "with broker-b again", 500)
		stop()
		l.settle(x)
	})
}

// Clients of one configuration begin at different proxies and keep their connections. After a proxy
// is killed its clients continue with the other one: no send fails, and no accepted message is
// lost.
func TestClusterProxyRestarts(t *testing.T) {
	onCluster(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("orders", settings.TopicNormal)}
		l := newLedger()
		l.receive(x, sub)
		const clients = 20 // all begin at one of two proxies once in 500 000 runs
		var mu sync.Mutex
		first := map[int]string{} // the address of the first connection of each client
		conns := map[string]int{}
		var stops []func()
		for i := range clients {
			c, err := rocketmq.New(strings.Join(x.real.Endpoints(), ";"), rocketmq.Options{
				RequestTimeout: attemptTimeout,
				Dialer: func(ctx context.Context, address string) (net.Conn, error) {
					conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
					mu.Lock()
					defer mu.Unlock()
					if first[i] == "" {
						first[i] = address
					}
					if err == nil {
						conns[address]++
					}
					return conn, err
				},
			})
			assert.Must(t, err)
			t.Cleanup(func() { c.Close() })
			p, err := producer.New(c, producer.Options{AttemptTimeout: attemptTimeout})
			assert.Must(t, err)
			t.Cleanup(func() { p.Close() })
			stops = append(stops, l.send(x, p, sub.Topic, 1))
		}
		l.more(x, "before the kill", 20*clients)
		mu.Lock()
		begin := map[string]int{}
		for _, address := range first {
			begin[address]++
		}
		t.Logf("the clients began at %v, with %v connections", begin, conns)
		assert.That(t, len(begin) >= 2, "%d clients began at %v, want both proxies", clients, begin)
		n := conns[x.real.Endpoints()[0]] + conns[x.real.Endpoints()[1]]
		assert.That(t, n <= 3*clients, "%d clients have made %d connections while both proxies run", clients, n)
		mu.Unlock()
		assert.Must(t, x.real.Kill(x.ctx, "proxy-1"))
		l.more(x, "without proxy-1", 20*clients)
		assert.Must(t, x.real.Start(x.ctx, "proxy-1"))
		l.more(x, "with proxy-1 again", 20*clients)
		for _, stop := range stops {
			stop()
		}
		l.settle(x)
	})
}
