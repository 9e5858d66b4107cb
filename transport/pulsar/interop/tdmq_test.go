package interop

import (
	"errors"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/pulsar"
	"github.com/tidegate/tidegate/transport/pulsar/internal/standalone"
)

// The tests of this file observe the rules of "TDMQ for Pulsar: retry and dead letters" on Apache
// Pulsar with Apache's Go client, and with this transport in the same subscription. The last column
// of broker/CONFORMANCE.md has their results.

// tick is how much earlier than its delivery time a server delivers a message:
// delayedDeliveryTickTimeMillis.
const tick = time.Second

// subscribe opens a consumer of the client for the group billing, from the oldest message on.
func subscribe(t testing.TB, c client.Client, o client.ConsumerOptions) client.Consumer {
	t.Helper()
	if o.SubscriptionName == "" {
		o.SubscriptionName = "billing"
	}
	o.SubscriptionInitialPosition = client.SubscriptionPositionEarliest
	k := assert.Value(c.Subscribe(o))(t)
	t.Cleanup(k.Close)
	return k
}

// next receives a message.
func next(t testing.TB, k client.Consumer) client.Message {
	t.Helper()
	select {
	case m := <-k.Chan():
		return m.Message
	case <-time.After(soon):
		t.Fatalf("the client received nothing for %v", soon)
		return nil
	}
}

// none checks that a consumer of the client gets no message for a time.
func none(t testing.TB, k client.Consumer, d time.Duration) {
	t.Helper()
	select {
	case m := <-k.Chan():
		t.Errorf("received %v with %v, want nothing", m.ID(), m.Properties())
	case <-time.After(d):
	}
}

// publish sends messages with the client in one entry.
func publish(t testing.TB, c client.Client, topic string, bodies ...string) {
	t.Helper()
	p := assert.Value(c.CreateProducer(client.ProducerOptions{Topic: topic, DisableBatching: len(bodies) == 1, BatchingMaxPublishDelay: time.Minute}))(t)
	defer p.Close()
	for _, body := range bodies {
		p.SendAsync(t.Context(), &client.ProducerMessage{Payload: []byte(body), Key: "k", Properties: map[string]string{"p": "v"}},
			func(_ client.MessageID, _ *client.ProducerMessage, err error) { assert.NoError(t, err) })
	}
	assert.Must(t, p.FlushWithCtx(t.Context()))
}

// subscriptions returns the statistics of a topic's subscriptions; nil if there is no topic.
func subscriptions(t testing.TB, topic string) map[string]standalone.SubscriptionStats {
	t.Helper()
	_, a := server(t)
	s, err := a.TopicStats(t.Context(), topic)
	if status, ok := errors.AsType[*standalone.StatusError](err); ok && status.Status == http.StatusNotFound {
		return nil
	}
	assert.Must(t, err)
	return s.Subscriptions
}

// awaitBacklog waits until the group has so many messages in a topic that are not acknowledged.
func awaitBacklog(t testing.TB, topic string, want int64) {
	t.Helper()
	for begin := time.Now(); subscriptions(t, topic)["billing"].Backlog != want; wait(t, 50*time.Millisecond) {
		assert.MustThat(t, time.Since(begin) < soon, "the statistics are %+v, want a backlog of %d", subscriptions(t, topic), want)
	}
}

// wantProperties checks all properties of a message.
func wantProperties(t testing.TB, m client.Message, want map[string]string) {
	t.Helper()
	assert.That(t, maps.Equal(m.Properties(), want), "the properties are %v, want %v", m.Properties(), want)
}

