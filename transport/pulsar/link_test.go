package pulsar

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// groups returns Options.Groups with the group ledger, which is FIFO, and 3 attempts for all.
func groups(group, _ string) transport.ConsumerSettings {
	return transport.ConsumerSettings{FIFO: group == "ledger", MaxAttempts: 3}
}

func request(group string) transport.ReceiveRequest {
	return transport.ReceiveRequest{
		Group: group, Topic: "orders", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute, Wait: 10 * time.Second,
	}
}

// one receives one message and checks it.
func one(t *testing.T, c *Client, q transport.ReceiveRequest, body string, attempt int) *tidegate.Delivery {
	t.Helper()
	ds, err := c.Receive(t.Context(), q)
	assert.Must(t, err, "receive %s", body)
	assert.MustThat(t, len(ds) == 1 && string(ds[0].Body) == body && ds[0].Attempt == attempt, "received %s, want attempt %d of %s", describe(ds), attempt, body)
	return ds[0]
}

func none(t *testing.T, c *Client, q transport.ReceiveRequest) {
	t.Helper()
	ds, err := c.Receive(t.Context(), q)
	assert.Must(t, err)
	assert.MustThat(t, len(ds) == 0, "received %s, want nothing", describe(ds))
}

func describe(ds []*tidegate.Delivery) string {
	var all []string
	for _, d := range ds {
		all = append(all, fmt.Sprintf("attempt %d of %s", d.Attempt, d.Body))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

func settle(t *testing.T, c *Client, d *tidegate.Delivery, v transport.Verdict) {
	t.Helper()
	assert.Must(t, assert.Err(c.Settle(t.Context(), d, v)))
}

func ack(t *testing.T, c *Client, ds ...*tidegate.Delivery) {
	t.Helper()
	assert.Must(t, errors.Join(c.Ack(t.Context(), ds)...))
}

func dlq(group string) transport.ReceiveRequest {
	q := request("reader")
	q.Topic = "%DLQ%" + group
	return q
}

// Retries go through the retry topic with the properties of "TDMQ for Apache Pulsar: message retry
// and dead letter mechanisms", and the dead letter has its reason and its origin. The names are
// those of the three versions.
func TestRetryTopic(t *testing.T) {
	for naming, names := range map[Naming][2]string{
		ByTopic:          {"orders-billing-RETRY", "orders-billing-DLQ"},
		ByGroup:          {"billing-RETRY", "billing-DLQ"},
		ByGroupLowerCase: {"billing-retry", "billing-dlq"},
	} {
		retry, letters := names[0], names[1]
		inBubble(t, Options{Groups: groups, Naming: naming}, func(t *testing.T, s *fakeServer, c *Client) {
			m := message("x")
			m.Tag, m.Keys, m.Properties = "new", []string{"k1", "k2"}, map[string]string{"p": "v"}
			assert.Must(t, c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
			d := one(t, c, request("billing"), "x", 1)
			for attempt := 1; attempt <= 2; attempt++ {
				start := time.Now()
				settle(t, c, d, transport.Verdict{Kind: transport.Retry, Delay: 30 * time.Second, Reason: "busy"})
				assert.Equal(t, "messages left in the topic", len(s.kept("orders", "billing")), 0)
				copies := s.kept(retry, "billing")
				assert.MustThat(t, len(copies) == 1, "%d messages in %s, want the retry", len(copies), retry)
				for name, want := range map[string]string{
					"REAL_TOPIC": "persistent://public/default/orders", "RETRY_TOPIC": "persistent://public/default/" + retry,
					"ORIGIN_MESSAGE_ID": "7:1:-1", "RECONSUMETIMES": fmt.Sprint(attempt),
				} {
					assert.Equal(t, name, copies[0].Properties[name], want)
				}
				q := request("billing")
				q.Wait = time.Minute
				d = one(t, c, q, "x", attempt+1)
				assert.Equal(t, "delay", time.Since(start), 30*time.Second)
				assert.That(t, d.ID == m.ID && d.Topic == "orders" && d.Tag == "new" && slices.Equal(d.Keys, m.Keys) && len(d.Properties) == 1 && d.Properties["p"] == "v",
					"delivered %+v", d.Message)
			}
			settle(t, c, d, transport.Verdict{Kind: transport.Retry, Reason: "no such account"})
			assert.Equal(t, "retries", len(s.kept(retry, "billing")), 0)
			dead := s.kept(letters, "dead-letters")
			assert.MustThat(t, len(dead) == 1, "%d messages in %s, want the dead letter", len(dead), letters)
			assert.Equal(t, "RECONSUMETIMES", dead[0].Properties["RECONSUMETIMES"], "3")
			assert.Equal(t, "ORIGIN_MESSAGE_ID", dead[0].Properties["ORIGIN_MESSAGE_ID"], "7:1:-1")
			time.Sleep(24 * time.Hour) // without a reader
			d = one(t, c, dlq("billing"), "x", 1)
			got, ok := d.DeadLetter()
			want := tidegate.DeadLetter{Topic: "orders", MessageID: m.ID, Queue: -1, Offset: -1, Group: "billing", Attempts: 3, Reason: got.Reason}
			assert.That(t, ok && got == want && strings.Contains(got.Reason, "no such account"), "origin %+v, want %+v", got, want)
			assert.That(t, d.ID == m.ID && d.Tag == "new", "dead letter %+v", d.Message)
			settle(t, c, d, transport.Verdict{Kind: transport.Retry}) // of a dead letter, which has no retry topic
			d = one(t, c, dlq("billing"), "x", 2)
			ack(t, c, d)
			assert.Equal(t, "dead letters left", len(s.kept(letters, "dead-letters")), 0)
		})
	}
}

// Without settings a message has 16 retries with the delays of MESSAGE_DELAYLEVEL in a row, and the
// 17th failure makes it a dead letter.
func TestRetryLevelsInARow(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "x")
		d := one(t, c, request("billing"), "x", 1)
		for i, level := range strings.Fields("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m") {
			want, err := time.ParseDuration(level)
			assert.Must(t, err)
			start := time.Now()
			settle(t, c, d, transport.Verdict{Kind: transport.RetryTopic})
			q := request("billing")
			q.Wait = time.Hour
			d = one(t, c, q, "x", i+2)
			assert.Equal(t, fmt.Sprintf("delay of retry %d", i+1), time.Since(start), want)
		}
		settle(t, c, d, transport.Verdict{Kind: transport.RetryTopic})
		assert.Equal(t, "dead letters", len(s.kept("orders-billing-DLQ", "dead-letters")), 1)
	})
}

