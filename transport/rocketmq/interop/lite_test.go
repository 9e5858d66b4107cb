package interop

import (
	"context"
	"errors"
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
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
	"github.com/tidegate/tidegate/transport/rocketmq/interop/runner"
)

// A lite is a parent topic, a group of its lite topics and a producer.
type lite struct {
	*target
	parent, agents string
	p              *producer.Producer
}

// onLite runs a program against a server with lite topics. attempts are those of the group; a
// RocketMQ gets its further attributes too.
func onLite(t *testing.T, attempts int, attributes map[string]string, program func(x *lite)) {
	t.Helper()
	on(t, func(x *target) {
		if !x.server.LiteTopics && x.broker == nil {
			t.Log("rocketmq up --version 5.5.0 --cluster --broker enableLmq=true --broker enableMultiDispatch=true starts it")
			return
		}
		program(x.lite(attempts, attributes))
	})
}

func (x *target) lite(attempts int, attributes map[string]string) *lite {
	x.t.Helper()
	l := &lite{target: x, parent: x.topic("sessions", settings.TopicLite), agents: x.name("agents"), p: x.producer(producer.Options{})}
	if x.real != nil {
		g := runner.Group{FIFO: true, MaxRetries: attempts - 1, Retry: []time.Duration{time.Second}, LiteTopic: l.parent, Attributes: attributes}
		assert.Must(x.t, x.real.Group(x.ctx, l.agents, g))
		return l
	}
	g := settings.Group{
		FIFO: true, MaxAttempts: attempts, Retry: backoff.Steps{time.Second}, FIFORetryInterval: settings.Duration(time.Second),
		Lite: settings.LiteGroup{Topic: l.parent, Exclusive: attributes["lite.sub.model"] == "Exclusive"},
	}
	if attributes["lite.sub.client.quota"] != "" {
		g.Lite.MaxTopics = 3
	}
	assert.Must(x.t, x.putLite(l.agents, g))
	return l
}

func (x *target) putLite(name string, g settings.Group) error {
	_, err := x.broker.PutGroup(x.ctx, name, g)
	return err
}

func (x *lite) consumer(id string) transport.LiteConsumer {
	return transport.LiteConsumer{Group: x.agents, Topic: x.parent, ID: id}
}

// change changes the lite topics of a consumer.
func (x *lite) change(id string, a transport.LiteAction, start transport.LiteStart, names ...string) error {
	return x.client.SyncLite(x.ctx, transport.LiteSync{LiteConsumer: x.consumer(id), Action: a, Topics: names, Start: start})
}

// post sends messages. Their bodies are the lite topic, of one letter, and a number.
func (x *lite) post(bodies ...string) {
	x.t.Helper()
	for _, b := range bodies {
		x.send(x.p, &tidegate.Message{Topic: x.parent, LiteTopic: b[:1], Body: []byte(b), Properties: map[string]string{"k": "v"}})
	}
}

// poll receives once.
func (x *lite) poll(id string) []*tidegate.Delivery {
	x.t.Helper()
	return assert.Value(x.client.Receive(x.ctx, transport.ReceiveRequest{
		Group: x.agents, Topic: x.parent, Queue: transport.AnyQueue, Push: true, Max: 16,
		InvisibleDuration: 10 * time.Second, Wait: 5 * time.Second, LiteConsumer: id,
	}))(x.t)
}

// settle acknowledges deliveries.
func (x *lite) settle(ds ...*tidegate.Delivery) {
	x.t.Helper()
	for _, err := range x.client.Ack(x.ctx, ds) {
		assert.NoError(x.t, err)
	}
}

// want receives and acknowledges messages until it has as many as the bodies, and one receive more
// returns nothing. The bodies of each lite topic are in order.
func (x *lite) want(id, what string, bodies ...string) {
	x.t.Helper()
	got := map[string][]string{}
	for n := 0; ; {
		ds := x.poll(id)
		if len(ds) == 0 && n >= len(bodies) {
			break
		}
		for _, d := range ds {
			n++
			got[d.LiteTopic] = append(got[d.LiteTopic], string(d.Body))
			assert.That(x.t, d.Topic == x.parent && d.MessageGroup == "" && len(d.Properties) == 1 && d.Properties["k"] == "v", "%s: %+v", what, d)
		}
		x.settle(ds...)
	}
	wanted := map[string][]string{}
	for _, b := range bodies {
		wanted[b[:1]] = append(wanted[b[:1]], b)
	}
	assert.That(x.t, fmt.Sprint(got) == fmt.Sprint(wanted), "%s: received %v, want %v", what, got, wanted)
}

