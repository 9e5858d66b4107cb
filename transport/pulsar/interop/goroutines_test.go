package interop

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/pulsar"
)

// goroutines returns the stacks of all goroutines by their numbers, without those of idle
// connections to the HTTP API.
func goroutines() map[string]string {
	http.DefaultClient.CloseIdleConnections()
	buf := make([]byte, 16<<20)
	all := map[string]string{}
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		number, _, _ := strings.Cut(strings.TrimPrefix(stack, "goroutine "), " ")
		if !strings.Contains(stack, "net/http.(*persistConn)") {
			all[number] = stack
		}
	}
	return all
}

// After Close no goroutine remains, neither of the transport nor of the client, whatever the
// transport has done: sends, batches, retries and dead letters, faults, lost connections.
func TestGoroutinesEnd(t *testing.T) { // not in parallel with others
	s, a := server(t)
	ns := namespace(t, "goroutines")
	topic := full(ns, "orders")
	assert.Must(t, errors.Join(a.CreatePartitionedTopic(t.Context(), topic, 3), a.CreateSubscription(t.Context(), topic, "billing")))
	before := goroutines()
	for _, batching := range []bool{false, true} {
		c := assert.Value(pulsar.New(s.URL(), pulsar.Options{Namespace: ns, Batching: batching, RequestTimeout: requestTimeout}))(t)
		p := assert.Value(producer.New(c, producer.Options{}))(t)
		done := make(chan struct{}, 100)
		push := assert.Value(consumer.NewPush(c, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
			switch {
			case d.Tag == "dead":
				return consumer.DeadLetterNow(errors.New("a fault of the message"))
			case d.Tag == "again" && d.Attempt == 1:
				return consumer.RetryIn(10*time.Millisecond, errors.New("a fault that passes"))
			}
			done <- struct{}{}
			return nil
		}, consumer.PushOptions{LongPolling: time.Second}))(t)
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- push.Run(ctx) }()
		for range 3 {
			for _, tag := range []string{"", "again", "dead"} {
				m := message("orders", 1)
				m.Tag = tag
				ctx, cancel := context.WithTimeout(t.Context(), soon)
				assert.Must(t, assert.Err(p.Send(ctx, m)))
				cancel()
			}
			assert.Must(t, a.Unload(t.Context(), topic)) // every producer and consumer ends
		}
		for range 6 {
			<-done
		}
		r := request("%DLQ%billing")
		d := receive(t, c, r)
		assert.NoError(t, c.Ack(t.Context(), []*tidegate.Delivery{d})[0])
		assert.That(t, send(t.Context(), c, message("orders", 5<<20)) != nil, "a send above the limit succeeded")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		assert.That(t, send(transport.AwaitConnection(ended), c, message("orders", 1)) != nil, "a send with an ended ctx succeeded")
		stop()
		assert.NoError(t, <-ran, "Run")
		assert.NoError(t, p.Close())
		assert.NoError(t, c.Close())
		c2 := assert.Value(pulsar.New(s.URL(), pulsar.Options{Namespace: ns, Batching: batching, RequestTimeout: requestTimeout}))(t)
		assert.NoError(t, c2.Close(), "Close of a client without a connection")
	}
	var left []string
	for begin := time.Now(); ; wait(t, 10*time.Millisecond) { // goroutines end after they have signalled it
		left = nil
		for number, stack := range goroutines() {
			if before[number] == "" {
				left = append(left, stack)
			}
		}
		if len(left) == 0 || time.Since(begin) > 30*time.Second {
			break
		}
	}
	assert.That(t, len(left) == 0, "%d goroutines remain of %d before:\n%s", len(left), len(before), strings.Join(left, "\n\n"))
}