func TestRetryTopicDelays(t *testing.T) {
	own := []time.Duration{time.Second, 42 * time.Second}
	for _, c := range []struct {
		levels []time.Duration
		v      transport.Verdict
		want   time.Duration // 0: refused
	}{
		{v: transport.Verdict{Level: 3}, want: 10 * time.Second},
		{v: transport.Verdict{Level: 18}, want: 2 * time.Hour},
		{v: transport.Verdict{Delay: 864_000 * time.Second}, want: 864_000 * time.Second},
		{v: transport.Verdict{Delay: time.Second}, want: time.Second},
		{levels: own, v: transport.Verdict{Level: 2}, want: 42 * time.Second},
		{v: transport.Verdict{Level: 19}},
		{levels: own, v: transport.Verdict{Level: 3}},
		{v: transport.Verdict{Level: -1}},
		{v: transport.Verdict{Delay: 999 * time.Millisecond}},
		{v: transport.Verdict{Delay: 864_001 * time.Second}},
		{v: transport.Verdict{Level: 1, Delay: time.Second}},
	} {
		inBubble(t, Options{Levels: c.levels}, func(t *testing.T, s *fakeServer, client *Client) {
			mustSend(t, client, "x")
			d := one(t, client, request("billing"), "x", 1)
			c.v.Kind = transport.RetryTopic
			start := time.Now()
			_, err := client.Settle(t.Context(), d, c.v)
			if c.want == 0 {
				expected{class: tidegate.ClassPermanent, code: tidegate.CodeBadRequest}.check(t, fmt.Sprintf("%+v", c.v), err)
				ack(t, client, d) // the delivery is still in flight
				return
			}
			assert.Must(t, err, "%+v", c.v)
			q := request("billing")
			q.Wait = 300 * time.Hour
			one(t, client, q, "x", 2)
			assert.Equal(t, fmt.Sprintf("delay of %+v", c.v), time.Since(start), c.want)
		})
	}
}