// ReconsumeLater acknowledges the message and sends a copy to the retry topic, to which the consumer
// has subscribed, and after the maximum to the dead letter topic, to which no one has. Servers delay
// no messages of the modes Exclusive and Failover.
func TestClientReconsumesLater(t *testing.T) {
	for _, c := range []struct {
		name    string
		mode    client.SubscriptionType
		delay   time.Duration
		delayed bool
	}{
		{"Shared", client.Shared, 4 * time.Second, true}, {"Key_Shared", client.KeyShared, 4 * time.Second, true},
		{"Failover", client.Failover, 10 * time.Minute, false}, {"Exclusive", client.Exclusive, 10 * time.Minute, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, _ := server(t)
			topic := full("public/default", "reconsume-"+c.name+"-"+unique())
			native := bare(t, s)
			k := subscribe(t, native, client.ConsumerOptions{Topic: topic, Type: c.mode, RetryEnable: true, DLQ: &client.DLQPolicy{MaxDeliveries: 2}})
			retry, letters := topic+"-billing-RETRY", topic+"-billing-DLQ"
			got := subscriptions(t, retry)
			assert.That(t, got["billing"].Consumers == 1, "the retry topic has %+v", got)
			assert.That(t, subscriptions(t, letters) == nil, "the dead letter topic exists before the first dead letter")
			publish(t, native, topic, "x")
			m := next(t, k)
			origin := m.ID().String()
			properties := map[string]string{
				"p": "v", "REAL_TOPIC": topic, "ORIGIN_MESSAGE_ID": origin, "ORIGIN_MESSAGE_IDY_TIME": origin, "DELAY_TIME": strconv.FormatInt(c.delay.Milliseconds(), 10),
			}
			for times := 1; times <= 2; times++ {
				begin := time.Now()
				k.ReconsumeLater(m, c.delay)
				if times == 1 {
					awaitBacklog(t, topic, 0)
				}
				m = next(t, k)
				took := time.Since(begin)
				t.Logf("retry %d: %v after %v of %v", times, m.ID(), took, c.delay)
				assert.That(t, m.Topic() == retry && m.Key() == "k" && string(m.Payload()) == "x" && m.ID().String() != origin && m.RedeliveryCount() == 0,
					"received %v of %s in redelivery %d", m.ID(), m.Topic(), m.RedeliveryCount())
				assert.That(t, (took >= c.delay-tick) == c.delayed, "retry %d came after %v of %v", times, took, c.delay)
				properties["RECONSUMETIMES"] = strconv.Itoa(times)
				wantProperties(t, m, properties)
			}
			k.ReconsumeLater(m, c.delay)
			awaitBacklog(t, retry, 0)
			got = subscriptions(t, letters)
			assert.That(t, len(got) == 0, "the dead letter topic has %+v, want no subscription", got)
			none(t, k, 2*time.Second)
			letter := next(t, subscribe(t, native, client.ConsumerOptions{Topic: letters, SubscriptionName: "manual"}))
			t.Logf("dead letter: %v", letter.ID())
			properties["RECONSUMETIMES"] = "3"
			wantProperties(t, letter, properties)
		})
	}
}

// The client has no bounds for the delay of a retry. This transport has those of the TDMQ document.
func TestClientBoundsNoDelay(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := topicOf(t, "delays")
	native := bare(t, s)
	k := subscribe(t, native, client.ConsumerOptions{Topic: full("public/default", topic), Type: client.Shared, RetryEnable: true})
	retry := full("public/default", topic) + "-billing-RETRY"
	publish(t, native, full("public/default", topic), "x")
	k.ReconsumeLater(next(t, k), 100*time.Millisecond)
	k.ReconsumeLater(next(t, k), 864_001*time.Second)
	for begin := time.Now(); subscriptions(t, retry)["billing"].Delayed != 1; wait(t, 50*time.Millisecond) {
		assert.MustThat(t, time.Since(begin) < soon, "the statistics are %+v, want a delayed message", subscriptions(t, retry))
	}
	k.Close()
	c := connect(t, s, pulsar.Options{})
	publish(t, native, full("public/default", topic), "x")
	d := receive(t, c, request(topic))
	for _, delay := range []time.Duration{100 * time.Millisecond, 864_001 * time.Second} {
		_, err := c.Settle(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Delay: delay})
		assert.That(t, codeOf(err) == tidegate.CodeBadRequest, "a delay of %v: %v", delay, err)
	}
}

