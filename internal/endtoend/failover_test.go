package endtoend

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/tidegate/tidegate/transport/failover"
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