// A negative acknowledgement leaves the message unacknowledged on the server, which counts it. It
// comes after the delay, by default a minute, and at most 200 ms later.
func TestNegativeAck(t *testing.T) {
	for _, group := range []string{"billing", "ledger"} {
		inBubble(t, Options{Groups: groups}, func(t *testing.T, s *fakeServer, c *Client) {
			s.subscribe("orders", "ledger")
			assert.Must(t, c.Send(t.Context(), []*tidegate.Message{ordered("a", "x")})[0].Err)
			d := one(t, c, request(group), "x", 1)
			for attempt, delay := range []time.Duration{0, 7 * time.Second, time.Millisecond, time.Hour} {
				start := time.Now()
				settle(t, c, d, transport.Verdict{Kind: transport.NegativeAck, Delay: delay})
				if delay == 0 {
					delay = time.Minute
				}
				q := request(group)
				q.Wait = 2 * time.Hour
				d = one(t, c, q, "x", attempt+2) // more often than the maximum of attempts
				took := time.Since(start)
				assert.That(t, took >= delay && took <= delay+200*time.Millisecond, "%s: delivered after %v, want %v", group, took, delay)
				assert.Equal(t, "messages on the server", len(s.kept("orders", group)), 1)
			}
			wantBodies(t, s, "x") // no new message
			ack(t, c, d)
			assert.Equal(t, "messages on the server", len(s.kept("orders", group)), 0)
		})
	}
}

// Released messages stay with the consumer, without a counted attempt, and return to the server
// when it closes.
func TestReleasedMessages(t *testing.T) {
	inBubble(t, Options{Groups: groups, Prefetch: 2}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0", "1")
		q := request("billing")
		q.Push, q.Wait = true, 0
		first := one(t, c, q, "0", 1)
		second := one(t, c, q, "1", 1)
		settle(t, c, second, transport.Verdict{Kind: transport.Release})
		time.Sleep(10 * time.Second) // the buffered message is released to the link
		other := newFakeTransport(t, s, Options{Groups: groups})
		defer other.Close()
		none(t, other, request("billing"))
		second = one(t, c, q, "1", 1)
		settle(t, c, second, transport.Verdict{Kind: transport.Release})
		time.Sleep(10 * time.Second)
		assert.NoError(t, c.Close())
		a, b := one(t, other, q, "0", 1), one(t, other, q, "1", 1)
		ack(t, other, a, b)
		expected{class: tidegate.ClassCancelled}.check(t, "Ack after Close", c.Ack(t.Context(), []*tidegate.Delivery{first})[0])
	})
}

// After a lost connection receives and settlements fail with NotConnected, and the messages come
// again, without a counted attempt.
func TestLostConsumer(t *testing.T) {
	inBubble(t, Options{Groups: groups}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0")
		d := one(t, c, request("billing"), "0", 1)
		time.AfterFunc(time.Second, func() { s.disconnect(false) })
		start := time.Now()
		_, err := c.Receive(t.Context(), request("billing"))
		assert.Equal(t, "end of the receive", time.Since(start), time.Second)
		expected{class: tidegate.ClassTransient, notConnected: true}.check(t, "receive", err)
		expected{class: tidegate.ClassTransient, notConnected: true}.check(t, "Ack", c.Ack(t.Context(), []*tidegate.Delivery{d})[0])
		ack(t, c, one(t, c, request("billing"), "0", 1))
		assert.Equal(t, "messages on the server", len(s.kept("orders", "billing")), 0)
	})
}

// When a topic gets more partitions, its receivers get the messages of all of them, although a new
// partition cannot be used at first.
func TestMorePartitions(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		s.create("invoices", 2)
		s.subscribe("invoices", "billing")
		q := request("billing")
		q.Topic, q.Max, q.Wait = "invoices", 10, 20*time.Second
		none(t, c, q)
		s.create("invoices", 3)
		s.subscribe("invoices", "billing")
		s.with(func(s *fakeServer) {
			s.refuse = func(kind, topic string) error {
				if kind == "subscribe" && strings.HasSuffix(topic, "-partition-2") {
					return errors.New("server error: ServiceNotReady: the namespace bundle is being unloaded")
				}
				return nil
			}
		})
		time.AfterFunc(90*time.Second, func() { s.with(func(s *fakeServer) { s.refuse = nil }) })
		time.AfterFunc(2*time.Minute, func() {
			s.with(func(s *fakeServer) {
				for i, topic := range s.parts(namespace + "invoices") {
					s.store(s.topics[topic], toPulsar(message(fmt.Sprint(i)), "", time.Now()), "")
				}
			})
		})
		var got []string
		for start := time.Now(); time.Since(start) < 3*time.Minute; {
			ds, err := c.Receive(t.Context(), q)
			if err != nil {
				expected{class: tidegate.ClassTransient, notConnected: strings.Contains(err.Error(), "partitions")}.check(t, "receive", err)
				time.Sleep(time.Second)
			}
			for _, d := range ds {
				got = append(got, string(d.Body))
			}
			ack(t, c, ds...)
		}
		slices.Sort(got)
		assert.Slices(t, "received messages", got, []string{"0", "1", "2"})
	})
}