// Without other settings a message is retried 16 times, also if this transport has the last attempt.
func TestClientsDefaultMaximum(t *testing.T) {
	for _, last := range []string{"client", "transport"} {
		t.Run(last, func(t *testing.T) {
			t.Parallel()
			s, _ := server(t)
			topic := topicOf(t, "maximum-"+last)
			native := bare(t, s)
			k := subscribe(t, native, client.ConsumerOptions{Topic: full("public/default", topic), Type: client.Shared, RetryEnable: true})
			publish(t, native, full("public/default", topic), "x")
			var m client.Message
			for attempt := 1; attempt <= 16; attempt++ {
				m = next(t, k)
				k.ReconsumeLater(m, 0)
			}
			if last == "client" {
				m = next(t, k)
				assert.Equal(t, "RECONSUMETIMES of the last retry", m.Properties()["RECONSUMETIMES"], "16")
				k.ReconsumeLater(m, 0)
			} else {
				next(t, k)
				awaitBacklog(t, full("public/default", topic)+"-billing-RETRY", 1) // the client does not report when it has acknowledged
				k.Close()
				c := connect(t, s, pulsar.Options{})
				d := receive(t, c, request(topic))
				assert.Equal(t, "attempt", d.Attempt, 17)
				_, err := c.Settle(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic})
				assert.Must(t, err)
			}
			letter := next(t, subscribe(t, native, client.ConsumerOptions{Topic: full("public/default", topic) + "-billing-DLQ", SubscriptionName: "manual"}))
			assert.Equal(t, "RECONSUMETIMES of the dead letter", letter.Properties()["RECONSUMETIMES"], "17")
		})
	}
}

// The client uses the names of version 2.9.2, and those of version 2.7.2 if partitioned topics with
// these names exist. Others are given as its DLQPolicy.
func TestClientsRetryTopicNames(t *testing.T) {
	t.Parallel()
	s, a := server(t)
	ns := namespace(t, "names")
	native := bare(t, s)
	for _, c := range []struct {
		name, topic, group string
		policy             *client.DLQPolicy
		existing           bool
		want               string
	}{
		{"version 2.9.2", "topic1", "sub1", nil, false, "topic1-sub1-RETRY"},
		{"version 2.7.2 in topics that exist", "topic2", "sub2", nil, true, "sub2-RETRY"},
		{"version 2.6.1", "topic3", "sub3", &client.DLQPolicy{MaxDeliveries: 16, RetryLetterTopic: full(ns, "sub3-retry"), DeadLetterTopic: full(ns, "sub3-dlq")}, false, "sub3-retry"},
	} {
		if c.existing {
			assert.Must(t, errors.Join(a.CreatePartitionedTopic(t.Context(), full(ns, c.group+"-RETRY"), 1), a.CreatePartitionedTopic(t.Context(), full(ns, c.group+"-DLQ"), 1)))
		}
		subscribe(t, native, client.ConsumerOptions{Topic: full(ns, c.topic), SubscriptionName: c.group, Type: client.Shared, RetryEnable: true, DLQ: c.policy})
		got := subscriptions(t, full(ns, c.want))
		assert.That(t, got[c.group].Consumers > 0, "%s: the topic %s has %+v", c.name, c.want, got)
	}
}

// Retry topics are off by default, and a call of ReconsumeLater then panics. Other failures do not
// send to a retry topic.
func TestClientsRetryTopicIsOffByDefault(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := full("public/default", "off-"+unique())
	native := bare(t, s)
	k := subscribe(t, native, client.ConsumerOptions{Topic: topic, Type: client.Shared})
	publish(t, native, topic, "x")
	m := next(t, k)
	func() {
		defer func() { assert.That(t, recover() != nil, "ReconsumeLater does not panic") }()
		k.ReconsumeLater(m, time.Second)
	}()
	assert.That(t, subscriptions(t, topic+"-billing-RETRY") == nil, "there is a retry topic")
	k.Close()
	k = subscribe(t, native, client.ConsumerOptions{Topic: topic, Type: client.Shared, RetryEnable: true, NackRedeliveryDelay: 300 * time.Millisecond})
	for i := range 3 {
		m = next(t, k)
		assert.That(t, m.Topic() == topic && int(m.RedeliveryCount()) == i && len(m.Properties()) == 1, "redelivered %v", m.Properties())
		k.Nack(m)
	}
	assert.Equal(t, "backlog of the retry topic", subscriptions(t, topic+"-billing-RETRY")["billing"].Backlog, 0)
}

