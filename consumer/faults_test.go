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
)

// A distant server takes extensions 10 s after they were sent, and its responses need 10 s too.
type distant struct{ *server }

func (d distant) Extend(ctx context.Context, x *tidegate.Delivery, dur time.Duration, repeat bool) (string, error) {
	<-time.After(10 * time.Second)
	h, err := d.server.Extend(context.WithoutCancel(ctx), x, dur, repeat)
	<-time.After(10 * time.Second)
	return h, err
}

// Extensions that take 20 s have a longer invisible duration asked for, and after that no message
// is lost.
func TestSlowExtensions(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		var lost atomic.Int64
		work := func(context.Context, *tidegate.Delivery) error { time.Sleep(5 * time.Minute); return nil }
		stop := start(t, distant{s}, consumer.Subscription{}, work, consumer.PushOptions{Concurrency: 3, OnDelivery: func(o consumer.Outcome) {
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
// buffer expires. The extensions are a third of the lease apart, and change no handler's delivery.
func TestBufferedMessagesKeepTheirLeases(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fillQuick()
		var seen outcomes
		stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, d *tidegate.Delivery) error {
			if handle := d.Handle; slow(d) {
				time.Sleep(5 * time.Minute)
				assert.That(t, ctx.Err() == nil && d.Handle == handle, "ctx %v; the handle changed from %q to %q", ctx.Err(), handle, d.Handle)
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
		for _, d := range s.changes {
			assert.That(t, d == 30*time.Second, "extended by %v", d)
		}
		// Two messages at a time are in hand for 5, 10, 15 to 50 min, and extended every 9 to 10 s.
		if n, most := len(s.changes), 2*275*60/9; n > most || n < 2*50*60/10 {
			t.Errorf("%d extensions, want at most %d", n, most)
		}
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
		runFor(t, time.Minute, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { time.Sleep(10 * time.Millisecond); return nil },
			consumer.PushOptions{Concurrency: 64, MaxBytes: 40 << 20})
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
		runFor(t, 10*time.Second, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{Concurrency: 64, OnDelivery: seen.add})
		for _, o := range seen.all() {
			assert.That(t, o.Disposition == consumer.Acked && o.Delivery.Attempt == 1, "%+v", o)
		}
		assert.That(t, len(seen.all()) == 300 && len(s.acks) <= 30,
			"%d outcomes in %d requests: %v", len(seen.all()), len(s.acks), s.acks)
	})
}
