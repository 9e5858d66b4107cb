package rest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// An ended is a context that ends without a signal, as one does that ends just after the response
// was read.
type ended struct {
	context.Context
	since atomic.Bool
}

func (e *ended) Err() error {
	if e.since.Load() {
		return context.Canceled
	}
	return e.Context.Err()
}

// A receive whose ctx ends when the response is there releases the messages: another receive gets
// them at once.
func TestCancelledReceiveReleasesItsMessages(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		ctx := &ended{Context: t.Context()}
		b.Intercept(func(c context.Context, call server.Call, next func(context.Context) error) error {
			err := next(c)
			if call.Op == "ReceiveMessage" {
				ctx.since.Store(true)
			}
			return err
		})
		c := over(t, b, rest.Options{})
		if r := c.Send(t.Context(), []*tidegate.Message{message("1"), message("2"), message("3")}); r[2].Err != nil {
			t.Fatal(r[2].Err)
		}
		req := transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 32, Push: true, InvisibleDuration: time.Hour}
		if ds, err := c.Receive(ctx, req); len(ds) != 0 || !errors.Is(err, context.Canceled) {
			t.Fatalf("%d deliveries, %v", len(ds), err)
		}
		ds, err := c.Receive(t.Context(), req)
		assert.MustThat(t, err == nil && len(ds) == 3, "%d deliveries after the cancelled receive, %v; want 3", len(ds), err)
		for _, d := range ds {
			assert.That(t, d.Attempt == 1, "attempt %d, want 1: the release does not count", d.Attempt)
		}
	})
}