// A negative acknowledgement redelivers the message itself, which the server keeps as not
// acknowledged, without a maximum. Its delay ends with the consumer. The server counts the
// redeliveries, until the last consumer is gone.
func TestClientsNegativeAck(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := full("public/default", "nack-"+unique())
	native := bare(t, s)
	var first string
	receive := func(k client.Consumer, redeliveries int) client.Message {
		t.Helper()
		m := next(t, k)
		if first == "" {
			first = m.ID().String()
		}
		got := subscriptions(t, topic)["billing"]
		assert.MustThat(t, m.ID().String() == first && int(m.RedeliveryCount()) == redeliveries && got.Backlog == 1,
			"received %v in redelivery %d, want %s in %d; the statistics are %+v", m.ID(), m.RedeliveryCount(), first, redeliveries, got)
		return m
	}
	open := func(delay time.Duration) client.Consumer {
		return subscribe(t, native, client.ConsumerOptions{Topic: topic, Type: client.Shared, NackRedeliveryDelay: delay})
	}
	const delay, precision = 3 * time.Second, 256 * time.Millisecond // NackPrecisionBit
	k := open(delay)
	publish(t, native, topic, "x")
	m := receive(k, 0)
	begin := time.Now()
	k.Nack(m)
	got := subscriptions(t, topic)["billing"]
	assert.That(t, got.Backlog == 1 && got.Unacked == 1, "while the message waits, the statistics are %+v", got)
	receive(k, 1)
	took := time.Since(begin)
	assert.That(t, took >= delay-precision, "the message came again after %v", took)
	t.Logf("it came again after %v of %v", took, delay)
	k.Close()
	k = open(10 * time.Minute)
	k.Nack(receive(k, 0))
	begin = time.Now()
	k.Close()
	k = open(100 * time.Millisecond)
	for i := range 30 { // more than the 16 retries of ReconsumeLater
		m = receive(k, i)
		if i == 0 {
			t.Logf("another consumer got it after %v of 10m", time.Since(begin))
		}
		k.Nack(m)
	}
	assert.That(t, subscriptions(t, topic+"-billing-DLQ") == nil, "there is a dead letter topic")
}

// With a maximum of n the client delivers the message n times, and sends it to the dead letter topic
// at the next delivery. A dead letter of this transport follows the last delivery at once.
func TestClientsNegativeAckMaximum(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := full("public/default", "nack-maximum-"+unique())
	native := bare(t, s)
	k := subscribe(t, native, client.ConsumerOptions{
		Topic: topic, Type: client.Shared, NackRedeliveryDelay: 300 * time.Millisecond, DLQ: &client.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: topic + "-billing-DLQ"},
	})
	publish(t, native, topic, "x")
	var origin string
	for i := range 2 {
		m := next(t, k)
		origin = m.ID().String()
		assert.Equal(t, "redeliveries", int(m.RedeliveryCount()), i)
		k.Nack(m)
	}
	awaitBacklog(t, topic, 0)
	none(t, k, time.Second)
	letter := next(t, subscribe(t, native, client.ConsumerOptions{Topic: topic + "-billing-DLQ", SubscriptionName: "manual"}))
	wantProperties(t, letter, map[string]string{"p": "v", "REAL_TOPIC": topic, "ORIGIN_MESSAGE_ID": origin, "ORIGIN_MESSAGE_IDY_TIME": origin})
}

// The levels of this transport, which Apache's clients lack: by the number of the attempt, or one of
// the caller's choice.
func TestLevelsOfRetries(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := topicOf(t, "levels")
	for _, c := range []struct {
		name   string
		levels []time.Duration
		level  int // 0: by the number of the attempt
		want   []time.Duration
	}{
		{"MESSAGE_DELAYLEVEL", nil, 0, []time.Duration{time.Second, 5 * time.Second}},
		{"level 3", nil, 3, []time.Duration{10 * time.Second}},
		{"levels of the user", []time.Duration{3 * time.Second, 2 * time.Second}, 2, []time.Duration{2 * time.Second}},
	} {
		own := connect(t, s, pulsar.Options{Levels: c.levels})
		assert.Must(t, send(t.Context(), own, message(topic, 1)))
		d := receive(t, own, request(topic))
		for i, want := range c.want {
			begin := time.Now()
			_, err := own.Settle(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Level: c.level})
			assert.Must(t, err)
			d = receive(t, own, request(topic))
			took := time.Since(begin)
			t.Logf("%s: attempt %d came after %v of %v", c.name, d.Attempt, took, want)
			assert.That(t, d.Attempt == i+2 && took >= want-2*time.Millisecond, "%s: attempt %d came after %v, want attempt %d after %v", c.name, d.Attempt, took, i+2, want)
		}
		assert.Must(t, own.Ack(t.Context(), []*tidegate.Delivery{d})[0])
		assert.NoError(t, own.Close())
	}
}

