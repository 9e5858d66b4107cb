package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/pulsar"
	"github.com/tidegate/tidegate/transport/pulsar/internal/standalone"
)

// set changes a policy that Admin does not have.
func set(t *testing.T, s *standalone.Server, path string, value any) {
	t.Helper()
	text := assert.Value(json.Marshal(value))(t)
	r := assert.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, s.AdminURL()+"/admin/v2/"+path, bytes.NewReader(text)))(t)
	r.Header.Set("Content-Type", "application/json")
	response := assert.Value(http.DefaultClient.Do(r))(t)
	defer response.Body.Close()
	assert.MustThat(t, response.StatusCode < http.StatusMultipleChoices, "%s: %s", path, response.Status)
}

// wantFault checks an error that no retry cures.
func wantFault(t *testing.T, what string, err error, code tidegate.Code, words string) {
	t.Helper()
	e, ok := errors.AsType[*tidegate.Error](err)
	assert.That(t, ok && e.Code == code && !e.MaybeStored && !e.NotConnected && tidegate.Classify(err) == tidegate.ClassPermanent && strings.Contains(err.Error(), words),
		"%s: %v, want code %d and %q", what, err, code, words)
}

// What the policies of a namespace forbid is a clear error, and nothing is stored.
func TestPolicies(t *testing.T) {
	t.Parallel()
	s, a := server(t)

	ns := namespace(t, "subscriptions")
	c := connect(t, s, pulsar.Options{Namespace: ns})
	set(t, s, "namespaces/"+ns+"/autoSubscriptionCreation", map[string]bool{"allowAutoSubscriptionCreation": false})
	for topic, subscription := range map[string]string{"orders-billing-DLQ": "dead-letters", "orders-billing-RETRY": "billing", "orders": "billing"} {
		assert.Must(t, a.CreateTopic(t.Context(), full(ns, topic)))
		if topic != "orders" {
			assert.Must(t, a.CreateSubscription(t.Context(), full(ns, topic), subscription))
		}
	}
	wantFault(t, "a missing subscription", assert.Err(c.Receive(t.Context(), request("orders"))), tidegate.CodeNotFound, "subscription does not exist")
	assert.Must(t, a.CreateSubscription(t.Context(), full(ns, "orders"), "billing"))
	nothing(t, c, request("orders"))

	ns = namespace(t, "types")
	c = connect(t, s, pulsar.Options{Namespace: ns})
	set(t, s, "namespaces/"+ns+"/subscriptionTypesEnabled", []string{"Exclusive"})
	wantFault(t, "a forbidden type of subscription", assert.Err(c.Receive(t.Context(), request("orders"))), tidegate.CodeForbidden, "doesn't support Shared")

	ns = namespace(t, "schema")
	c = connect(t, s, pulsar.Options{Namespace: ns})
	set(t, s, "namespaces/"+ns+"/schemaValidationEnforced", true)
	assert.Value(bare(t, s).CreateProducer(client.ProducerOptions{Topic: full(ns, "orders"), Schema: client.NewStringSchema(nil)}))(t).Close()
	assert.Must(t, a.CreateSubscription(t.Context(), full(ns, "orders"), "billing"))
	wantFault(t, "a topic with a schema", send(t.Context(), c, message("orders", 1)), tidegate.CodeBadRequest, "schema")
	nothing(t, c, request("orders"))

	c = connect(t, s, pulsar.Options{Namespace: "public/a!b"})
	wantFault(t, "an illegal namespace", send(t.Context(), c, message("orders", 1)), 40002, "InvalidTopicName")
	c = connect(t, s, pulsar.Options{})
	wantFault(t, "a name that ends like that of a partition", send(t.Context(), c, message("orders-partition-x", 1)), 40002, "partition")
}

// A topic can have a smaller maximum than the server. The server then closes the producer and
// reports the rejection in a form that the client only logs: the send ends with its ctx, with the
// reason in its text, and is not stored.
func TestMaximumOfATopic(t *testing.T) {
	t.Parallel()
	s, _ := server(t)
	topic := topicOf(t, "small")
	c := connect(t, s, pulsar.Options{RequestTimeout: 3 * time.Second})
	set(t, s, "persistent/public/default/"+topic+"/maxMessageSize", 1000)
	var err error
	for begin := time.Now(); err == nil; err = send(t.Context(), c, message(topic, 2000)) { // the policy takes a moment
		assert.MustThat(t, time.Since(begin) < soon, "all messages are accepted")
	}
	e, ok := errors.AsType[*tidegate.Error](err)
	assert.That(t, ok && e.MaybeStored && tidegate.Classify(err) == tidegate.ClassTransient && strings.Contains(err.Error(), "Exceed maximum message size"), "%v", err)
	small := message(topic, 100)
	assert.NoError(t, send(t.Context(), c, small))
	for d := receive(t, c, request(topic)); d.ID != small.ID; d = receive(t, c, request(topic)) {
		assert.MustThat(t, d.ID != e.Subject, "received %q", d.ID)
		assert.Must(t, c.Ack(t.Context(), []*tidegate.Delivery{d})[0])
	}
}

