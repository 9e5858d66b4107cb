package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A server in front of another one, with a network between.
type distant struct {
	*server
	there, back time.Duration // how long requests and responses take
}

func (d *distant) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	<-time.After(d.there)
	ds, err := d.server.Receive(context.WithoutCancel(ctx), r)
	handedOut := time.Now()
	<-time.After(d.back)
	for _, x := range ds { // a transport knows the time left when the message was delivered, not when
		x.InvisibleUntil = time.Now().Add(x.InvisibleUntil.Sub(handedOut))
	}
	return ds, err
}

func (d *distant) Settle(ctx context.Context, x *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	if v.Kind != transport.Release {
		return d.server.Settle(ctx, x, v)
	}
	<-time.After(d.there)
	res, err := d.server.Settle(context.WithoutCancel(ctx), x, v)
	<-time.After(d.back)
	return res, err
}

func (d *distant) Extend(ctx context.Context, x *tidegate.Delivery, dur time.Duration, repeat bool) (string, error) {
	<-time.After(d.there)
	h, err := d.server.Extend(context.WithoutCancel(ctx), x, dur, repeat)
	<-time.After(d.back)
	return h, err
}

// Extensions that take 20 s have a longer invisible duration asked for, and after that no message
// is lost.
func TestSlowExtensions(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		net := &distant{s, 10 * time.Second, 10 * time.Second}
		var lost atomic.Int64
		work := func(context.Context, *tidegate.Delivery) error { time.Sleep(5 * time.Minute); return nil }
		stop := start(t, net, consumer.Subscription{}, work, consumer.PushOptions{Concurrency: 3, OnDelivery: func(o consumer.Outcome) {
			if o.Disposition != consumer.Acked {
				lost.Add(1)
			}
		}})
		s.fill(3)
		time.Sleep(20 * time.Minute)
		before := lost.Load()
		s.add(0, &tidegate.Message{ID: "a", Topic: "orders", Body: []byte("x")}, &tidegate.Message{ID: "b", Topic: "orders", Body: []byte("x")})
		time.Sleep(20 * time.Minute)
		stop()
		assert.That(t, lost.Load() == before && s.left() == 0, "%d leases were lost, of these %d after the first messages; %d messages left", lost.Load(), lost.Load()-before, s.left())
	})
}

// A handler that works ten times as long as the lease has one delivery, and no message in the
// buffer expires. Handlers may ignore their contexts and return late.
func TestBufferedMessagesKeepTheirLeases(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fillQuick()
		var seen outcomes
		stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			if slow(d) {
				time.Sleep(5 * time.Minute)
			}
			return nil
		}, consumer.PushOptions{Concurrency: 2, OnDelivery: seen.add})
		s.fillSlow(20)
		time.Sleep(time.Hour)
		stop()
		for _, o := range seen.all() {
			assert.That(t, o.Disposition == consumer.Acked && o.Delivery.Attempt == 1, "%+v", o)
		}
		assert.That(t, s.left() == 0, "%d messages left", s.left())
	})
}

// With bodies of 4 MiB the consumer stays within its byte bound if the server supports the bound.
// Otherwise it exceeds the bound by at most one batch.
func TestLargeBodiesAreBounded(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		body := make([]byte, 4<<20)
		for i := range 60 {
			s.add(0, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", Body: body})
		}
		var most atomic.Int64
		s.onHandOut = func(int) { most.Store(max(most.Load(), int64(s.handed))) }
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { time.Sleep(10 * time.Millisecond); return nil },
			consumer.PushOptions{Concurrency: 64, MaxBytes: 40 << 20})
		time.Sleep(time.Minute)
		stop()
		assert.That(t, most.Load() <= 10 && s.left() == 0, "%d bodies of 4 MiB in hand, %d messages left", most.Load(), s.left())
	})
}

// Acknowledgements share requests, and one that fails does not fail the others.
func TestAcknowledgementsShareRequests(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fillQuick()
		var mu sync.Mutex
		poor := map[string]int{}
		s.onAck = func(d *tidegate.Delivery) error {
			time.Sleep(time.Millisecond / 10) // so requests take a while
			mu.Lock()
			defer mu.Unlock()
			if poor[d.ID]++; len(d.ID) == len("quick0") && poor[d.ID] == 1 {
				return &tidegate.Error{Code: tidegate.CodeInternalServerError}
			}
			return nil
		}
		var seen outcomes
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{Concurrency: 64, OnDelivery: seen.add})
		time.Sleep(10 * time.Second)
		stop()
		for _, o := range seen.all() {
			assert.That(t, o.Disposition == consumer.Acked && o.Delivery.Attempt == 1, "%+v", o)
		}
		assert.That(t, len(seen.all()) == 300 && len(s.acks) <= 30,
			"%d outcomes in %d requests: %v", len(seen.all()), len(s.acks), s.acks)
	})
}