// A consumer needs the permission to produce. Without it the client neither sends the copy nor
// reports that, and its second call blocks; this transport returns an error. The message is not
// acknowledged.
func TestRetriesNeedThePermissionToProduce(t *testing.T) {
	t.Parallel()
	s := start(t, standalone.Options{SuperUsers: []string{"admin"}})
	a := s.Admin()
	topic := full("public/default", "orders")
	assert.Must(t, errors.Join(
		a.CreateTopic(t.Context(), topic), a.CreateSubscription(t.Context(), topic, "billing"), a.CreateSubscription(t.Context(), topic, "shipping"),
		a.GrantPermission(t.Context(), "public/default", "consumer", "consume"),
	))
	token := func(role string) string { return assert.Value(s.Token(role, time.Now().Add(time.Hour)))(t) }
	as := func(role string) client.Client {
		c := assert.Value(client.NewClient(client.ClientOptions{URL: s.URL(), Logger: log.DefaultNopLogger(), Authentication: client.NewAuthenticationToken(token(role))}))(t)
		t.Cleanup(c.Close)
		return c
	}
	publish(t, as("admin"), topic, "x")
	publish(t, as("admin"), topic, "y")
	k := subscribe(t, as("consumer"), client.ConsumerOptions{Topic: topic, SubscriptionName: "shipping", Type: client.Shared, RetryEnable: true})
	k.ReconsumeLater(next(t, k), 0)
	second := next(t, k)
	returned := make(chan struct{})
	go func() {
		k.ReconsumeLater(second, 0)
		close(returned)
	}()
	role := token("consumer")
	c := connect(t, s, pulsar.Options{Token: func() (string, error) { return role, nil }})
	d := receive(t, c, request("orders"))
	_, err := c.Settle(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second})
	assert.That(t, codeOf(err) == tidegate.CodeForbidden && tidegate.Classify(err) == tidegate.ClassPermanent, "a retry without the permission: %v", err)
	t.Log(err)
	wait(t, 3*time.Second)
	select {
	case <-returned:
		t.Error("the second ReconsumeLater returned")
	default:
	}
	assert.Must(t, a.GrantPermission(t.Context(), "public/default", "consumer", "consume", "produce"))
	for begin := time.Now(); ; wait(t, 200*time.Millisecond) { // the broker has a cache
		if _, err = c.Settle(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second}); err == nil {
			break
		}
		assert.MustThat(t, codeOf(err) == tidegate.CodeForbidden && time.Since(begin) < soon, "with the permission: %v", err)
	}
	other := receive(t, c, request("orders"))
	again := receive(t, c, request("orders"))
	assert.That(t, other.Attempt == 1 && again.Attempt == 2 && again.ID == d.ID, "received attempts %d and %d", other.Attempt, again.Attempt)
	<-returned // the client tries again
	for range 2 {
		assert.Equal(t, "RECONSUMETIMES", next(t, k).Properties()["RECONSUMETIMES"], "1")
	}
}