// The limits of a server: its own maximum of a message, lookups at the same time, and connections.
func TestServerLimits(t *testing.T) {
	t.Parallel()
	const most, connections = 1 << 20, 100
	s := start(t, standalone.Options{Properties: map[string]string{
		"maxMessageSize": fmt.Sprint(most), "brokerMaxConnectionsPerIp": fmt.Sprint(connections),
	}})
	topic := full("public/default", "orders")
	assert.Must(t, errors.Join(s.Admin().CreateTopic(t.Context(), topic), s.Admin().CreateSubscription(t.Context(), topic, "billing")))
	c := connect(t, s, pulsar.Options{})
	for _, c := range []*pulsar.Client{c, connect(t, s, pulsar.Options{Batching: true})} {
		wantFault(t, "a body above the limit", send(t.Context(), c, message("orders", most+1)), tidegate.CodeMessageBodyTooLarge, "maxMessageSize")
		wantFault(t, "a body at the limit, with properties above it", send(t.Context(), c, message("orders", most)), tidegate.CodeMessageBodyTooLarge, "maxMessageSize")
	}
	last := message("orders", most-1000)
	assert.NoError(t, send(t.Context(), c, last))
	assert.Equal(t, "received", receive(t, c, request("orders")).ID, last.ID)
	nothing(t, c, request("orders"))

	const lookups = "brokers/configuration/maxConcurrentLookupRequest/"
	set(t, s, lookups+"1", nil)
	var throttled atomic.Int64
	for begin := time.Now(); throttled.Load() == 0; {
		assert.MustThat(t, time.Since(begin) < soon, "no request is throttled")
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				err := c.Ping(t.Context(), fmt.Sprint("topic-", i))
				assert.That(t, err == nil || errors.Is(err, tidegate.ErrThrottled), "%v, want a throttle", err)
				if err != nil {
					throttled.Add(1)
				}
			})
		}
		wg.Wait()
	}
	set(t, s, lookups+"50000", nil) // the default

	var others []net.Conn
	var late *pulsar.Client
	var err error
	for begin := time.Now(); err == nil; { // a busy server counts a connection some time after it was made
		assert.MustThat(t, time.Since(begin) < soon, "no connection is refused")
		for range connections {
			conn, err := net.Dial("tcp", s.Address())
			assert.Must(t, err)
			others = append(others, conn)
		}
		late = connect(t, s, pulsar.Options{RequestTimeout: 3 * time.Second})
		err = send(t.Context(), late, message("orders", 1))
	}
	e, ok := errors.AsType[*tidegate.Error](err)
	assert.That(t, ok && e.NotConnected && tidegate.Classify(err) == tidegate.ClassTransient && strings.Contains(err.Error(), "maximum number of connections"),
		"above the maximum of connections: %v, want NotConnected", err)
	for _, conn := range others {
		assert.NoError(t, conn.Close())
	}
	for begin := time.Now(); ; {
		if err = send(t.Context(), late, message("orders", 1)); err == nil {
			break
		}
		assert.MustThat(t, tidegate.Classify(err) == tidegate.ClassTransient && time.Since(begin) < soon, "%v", err)
	}
}

// A subscription that is deleted while its consumer runs is created again by it: it begins with the
// oldest message that the topic still has, so that messages come again, and none is lost.
func TestDeletedSubscription(t *testing.T) {
	t.Parallel()
	s, a := server(t)
	topic := topicOf(t, "deleted")
	c := connect(t, s, pulsar.Options{})
	handled := make(chan string, 100)
	consume(t, c, consumer.Subscription{Group: "billing", Topic: topic}, func(_ context.Context, d *tidegate.Delivery) error {
		handled <- d.ID
		return nil
	})
	missing := map[string]bool{}
	for range 3 {
		m := message(topic, 1)
		assert.Must(t, send(t.Context(), c, m))
		assert.Equal(t, "handled", <-handled, m.ID)
		missing[m.ID] = true
	}
	assert.Must(t, a.DeleteSubscription(t.Context(), full("public/default", topic), "billing"))
	m := message(topic, 1)
	assert.Must(t, send(t.Context(), c, m))
	for missing[m.ID] = true; len(missing) > 0; {
		select {
		case id := <-handled:
			delete(missing, id)
		case <-time.After(soon):
			t.Fatalf("%d of 4 messages do not come", len(missing))
		}
	}
}

// Where the server does not create subscriptions, the consumer reports the deletion of its own. It
// goes on once the subscription exists again.
func TestDeletedSubscriptionIsMissing(t *testing.T) {
	t.Parallel()
	s, a := server(t)
	ns := namespace(t, "gone")
	topic := full(ns, "orders")
	for topic, subscription := range map[string]string{"orders-billing-DLQ": "dead-letters", "orders-billing-RETRY": "billing", "orders": "billing"} {
		assert.Must(t, errors.Join(a.CreateTopic(t.Context(), full(ns, topic)), a.CreateSubscription(t.Context(), full(ns, topic), subscription)))
	}
	set(t, s, "namespaces/"+ns+"/autoSubscriptionCreation", map[string]bool{"allowAutoSubscriptionCreation": false})
	c := connect(t, s, pulsar.Options{Namespace: ns})
	handled, failures := make(chan string, 100), make(chan error, 1000)
	consumeWith(t, c, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
		handled <- d.ID
		return nil
	}, consumer.PushOptions{LongPolling: time.Second, OnReceiveFailure: func(f consumer.ReceiveFailure) { failures <- f.Err }})
	m := message("orders", 1)
	assert.Must(t, send(t.Context(), c, m))
	assert.Equal(t, "handled", <-handled, m.ID)
	assert.Must(t, a.DeleteSubscription(t.Context(), topic, "billing"))
	for {
		err := <-failures
		if tidegate.Classify(err) != tidegate.ClassTransient { // the lost connection
			wantFault(t, "the deleted subscription", err, tidegate.CodeNotFound, "subscription does not exist")
			break
		}
	}
	assert.Must(t, a.CreateSubscription(t.Context(), topic, "billing"))
	m = message("orders", 1)
	assert.Must(t, send(t.Context(), c, m))
	assert.Equal(t, "handled", <-handled, m.ID)
}