// An acknowledgement that is under way when its connection is lost may have been carried out, so it
// is not one without a connection.
func TestConnectionIsLostDuringAnAck(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0")
		d := one(t, c, request("billing"), "0", 1)
		s.with(func(s *fakeServer) { s.ackTime = time.Second })
		time.AfterFunc(500*time.Millisecond, func() { s.disconnect(false) })
		expected{class: tidegate.ClassTransient, maybeStored: true}.check(t, "Ack", c.Ack(t.Context(), []*tidegate.Delivery{d})[0])
	})
}

// While the server is away, a receive that waits for a connection goes on, and others fail.
func TestReceiveWithoutServer(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		s.put("orders", toPulsar(message("0"), "", time.Now()))
		s.away = true
		start := time.Now()
		_, err := c.Receive(t.Context(), request("billing"))
		expected{class: tidegate.ClassTransient, notConnected: true}.check(t, "receive", err)
		assert.That(t, time.Since(start) <= 10*time.Second, "the receive took %v", time.Since(start))
		time.AfterFunc(time.Hour, s.comeBack)
		ds, err := c.Receive(transport.AwaitConnection(t.Context()), request("billing"))
		assert.That(t, err == nil && len(ds) == 1, "received %s, %v", describe(ds), err)
	})
}

// Two topics of a group cannot share a retry topic. Messages of the other topic in it wait for
// their own consumer.
func TestSharedRetryTopic(t *testing.T) {
	inBubble(t, Options{Naming: ByGroup, Groups: groups}, func(t *testing.T, s *fakeServer, c *Client) {
		s.subscribe("invoices", "billing")
		s.subscribe("billing-RETRY", "billing")
		foreign := toPulsar(message("foreign"), "", time.Now())
		foreign.Properties["REAL_TOPIC"], foreign.Properties["RECONSUMETIMES"] = "persistent://public/default/invoices", "4"
		s.put("billing-RETRY", foreign)
		own := toPulsar(message("own"), "", time.Now())
		own.Properties["REAL_TOPIC"], own.Properties["RECONSUMETIMES"] = "persistent://public/default/orders", "1"
		s.put("billing-RETRY", own)
		ack(t, c, one(t, c, request("billing"), "own", 2))
		none(t, c, request("billing"))
		assert.Equal(t, "messages in the retry topic", len(s.kept("billing-RETRY", "billing")), 1)
		q := request("billing")
		q.Topic = "invoices"
		_, err := c.Receive(t.Context(), q)
		expected{class: tidegate.ClassPermanent, code: tidegate.CodeBadRequest}.check(t, "second topic", err)
		assert.Contains(t, "error", err.Error(), "orders", "billing-RETRY")
		other := newFakeTransport(t, s, Options{Naming: ByGroup, Groups: groups})
		defer other.Close()
		assert.NoError(t, c.Close())
		ack(t, other, one(t, other, q, "foreign", 5))
	})
}