// Apache's client and this transport take turns in one subscription: each retries the messages of
// the other and of a batch, counts their attempts, and reads the dead letters of the other.
func TestMixedClients(t *testing.T) {
	for _, c := range []struct {
		name           string
		naming         pulsar.Naming
		retry, letters string
		partitions     int
	}{
		{"names of version 2.9.2", pulsar.ByTopic, "orders-billing-RETRY", "orders-billing-DLQ", 2},
		{"names of version 2.7.2", pulsar.ByGroup, "billing-RETRY", "billing-DLQ", 0},
		{"names of version 2.6.1", pulsar.ByGroupLowerCase, "billing-retry", "billing-dlq", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, a := server(t)
			ns := namespace(t, "mixed-"+strconv.Itoa(int(c.naming)))
			topic, retry, letters := full(ns, "orders"), full(ns, c.retry), full(ns, c.letters)
			if c.partitions > 0 {
				assert.Must(t, a.CreatePartitionedTopic(t.Context(), topic, c.partitions))
			}
			native := bare(t, s)
			const of = 3                         // messages
			policy := func() *client.DLQPolicy { // without batches, of which each comes again as a whole
				return &client.DLQPolicy{MaxDeliveries: 3, RetryLetterTopic: retry, DeadLetterTopic: letters, ProducerOptions: client.ProducerOptions{DisableBatching: true}}
			}
			// apache lets Apache's client retry the messages, and checks the properties of the copies.
			apache := func(times int, check func(p map[string]string)) {
				k := subscribe(t, native, client.ConsumerOptions{Topic: topic, Type: client.Shared, RetryEnable: true, DLQ: policy()})
				if times == 1 {
					publish(t, native, topic, "a", "b", "c")
				}
				for range of {
					m := next(t, k)
					check(m.Properties())
					k.ReconsumeLater(m, 0)
				}
				origins := map[string]bool{}
				for range of {
					p := next(t, k).Properties()
					origins[p["ORIGIN_MESSAGE_ID"]] = true
					assert.Equal(t, "RECONSUMETIMES", p["RECONSUMETIMES"], strconv.Itoa(times))
				}
				assert.Equal(t, "IDs that the client writes for the messages of a batch", len(origins), 1)
				awaitBacklog(t, retry, of)
				k.Close()
			}
			ids := map[string]string{} // by body
			ours := func(attempt int, settle func(c *pulsar.Client, d *tidegate.Delivery) error) {
				o := connect(t, s, pulsar.Options{Namespace: ns, Naming: c.naming, Groups: func(string, string) transport.ConsumerSettings {
					return transport.ConsumerSettings{MaxAttempts: 4}
				}})
				seen := map[string]bool{}
				for range of {
					d := receive(t, o, request("orders"))
					body := string(d.Body)
					assert.That(t, d.Attempt == attempt && maps.Equal(d.Properties, map[string]string{"p": "v"}) && d.MessageGroup == "k" && (ids[body] == "" || ids[body] == d.ID) && !seen[d.ID],
						"attempt %d with %v, want %d: %q, ID %s of %v", d.Attempt, d.Properties, attempt, body, d.ID, ids)
					ids[body], seen[d.ID] = d.ID, true
					assert.Must(t, settle(o, d))
				}
				assert.NoError(t, o.Close())
			}
			apache(1, func(map[string]string) {})
			awaitBacklog(t, topic, 0)
			ours(2, func(o *pulsar.Client, d *tidegate.Delivery) error {
				_, err := o.Settle(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second})
				return err
			})
			apache(3, func(p map[string]string) {
				name, partition, _ := strings.Cut(p["REAL_TOPIC"], "-partition-")
				assert.That(t, name == topic && (partition != "") == (c.partitions > 0) && p["RETRY_TOPIC"] == retry && p["RECONSUMETIMES"] == "2" &&
					p["DELAY_TIME"] == "1000" && p["ORIGIN_MESSAGE_ID"] != "" && p["ORIGIN_MESSAGE_IDY_TIME"] == p["ORIGIN_MESSAGE_ID"] && p["p"] == "v", "the properties are %v", p)
			})
			ours(4, func(o *pulsar.Client, d *tidegate.Delivery) error {
				if string(d.Body) != "a" {
					return nil // it returns to the subscription
				}
				_, err := o.Settle(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Reason: "no such customer"})
				return err
			})
			k := subscribe(t, native, client.ConsumerOptions{Topic: topic, Type: client.Shared, RetryEnable: true, DLQ: policy()})
			for range of - 1 {
				k.ReconsumeLater(next(t, k), 0)
			}
			dead := subscribe(t, native, client.ConsumerOptions{Topic: letters, SubscriptionName: "manual"})
			for range of {
				p := next(t, dead).Properties()
				assert.That(t, p["RECONSUMETIMES"] == "4" && p["RETRY_TOPIC"] == retry && strings.HasPrefix(p["REAL_TOPIC"], topic), "a dead letter has the properties %v", p)
			}
			o := connect(t, s, pulsar.Options{Namespace: ns, Naming: c.naming})
			for range of {
				d := receive(t, o, request(tidegate.DeadLetterTopic("billing")))
				got, ok := d.DeadLetter()
				want := tidegate.DeadLetter{Topic: "orders", MessageID: ids[string(d.Body)], Queue: got.Queue, Offset: -1, Group: "billing", Attempts: 4}
				if string(d.Body) == "a" {
					want.Reason = got.Reason
					assert.Contains(t, "reason", got.Reason, "no such customer")
				}
				assert.That(t, ok && got == want && d.ID == want.MessageID && (got.Queue >= 0) == (c.partitions > 0), "dead letter %+v, want %+v", got, want)
				assert.That(t, d.Properties["p"] == "v", "the dead letter has the properties %v", d.Properties)
			}
		})
	}
}
