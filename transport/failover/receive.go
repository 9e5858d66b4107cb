package failover

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// drainEvery is the interval at which a receive from any queue queries an inactive endpoint without
// messages.
const drainEvery = 5 * time.Second

type groupTopic struct{ group, topic string }

// Queue numbers. Queue q of endpoint i of n has the number q·n+i. A negative number is one lower,
// so that no number is transport.AnyQueue.

func queueNumber(q, i, n int) int {
	if x := q*n + i; x >= 0 {
		return x
	}
	return q*n + i - 1
}

func queueOf(number, n int) (q, i int) {
	if number < 0 {
		number++
	}
	i = ((number % n) + n) % n
	return (number - i) / n, i
}

// Queues returns the queues of all endpoints. For an endpoint that does not respond it returns the
// last known ones. It queries all endpoints at the same time and waits for all of them, until ctx
// ends. The error is that of the first endpoint, if no endpoint responded and no queue is known.
func (t *Transport) Queues(ctx context.Context, group, topic string) ([]int, error) {
	key := groupTopic{group, topic}
	lists, errs := make([][]int, len(t.ends)), make([]error, len(t.ends))
	t.each(func(e *end) {
		list, err := e.Transport.Queues(ctx, group, topic)
		if err != nil {
			errs[e.index] = e.wrap(err)
			if known, ok := e.queues.Load(key); ok && transport.Classify(err) == transport.Transient {
				lists[e.index] = known.([]int)
			}
			return
		}
		e.queues.Store(key, list)
		lists[e.index] = list
	})
	var all []int
	for i, list := range lists {
		for _, q := range list {
			all = append(all, queueNumber(q, i, len(t.ends)))
		}
	}
	if len(all) > 0 {
		slices.Sort(all)
		return all, nil
	}
	return nil, first(errs)
}

func first(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// each calls f for all endpoints at the same time, so that an endpoint without a response does not
// delay the others.
func (t *Transport) each(f func(*end)) {
	done := make(chan struct{})
	for _, e := range t.ends[1:] {
		go func() {
			f(e)
			done <- struct{}{}
		}()
	}
	f(t.ends[0])
	for range t.ends[1:] {
		<-done
	}
}

// Receive receives from the endpoint of the queue. The errors are those of the endpoint's
// transport.
//
// With [transport.AnyQueue] it queries the inactive endpoints first, one after the other and
// without waiting for messages, until one returns messages. It skips an endpoint whose last probe
// failed, and one that a query of the last 5 s found without messages. If no inactive endpoint
// returns a message, Receive receives from the active one. An error of an inactive endpoint counts
// as no message, unless ctx ended or the transport was closed.
func (t *Transport) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	if r.Queue != transport.AnyQueue {
		q, i := queueOf(r.Queue, len(t.ends))
		r.Queue = q
		return t.ends[i].receive(ctx, r)
	}
	active := t.now()
	for _, e := range t.ends {
		if e == active || e.down.Load() {
			continue
		}
		if at := e.emptyAt.Load(); at != nil && time.Since(*at) < drainEvery {
			continue
		}
		rest := r
		rest.Wait = 0
		list, err := e.receive(ctx, rest)
		if len(list) > 0 || ctx.Err() != nil || errors.Is(err, tidegate.ErrClosed) {
			return list, err
		}
		now := time.Now()
		e.emptyAt.Store(&now)
	}
	return active.receive(ctx, r)
}

func (e *end) receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	list, err := e.Transport.Receive(ctx, r)
	for _, d := range list {
		d.Endpoint = e.outer(d.Endpoint)
	}
	return list, e.wrap(err)
}