// The dead letters of a group come from the topics of all its topics, and not from those of a group
// whose name ends like its own.
func TestDeadLettersOfAGroup(t *testing.T) {
	inBubble(t, Options{Groups: groups}, func(t *testing.T, s *fakeServer, c *Client) {
		began := time.Now()
		for _, group := range []string{"billing", "x-billing"} {
			for _, topic := range []string{"orders", "invoices"} {
				s.subscribe(topic, group)
				m := message(topic + " " + group)
				m.Topic = topic
				assert.Must(t, c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
				q := request(group)
				q.Topic = topic
				ds, err := c.Receive(t.Context(), q)
				for err == nil && len(ds) == 1 && string(ds[0].Body) != string(m.Body) {
					ack(t, c, ds...)
					ds, err = c.Receive(t.Context(), q)
				}
				assert.MustThat(t, err == nil && len(ds) == 1, "received %s, %v", describe(ds), err)
				settle(t, c, ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "bad"})
			}
		}
		var got []string
		for range 2 {
			ds, err := c.Receive(t.Context(), dlq("billing"))
			assert.MustThat(t, err == nil && len(ds) == 1, "received %s, %v", describe(ds), err)
			got = append(got, string(ds[0].Body))
			assert.That(t, !ds[0].StoredAt.Before(began) && !ds[0].StoredAt.After(time.Now()), "it became a dead letter at %v", ds[0].StoredAt)
			ack(t, c, ds...)
		}
		slices.Sort(got)
		assert.Slices(t, "dead letters", got, []string{"invoices billing", "orders billing"})
		s.put("orders-billing-DLQ-archive", toPulsar(message("archived"), "", time.Now()))
		time.Sleep(time.Minute)
		none(t, c, dlq("billing"))
		assert.Equal(t, "subscriptions of another topic", len(s.topics[namespace+"orders-billing-DLQ-archive"].subs), 0)
		assert.Equal(t, "dead letters of the other group", len(s.kept("orders-x-billing-DLQ", "dead-letters")), 1)
	})
}

func TestSQLFilterIsRefused(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		q := request("billing")
		q.Filter = tidegate.Filter{Expression: "price > 3", SQL: true}
		_, err := c.Receive(t.Context(), q)
		expected{class: tidegate.ClassPermanent, code: tidegate.CodeNotImplemented}.check(t, "SQL filter", err)
	})
}

// One of several acknowledgements fails: its error is its own, and it can be repeated.
func TestAckFailsForOne(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0", "1", "2")
		var ds []*tidegate.Delivery
		for _, body := range []string{"0", "1", "2"} {
			ds = append(ds, one(t, c, request("billing"), body, 1))
		}
		s.with(func(s *fakeServer) {
			s.refusal = func(id *fakeID) error {
				if id.entry == 2 {
					return errors.New("ack response error: ServiceNotReady: Topic is being unloaded")
				}
				return nil
			}
		})
		errs := c.Ack(t.Context(), ds)
		assert.NoError(t, errors.Join(errs[0], errs[2]))
		expected{class: tidegate.ClassTransient, maybeStored: true}.check(t, "Ack", errs[1])
		assert.Equal(t, "messages on the server", len(s.kept("orders", "billing")), 1)
		s.with(func(s *fakeServer) { s.refusal = nil })
		ack(t, c, ds[1])
		assert.Equal(t, "messages on the server", len(s.kept("orders", "billing")), 0)
	})
}

// A message that is too large for the properties of a retry has its attempts all the same: the server
// delivers it again.
func TestRetryIsTooLarge(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		body := strings.Repeat("x", 10_000)
		mustSend(t, c, body)
		s.with(func(s *fakeServer) { s.maximum = 10_100 })
		for attempt := 1; attempt <= 3; attempt++ {
			start := time.Now()
			d := one(t, c, request("billing"), body, attempt)
			if took := time.Since(start); attempt > 1 && (took < 5*time.Second || took > 5200*time.Millisecond) {
				t.Errorf("attempt %d came after %v, want 5 s", attempt, took)
			}
			settle(t, c, d, transport.Verdict{Kind: transport.Retry, Delay: 5 * time.Second})
		}
	})
}

// A settlement whose copy is stored and whose acknowledgement fails does not store it again.
func TestCopyIsStoredOnce(t *testing.T) {
	for topic, v := range map[string]transport.Verdict{
		"orders-billing-RETRY": {Kind: transport.Retry, Delay: time.Minute}, "orders-billing-DLQ": {Kind: transport.DeadLetter, Reason: "bad"},
	} {
		inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
			mustSend(t, c, "0")
			d := one(t, c, request("billing"), "0", 1)
			s.with(func(s *fakeServer) {
				s.refusal = func(*fakeID) error { return errors.New("ack response error: MetadataError: try again") }
			})
			_, err := c.Settle(t.Context(), d, v)
			expected{class: tidegate.ClassTransient, maybeStored: true}.check(t, "Settle", err)
			s.with(func(s *fakeServer) { s.refusal = nil })
			settle(t, c, d, v)
			assert.Equal(t, "copies in "+topic, len(s.bodies(topic)), 1)
			assert.Equal(t, "messages on the server", len(s.kept("orders", "billing")), 0)
		})
	}
}