// A consumer receives the messages of its lite topics in order, while the set changes. A failed
// message is retried before the later ones of its lite topic. The position of the group outlasts a
// subscription.
func TestLite(t *testing.T) {
	onLite(t, 1000, nil, func(x *lite) {
		assert.Must(t, x.change("1", transport.LiteSet, transport.LiteStart{}, "a", "b"))
		x.post("a0", "b0", "c0", "a1", "a2")
		x.want("1", "two of three lite topics", "a0", "a1", "a2", "b0")

		x.post("a3", "a4")
		failed, begin := x.poll("1"), time.Now()
		assert.MustThat(t, len(failed) > 0 && string(failed[0].Body) == "a3" && failed[0].Attempt == 1, "received %v, want a3 first", failed)
		_, err := x.client.Settle(x.ctx, failed[0], transport.Verdict{Kind: transport.Retry, Delay: 2 * time.Second})
		assert.Must(t, err)
		var again []*tidegate.Delivery
		for len(again) == 0 {
			again = x.poll("1")
		}
		after := time.Since(begin)
		assert.That(t, string(again[0].Body) == "a3" && again[0].Attempt == 2 && after >= 2*time.Second, "after %v received %q in attempt %d, want a3 again", after, again[0].Body, again[0].Attempt)
		x.settle(again...)
		if len(again) == 1 { // RocketMQ delivers the next ones together with the failed one
			x.want("1", "behind the failed message", "a4")
		}

		x.want("1", "nothing more")
		assert.Must(t, x.change("1", transport.LiteRemove, transport.LiteStart{}, "a"))
		x.post("a5", "b1")
		x.want("1", "without a", "b1")
		assert.Must(t, x.change("1", transport.LiteAdd, transport.LiteStart{}, "a"))
		assert.Must(t, x.change("1", transport.LiteAdd, transport.LiteStart{Newest: true}, "c"))
		x.post("c1")
		x.want("1", "with a again, and c from its end", "a5", "c1")
		assert.Must(t, x.change("1", transport.LiteSet, transport.LiteStart{Oldest: true}, "d", "b"))
		x.post("a6", "d0", "b2")
		x.want("1", "after another set", "b2", "d0")
	})
}

// The starts of a subscription that RocketMQ ignores are errors.
func TestLiteStarts(t *testing.T) {
	onLite(t, 1000, nil, func(x *lite) {
		x.post("a0", "b0", "b1", "b2", "c0", "c1")
		for name, start := range map[string]transport.LiteStart{"a": {Time: time.Now().Add(-time.Minute)}, "b": {Last: 2}} {
			err := x.change("1", transport.LiteAdd, start, name)
			assert.That(t, (err == nil) == (x.real == nil) && (err == nil || hasCode(err, tidegate.CodeNotImplemented)), "%+v: %v", start, err)
		}
		want := []string{"c1"}
		if x.real == nil {
			want = []string{"a0", "b1", "b2", "c1"}
		}
		assert.Must(t, x.change("1", transport.LiteAdd, transport.LiteStart{Offset: 1}, "c"))
		x.want("1", "from the starts", want...)
	})
}

func hasCode(err error, code tidegate.Code) bool {
	e, ok := errors.AsType[*tidegate.Error](err)
	return ok && e.Code == code
}

// A message of a lite topic becomes a dead letter on a tidegate broker. RocketMQ stores the dead letter
// in the lite topic too: the SDK asks for none, and does not return those that the server makes after
// the last attempt. Other lite topics go on.
func TestLiteDeadLetter(t *testing.T) {
	onLite(t, 2, nil, func(x *lite) {
		assert.Must(t, x.change("1", transport.LiteAdd, transport.LiteStart{}, "a"))
		x.post("a0")
		failed := x.poll("1")
		_, err := x.client.Settle(x.ctx, failed[0], transport.Verdict{Kind: transport.DeadLetter})
		dead := consumer.Subscription{Group: x.group("letters", false, 100), Topic: tidegate.DeadLetterTopic(x.agents)}
		if x.real == nil {
			assert.Must(t, err)
			letter := x.target.take(dead, 1)[0]
			assert.That(t, letter.ID == failed[0].ID && letter.LiteTopic == "a", "the dead letter is %+v", letter)
			x.post("a1")
			x.want("1", "behind the dead letter", "a1")
			return
		}
		assert.That(t, hasCode(err, tidegate.CodeNotImplemented), "a dead letter of a lite topic: %v", err)
		letters, deliveries := x.simple(dead), len(failed)
		for found := false; !found; {
			for _, d := range failed {
				_, err := x.client.Settle(x.ctx, d, transport.Verdict{Kind: transport.Retry, Delay: time.Second})
				assert.NoError(t, err)
			}
			failed = x.poll("1")
			deliveries += len(failed)
			ds, _ := letters.Receive(x.ctx, 16) // the topic exists from the first dead letter on
			for _, d := range ds {
				found = found || string(d.Body) == "a0" && d.LiteTopic == "a"
			}
			assert.MustThat(t, x.ctx.Err() == nil, "the message is not in the dead letter topic after %d deliveries", deliveries)
		}
		deliveries += len(x.poll("1")) // of the dead letter, which is in the lite topic now
		assert.That(t, deliveries == 2, "delivered %d times, want 2 attempts and no dead letter", deliveries)
		assert.Must(t, x.change("1", transport.LiteSet, transport.LiteStart{}, "b"))
		x.post("b0")
		x.want("1", "another lite topic", "b0")
	})
}

