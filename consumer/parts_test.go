package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A parting is a server that goes on with receives after their first messages.
type parting struct {
	*server
	onPart func(n int) error // before the n-th part of all receives, from 1; an error loses the part

	mu       sync.Mutex
	parts    int
	receives []transport.ReceiveRequest
}

// part is the receive of one part, as the embedded server knows it.
func part(r transport.ReceiveRequest, n int) transport.ReceiveRequest {
	r.AttemptID = fmt.Sprint(r.AttemptID, "/", n)
	return r
}

func (p *parting) ReceiveParts(ctx context.Context, r transport.ReceiveRequest, deliver func([]*tidegate.Delivery, time.Time)) ([]*tidegate.Delivery, error) {
	p.mu.Lock()
	p.receives = append(p.receives, r)
	p.mu.Unlock()
	end, half := time.Now().Add(r.Wait), r.Max/2
	for n := r.Arrived; ; n++ {
		ds, err := p.server.Receive(ctx, part(r, n))
		if err != nil || len(ds) == 0 {
			return ds, err
		}
		p.mu.Lock()
		p.parts++
		number := p.parts
		p.mu.Unlock()
		if p.onPart != nil {
			if err := p.onPart(number); err != nil {
				return nil, err
			}
		}
		deliver(ds, time.Now())
		if r.Max -= len(ds); r.Max <= half {
			return nil, nil
		}
		r.Wait = time.Until(end)
	}
}

func (p *parting) Receive(ctx context.Context, r transport.ReceiveRequest) (all []*tidegate.Delivery, err error) {
	p.mu.Lock()
	p.receives = append(p.receives, r)
	p.mu.Unlock()
	for n := r.Arrived; n < r.Arrived+8 && err == nil; n++ {
		var ds []*tidegate.Delivery
		ds, err = p.server.Receive(ctx, part(r, n))
		all = append(all, ds...)
	}
	return all, err
}

func withParts(t *testing.T, f func(t *testing.T, p *parting)) {
	t.Helper()
	withBroker(t, func(t *testing.T, s *server) { f(t, &parting{server: s}) })
}

func (p *parting) put(i int) {
	p.add(0, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", Body: []byte("x")})
}

// A message that arrives while a receive goes on is handled at once, without another receive. The
// receive ends with half of its messages, and the next one asks for as many as there is room for.
func TestParts(t *testing.T) {
	withParts(t, func(t *testing.T, p *parting) {
		var late []time.Duration
		var due time.Time
		stop := start(t, p, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			late = append(late, time.Since(due))
			return nil
		}, consumer.PushOptions{Concurrency: 8, MaxBuffered: -1})
		for i := range 12 {
			time.Sleep(time.Second)
			due = time.Now()
			p.put(i)
			synctest.Wait()
		}
		assert.Equal(t, "handled", fmt.Sprint(late), fmt.Sprint(make([]time.Duration, 12)))
		var most []int
		for _, r := range p.receives {
			most = append(most, r.Max)
		}
		// The fourth message of each receive can be in hand when the next one begins.
		assert.That(t, len(most) == 4 && most[0] == 8 && slices.Min(most) >= 7 && slices.Max(most) == 8, "maxima of the receives: %v, want 4, of 8 or 7", most)
		assert.NoError(t, stop())
		assert.Equal(t, "in flight", p.handed, 0)
	})
}

// A receive that breaks is repeated with the number of parts that arrived, so no message is lost and
// none is handled twice.
func TestLostPart(t *testing.T) {
	withParts(t, func(t *testing.T, p *parting) {
		p.onPart = func(n int) error {
			if n == 3 {
				return errors.New("connection lost")
			}
			return nil
		}
		var handled []string
		stop := start(t, p, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			handled = append(handled, fmt.Sprint(d.ID, "/", d.Attempt))
			return nil
		}, consumer.PushOptions{Concurrency: 16, MaxBuffered: -1})
		for i := range 3 {
			time.Sleep(time.Second)
			p.put(i)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.Equal(t, "handled", fmt.Sprint(handled), "[0/1 1/1 2/1]")
		if rs := p.receives; len(rs) != 2 || rs[0].Arrived != 0 || rs[1].Arrived != 2 || rs[0].AttemptID != rs[1].AttemptID {
			t.Errorf("receives %+v, want a repetition after 2 parts", rs)
		}
		assert.NoError(t, stop())
	})
}

// A consumer that stops cancels its receive, repeats it with the number of parts that arrived, and
// releases what comes. The messages of these parts are handled.
func TestStopWithinParts(t *testing.T) {
	withParts(t, func(t *testing.T, p *parting) {
		ctx, stop := context.WithCancel(t.Context())
		p.onPart = func(n int) error { // the second part is on its way
			if n == 2 {
				stop()
				<-ctx.Done()
				synctest.Wait()
				return context.Canceled
			}
			return nil
		}
		var handled []string
		c := assert.Value(consumer.NewPush(p, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
			handled = append(handled, d.ID)
			return nil
		}, consumer.PushOptions{Concurrency: 16, MaxBuffered: -1}))(t)
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		for i := range 2 {
			time.Sleep(time.Second)
			p.put(i)
		}
		assert.NoError(t, <-ended)
		assert.Equal(t, "handled", fmt.Sprint(handled), "[0]")
		last := p.receives[len(p.receives)-1]
		assert.That(t, last.Repeat && last.Arrived == 1, "the last receive is %+v, want a repetition after 1 part", last)
		assert.Equal(t, "released", fmt.Sprint(slices.Sorted(slices.Values(p.released))), "[1]")
		assert.Equal(t, "in flight", p.handed, 0)
	})
}