// A retry whose copy cannot be stored fails, and leaves the message where it is.
func TestCopyFails(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0")
		d := one(t, c, request("billing"), "0", 1)
		s.with(func(s *fakeServer) {
			s.refuse = func(request, topic string) error {
				if request == "producer" && topic == namespace+"orders-billing-RETRY" {
					return errors.New("server error: AuthorizationError: Client is not authorized to Produce")
				}
				return nil
			}
		})
		_, err := c.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry})
		expected{class: tidegate.ClassPermanent, code: tidegate.CodeForbidden}.check(t, "Retry", err)
		assert.Equal(t, "messages on the server", len(s.kept("orders", "billing")), 1)
		s.with(func(s *fakeServer) { s.refuse = nil })
		settle(t, c, d, transport.Verdict{Kind: transport.Retry})
		ack(t, c, one(t, c, request("billing"), "0", 2))
	})
}

// A receive of a group whose dead letters would be lost fails, and names what is missing.
func TestDeadLetterTopicIsMissing(t *testing.T) {
	inBubble(t, Options{DeadLetterSubscription: "graveyard"}, func(t *testing.T, s *fakeServer, c *Client) {
		s.manual = true
		s.create("orders-billing-RETRY", 0)
		_, err := c.Receive(t.Context(), request("billing"))
		expected{class: tidegate.ClassPermanent, code: tidegate.CodeNotFound}.check(t, "receive", err)
		assert.Contains(t, "error", err.Error(), namespace+"orders-billing-DLQ", "graveyard")
		s.create("orders-billing-DLQ", 0)
		none(t, c, request("billing"))
		q := request("ledger")
		s.create("orders-ledger-DLQ", 0)
		_, err = c.Receive(t.Context(), q)
		expected{class: tidegate.ClassPermanent, code: tidegate.CodeNotFound}.check(t, "receive without a retry topic", err)
		assert.Contains(t, "error", err.Error(), namespace+"orders-ledger-RETRY")
	})
}

// A dead letter topic that was deleted, or its subscription, is created again before the next dead
// letter: Pulsar would delete that at once.
func TestDeadLetterSubscriptionIsDeleted(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		for i := range 3 {
			body := fmt.Sprint(i)
			mustSend(t, c, body)
			settle(t, c, one(t, c, request("billing"), body, 1), transport.Verdict{Kind: transport.DeadLetter, Reason: "bad"})
			kept := s.kept("orders-billing-DLQ", "dead-letters")
			assert.MustThat(t, len(kept) == 1 && string(kept[0].Payload) == body, "%d dead letters, want %s", len(kept), body)
			s.with(func(s *fakeServer) { clear(s.topics[namespace+"orders-billing-DLQ"].subs) })
			time.Sleep(time.Minute)
		}
	})
}

// A program that reads the dead letters with a subscription of another type does not stop the group.
func TestDeadLettersHaveAnotherConsumer(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		s.subscribe("orders-billing-DLQ", "dead-letters")
		s.refuse = func(kind, topic string) error {
			if kind == "subscribe" && strings.HasSuffix(topic, "-DLQ") {
				return errors.New("server error: ConsumerBusy: Subscription is of different type")
			}
			return nil
		}
		mustSend(t, c, "0")
		settle(t, c, one(t, c, request("billing"), "0", 1), transport.Verdict{Kind: transport.DeadLetter, Reason: "bad"})
		assert.Equal(t, "dead letters", len(s.kept("orders-billing-DLQ", "dead-letters")), 1)
	})
}

// A broker delivers delayed messages up to a second before their time. They wait for it here.
func TestDelayedMessageWaitsForItsTime(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		m := message("0")
		at := time.Now().Add(9500 * time.Millisecond)
		m.DeliverAt = at
		assert.Must(t, c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
		ack(t, c, one(t, c, request("billing"), "0", 1))
		assert.Equal(t, "time of the delivery", time.Now(), at)
	})
}