// In an exclusive group the newer subscription ends the older one, which hears of it.
func TestLiteExclusive(t *testing.T) {
	onLite(t, 1000, map[string]string{"lite.sub.model": "Exclusive"}, func(x *lite) {
		ended := make(chan string, 10)
		go x.client.ServeLite(x.ctx, x.consumer("1"), func(name string) { ended <- name })
		assert.Must(t, x.change("1", transport.LiteSet, transport.LiteStart{}, "a", "b"))
		assert.Must(t, x.change("2", transport.LiteSet, transport.LiteStart{}, "a"))
		select {
		case name := <-ended:
			assert.Equal(t, "the lite topic that ended", name, "a")
		case <-x.ctx.Done():
			t.Fatal("no end was reported")
		}
		x.post("a0", "b0")
		x.want("1", "the older consumer", "b0")
		x.want("2", "the newer consumer", "a0")
	})
}

// Limits and names are errors with a remedy, and change nothing. RocketMQ leaves the limit of a consumer
// to its clients.
func TestLiteLimits(t *testing.T) {
	onLite(t, 1000, map[string]string{"lite.sub.client.quota": "3"}, func(x *lite) {
		assert.Must(t, x.change("1", transport.LiteSet, transport.LiteStart{}, "a", "b", "c"))
		err := x.change("1", transport.LiteAdd, transport.LiteStart{}, "d")
		assert.That(t, hasCode(err, protocol.CodeLiteSubscriptionQuotaExceeded) && tidegate.Classify(err) == tidegate.ClassPermanent, "a fourth lite topic: %v", err)
		assert.NoError(t, x.change("2", transport.LiteSet, transport.LiteStart{}, "d"))
		for _, name := range []string{" ", strings.Repeat("x", 65), "a!", "ü", "a$b"} {
			for _, a := range []transport.LiteAction{transport.LiteAdd, transport.LiteSet} {
				err := x.change("2", a, transport.LiteStart{}, "d", name)
				assert.That(t, hasCode(err, protocol.CodeIllegalLiteTopic), "the name %q: %v", name, err)
			}
		}
		x.post("a0", "d0")
		x.want("1", "the first consumer", "a0")
		x.want("2", "the second consumer", "d0")
	})
}

// A group that is not bound to the parent, or to another one, cannot receive from lite topics.
// RocketMQ binds a group when it is created, and a tidegate broker with the first SyncLite too.
func TestLiteNeedsItsGroup(t *testing.T) {
	onLite(t, 1000, nil, func(x *lite) {
		other := *x
		other.parent = x.topic("others", settings.TopicLite)
		err := other.change("1", transport.LiteAdd, transport.LiteStart{}, "a")
		assert.That(t, hasCode(err, tidegate.CodeBadRequest) || x.real == nil && tidegate.Classify(err) == tidegate.ClassPermanent, "another parent: %v", err)
		other.agents = x.group("unbound", true, 16)
		err = other.change("1", transport.LiteAdd, transport.LiteStart{}, "a")
		assert.That(t, tidegate.Classify(err) == tidegate.ClassPermanent && (x.real == nil || hasCode(err, tidegate.CodeBadRequest) && strings.Contains(err.Error(), "lite.bind.topic")), "a group that is not bound: %v", err)
		s, err := x.client.ConsumerSettings(x.ctx, x.agents, x.parent)
		assert.That(t, err == nil && s.FIFO && s.MaxAttempts == 1000, "settings %+v, %v", s, err)
	})
}

// Without lite topics the server or the SDK rejects them with the version that has them.
func TestWithoutLiteTopics(t *testing.T) {
	on(t, func(x *target) {
		if x.real == nil || x.server.LiteTopics || x.real.Options().Cluster {
			t.Log("a RocketMQ before 5.5.0, or one with the broker in the process of the proxy, starts it")
			return
		}
		remedy, kind := "5.5.0", settings.TopicNormal
		if x.real.Options().Version >= "5.5.0" {
			remedy, kind = "mode cluster", settings.TopicLite
		}
		parent, group, bound := x.topic("sessions", kind), x.name("agents"), ""
		if kind == settings.TopicLite {
			bound = parent // an older broker does not know the attribute
		}
		assert.Must(t, x.createLiteGroup(x.ctx, group, bound, transport.ConsumerSettings{FIFO: true, MaxAttempts: 3, Retry: backoff.Steps{time.Second}}))
		err := x.client.SyncLite(x.ctx, transport.LiteSync{LiteConsumer: transport.LiteConsumer{Group: group, Topic: parent, ID: "1"}, Action: transport.LiteAdd, Topics: []string{"a"}})
		assert.That(t, hasCode(err, tidegate.CodeNotImplemented) && strings.Contains(err.Error(), remedy), "SyncLite: %v, want %q", err, remedy)
		if kind == settings.TopicNormal {
			_, err = x.producer(producer.Options{}).Send(x.ctx, &tidegate.Message{Topic: parent, LiteTopic: "a", Body: []byte("x")})
			assert.That(t, hasCode(err, protocol.CodeMessagePropertyConflict) && strings.Contains(err.Error(), remedy), "a send: %v, want %q", err, remedy)
		}
	})
}

// RocketMQ's limits of a broker are errors with the name of the setting. Other programs with lite
// topics do not run meanwhile, because the limits are those of the broker.
func TestLiteLimitsOfABroker(t *testing.T) {
	if *port == 0 {
		t.Log("-rocketmq with the port of a RocketMQ 5.5.0 starts it")
		return
	}
	x := open(t)
	if !x.server.LiteTopics {
		t.Log("rocketmq up --version 5.5.0 --cluster --broker enableLmq=true --broker enableMultiDispatch=true starts it")
		return
	}
	l := x.lite(1000, nil)
	defer func() {
		assert.NoError(t, x.real.Configure(x.ctx, map[string]string{"enableLmqQuota": "false", "maxLiteSubscriptionCount": "100000", "maxLmqConsumeQueueNum": "20000"}))
	}()
	assert.Must(t, l.change("1", transport.LiteAdd, transport.LiteStart{}, "a"))
	l.post("a0")
	assert.Must(t, x.real.Configure(x.ctx, map[string]string{"enableLmqQuota": "true", "maxLiteSubscriptionCount": "1", "maxLmqConsumeQueueNum": "1"}))
	_, err := l.p.Send(x.ctx, &tidegate.Message{Topic: l.parent, LiteTopic: "b", Body: []byte("x")})
	assert.That(t, hasCode(err, protocol.CodeLiteTopicQuotaExceeded) && strings.Contains(err.Error(), "maxLmqConsumeQueueNum"), "a further lite topic: %v", err)
	err = l.change("2", transport.LiteAdd, transport.LiteStart{}, "a")
	assert.That(t, hasCode(err, protocol.CodeLiteSubscriptionQuotaExceeded) && strings.Contains(err.Error(), "maxLiteSubscriptionCount"), "a further subscription: %v", err)
	l.post("a1")
	l.want("1", "the first consumer", "a0", "a1")
}

// The lite topics of a consumer come back with its connection, and do not wait for their repetition.
func TestLiteAfterAReconnect(t *testing.T) {
	onLite(t, 1000, nil, func(x *lite) {
		if x.broker != nil {
			t.Log("-rocketmq with the port of a RocketMQ 5.5.0 starts it")
			return
		}
		var lines connections
		x.client = assert.Value(rocketmq.New(x.real.Endpoints()[0], rocketmq.Options{RequestTimeout: attemptTimeout, Dialer: lines.dial}))(t)
		defer x.client.Close()
		assert.Must(t, x.change("1", transport.LiteAdd, transport.LiteStart{}, "a"))
		x.post("a0")
		x.want("1", "before", "a0")
		lines.cut()
		x.post("a1")
		begin := time.Now()
		for n := 0; n == 0; {
			ds, err := x.client.Receive(x.ctx, transport.ReceiveRequest{
				Group: x.agents, Topic: x.parent, Queue: transport.AnyQueue, Max: 16, InvisibleDuration: 10 * time.Second, Wait: 5 * time.Second, LiteConsumer: "1",
			})
			assert.MustThat(t, x.ctx.Err() == nil, "no message after the reconnect: %v", err)
			if n = len(ds); n > 0 {
				x.settle(ds...)
			}
		}
		t.Logf("received %v after the connection was lost", time.Since(begin).Round(time.Second/10))
	})
}

// connections are the connections of a client, which a test can cut.
type connections struct {
	mu   sync.Mutex
	open []net.Conn // guarded by mu
}

func (c *connections) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open = append(c.open, conn)
	}
	return conn, err
}

func (c *connections) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.open {
		conn.Close()
	}
}