// In a FIFO group the messages of a message group come in order over a subscription Key_Shared,
// also after retries, which stay in this process, and after a lost connection.
func TestFIFO(t *testing.T) {
	inBubble(t, Options{Groups: groups}, func(t *testing.T, s *fakeServer, c *Client) {
		s.subscribe("orders", "ledger")
		for _, body := range []string{"a0", "b0", "a1", "b1", "a2"} {
			assert.Must(t, c.Send(t.Context(), []*tidegate.Message{ordered(body[:1], body)})[0].Err)
		}
		d := one(t, c, request("ledger"), "a0", 1)
		assert.That(t, s.topics[namespace+"orders"].subs["ledger"].shared == pulsar.KeyShared, "the subscription is not Key_Shared")
		settle(t, c, d, transport.Verdict{Kind: transport.Retry, Delay: 5 * time.Second})
		ack(t, c, one(t, c, request("ledger"), "b0", 1))
		b := one(t, c, request("ledger"), "b1", 1)
		d = one(t, c, request("ledger"), "a0", 2)
		s.disconnect(false)
		synctest.Wait()
		a, b2 := one(t, c, request("ledger"), "a0", 1), one(t, c, request("ledger"), "b1", 1)
		ack(t, c, a, b2)
		for _, lost := range []*tidegate.Delivery{d, b} {
			assert.Is(t, "Ack of a lost delivery", c.Ack(t.Context(), []*tidegate.Delivery{lost})[0], tidegate.ErrInvalidHandle)
		}
		d = one(t, c, request("ledger"), "a1", 1)
		settle(t, c, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "bad"})
		ack(t, c, one(t, c, request("ledger"), "a2", 1))
		assert.Equal(t, "messages on the server", len(s.kept("orders", "ledger")), 0)
		assert.Equal(t, "messages in the retry topic", len(s.bodies("orders-ledger-RETRY")), 0)
		assert.Equal(t, "dead letters", len(s.kept("orders-ledger-DLQ", "dead-letters")), 1)
	})
}

// Two processes of a FIFO group never have messages of one message group at the same time, also if
// the sender batches.
func TestFIFOBatches(t *testing.T) {
	inBubble(t, Options{Groups: groups, Batching: true}, func(t *testing.T, s *fakeServer, c *Client) {
		s.subscribe("orders", "ledger")
		other := newFakeTransport(t, s, Options{Groups: groups})
		defer other.Close()
		q := request("ledger")
		q.Max = 100
		var wg sync.WaitGroup
		for _, process := range []*Client{c, other} {
			wg.Go(func() { none(t, process, q) }) // their consumers stay open for 2 s
		}
		wg.Wait()
		names := []string{"a", "b", "c", "d", "e", "f"}
		for range names {
			var msgs []*tidegate.Message
			for _, name := range names {
				msgs = append(msgs, ordered(name, name))
			}
			for _, r := range c.Send(t.Context(), msgs) {
				assert.Must(t, r.Err)
			}
			time.Sleep(10 * time.Millisecond)
			names = append(names[1:], names[0])
		}
		first, err := c.Receive(t.Context(), q)
		assert.Must(t, err)
		second, err := other.Receive(t.Context(), q)
		assert.Must(t, err)
		assert.That(t, len(first) > 0 && len(second) > 0, "the processes have %d and %d messages", len(first), len(second))
		for _, d := range first {
			if slices.ContainsFunc(second, func(o *tidegate.Delivery) bool { return o.MessageGroup == d.MessageGroup }) {
				t.Errorf("both processes have a message of the message group %s", d.MessageGroup)
			}
		}
	})
}

// A message without a message group in a FIFO group has its retries and becomes a dead letter like
// others.
func TestUnorderedMessageOfAFIFOGroup(t *testing.T) {
	inBubble(t, Options{Groups: groups}, func(t *testing.T, s *fakeServer, c *Client) {
		s.subscribe("orders", "ledger")
		mustSend(t, c, "0")
		for attempt := 1; attempt <= 3; attempt++ {
			start := time.Now()
			d := one(t, c, request("ledger"), "0", attempt)
			if took := time.Since(start); attempt > 1 && (took < 5*time.Second || took > 5200*time.Millisecond) {
				t.Errorf("attempt %d came after %v, want 5 s", attempt, took)
			}
			settle(t, c, d, transport.Verdict{Kind: transport.Retry, Delay: 5 * time.Second})
		}
		assert.Equal(t, "dead letters", len(s.kept("orders-ledger-DLQ", "dead-letters")), 1)
		assert.Equal(t, "messages on the server", len(s.kept("orders", "ledger")), 0)
	})
}

// A message that is to come again after a long time does not keep its body in this process: it no
// longer counts as held there.
func TestReturnedMessagesAreForgotten(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		body := func() weak.Pointer[fakeMessage] {
			m := &fakeMessage{id: &fakeID{}, message: toPulsar(message("large"), "", time.Now())}
			new(link).nack(&native{ConsumerMessage: pulsar.ConsumerMessage{Consumer: &fakeConsumer{}, Message: m}}, 10*24*time.Hour)
			return weak.Make(m)
		}()
		runtime.GC()
		assert.That(t, body.Value() == nil, "the message is in memory")
	})
}

// Close waits for an acknowledgement under way, and sends none after the end of the consumer: the
// client would never return from it.
func TestCloseDuringAcknowledgements(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		var ds []*tidegate.Delivery
		for i := range 5 {
			mustSend(t, c, fmt.Sprint(i))
			ds = append(ds, one(t, c, request("billing"), fmt.Sprint(i), 1))
		}
		s.with(func(s *fakeServer) { s.ackTime = time.Second })
		var wg sync.WaitGroup
		for i, d := range ds {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				err := c.Ack(t.Context(), []*tidegate.Delivery{d})[0]
				assert.That(t, err == nil || tidegate.Classify(err) != tidegate.ClassPermanent, "Ack: %v", err)
				if kept := slices.ContainsFunc(s.kept("orders", "billing"), func(m *pulsar.ProducerMessage) bool {
					return string(m.Payload) == string(d.Body)
				}); err == nil && kept {
					t.Errorf("Ack of %s succeeded, and the server has the message", d.Body)
				}
			})
		}
		time.Sleep(250 * time.Millisecond)
		assert.NoError(t, c.Close())
		wg.Wait()
	})
}

// An Ack without a response ends with its ctx, and may have been carried out.
func TestAckWithoutResponse(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0")
		d := one(t, c, request("billing"), "0", 1)
		s.with(func(s *fakeServer) { s.ackTime = 20 * time.Second })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := c.Ack(ctx, []*tidegate.Delivery{d})[0]
		assert.Equal(t, "end of the Ack", time.Since(start), time.Second)
		expected{class: tidegate.ClassTransient, maybeStored: true}.check(t, "Ack", err)
	})
}

// A settlement without a deadline ends after RequestTimeout. The end of a lease, which nobody waits
// for, is repeated until the server responds again.
func TestSettlementsAreBounded(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0")
		d := one(t, c, request("billing"), "0", 1)
		s.with(func(s *fakeServer) { s.response = 100 * time.Hour })
		start := time.Now()
		_, err := c.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry})
		took := time.Since(start)
		assert.That(t, took >= 3*time.Second && took <= 3100*time.Millisecond, "Settle took %v, want 3 s", took)
		expected{class: tidegate.ClassTransient, maybeStored: true}.check(t, "Settle", err)
		time.Sleep(time.Hour) // the lease ends
		s.with(func(s *fakeServer) { s.response = 0 })
		q := request("billing")
		q.Wait = 5 * time.Minute
		ack(t, c, one(t, c, q, "0", 2))
	})
}

// Two topics can have names of which one is like a partition of the other. Retries of Apache's
// clients name the partition of their topic.
func TestRetryOfAPartition(t *testing.T) {
	inBubble(t, Options{Naming: ByGroup, Groups: groups}, func(t *testing.T, s *fakeServer, c *Client) {
		s.create("my-partition-7", 2)
		s.subscribe("my-partition-7", "billing")
		s.subscribe("billing-RETRY", "billing")
		own := toPulsar(message("own"), "", time.Now())
		own.Properties["REAL_TOPIC"] = namespace + "my-partition-7-partition-1"
		s.put("billing-RETRY", own)
		q := request("billing")
		q.Topic = "my-partition-7"
		d := one(t, c, q, "own", 1)
		settle(t, c, d, transport.Verdict{Kind: transport.Retry})
		ack(t, c, one(t, c, q, "own", 2))
	})
}

// Acknowledgements that come together have one request.
func TestAcknowledgementsAreJoined(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		var ds []*tidegate.Delivery
		for i := range 50 {
			mustSend(t, c, fmt.Sprint(i))
			ds = append(ds, one(t, c, request("billing"), fmt.Sprint(i), 1))
		}
		s.with(func(s *fakeServer) { s.ackTime = 10 * time.Millisecond })
		var wg sync.WaitGroup
		for _, d := range ds {
			wg.Go(func() { ack(t, c, d) })
		}
		wg.Wait()
		assert.That(t, s.number(&s.acks) <= 2, "%d requests for 50 acknowledgements", s.number(&s.acks))
		assert.Equal(t, "messages on the server", len(s.kept("orders", "billing")), 0)
	})
}
