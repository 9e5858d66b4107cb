package failover

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

type groupTopic struct{ group, topic string }

// known has the settings of an endpoint for a group and topic.
type known struct {
	queues   []int
	settings transport.ConsumerSettings
}

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

// Queues returns the queues of all endpoints. For an endpoint that does not respond, or throttles
// the request, it returns the last known ones. It queries all endpoints at the same time and waits
// for all of them, until ctx ends. The error is that of the first endpoint, if no endpoint
// responded and no queue is known.
//
// With its queues Queues reads the settings of each endpoint, which EndpointSettings returns. An
// endpoint whose settings are unknown has no queues: the order of its group is unknown.
func (t *Transport) Queues(ctx context.Context, group, topic string) ([]int, error) {
	key := groupTopic{group, topic}
	lists, errs := make([][]int, len(t.ends)), make([]error, len(t.ends))
	t.each(func(e *end) {
		k, err := e.read(ctx, group, topic)
		if err != nil {
			errs[e.index] = e.wrap(err)
			if last, ok := e.known.Load(key); ok && reactionTo(err).knownQueues {
				lists[e.index] = last.(known).queues
			}
			return
		}
		e.known.Store(key, k)
		lists[e.index] = k.queues
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

// read reads the queues and settings of an endpoint.
func (e *end) read(ctx context.Context, group, topic string) (k known, err error) {
	if k.queues, err = e.Transport.Queues(ctx, group, topic); err != nil {
		return k, err
	}
	k.settings, err = e.Transport.ConsumerSettings(ctx, group, topic)
	return k, err
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
// With [transport.AnyQueue] it queries the endpoints one after the other, without waiting for
// messages, until one returns messages. The inactive ones come first. After messages of an inactive
// endpoint the next receive of the group and topic begins with the endpoint behind it, so that no
// endpoint waits for another one to be empty. Receive skips an endpoint whose last probe failed,
// and one at which a receive of the same group, topic and filter found no message in the last 5 s.
// If no endpoint returns a message, Receive receives from the active one and waits. An error before
// that counts as no message, unless ctx ended or the transport was closed.
//
// With r.Repeat and AnyQueue it queries all endpoints at the same time and returns the deliveries
// of all. It fails if all fail; the error is that of the active endpoint.
func (t *Transport) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	if r.Queue != transport.AnyQueue {
		q, i := queueOf(r.Queue, len(t.ends))
		r.Queue = q
		return t.ends[i].receive(ctx, r)
	}
	if r.Repeat {
		return t.repeat(ctx, r)
	}
	active, key := t.now(), visitKey{r.Group, r.Topic, r.Filter}
	down := func(i int) bool { return t.ends[i].down.Load() }
	for _, i := range t.visits.plan(key, active.index, len(t.ends), time.Now(), down) {
		e, rest := t.ends[i], r
		rest.Wait = 0
		list, err := e.receive(ctx, rest)
		t.visits.note(key, i, len(list) > 0, time.Now())
		if len(list) > 0 || ctx.Err() != nil || errors.Is(err, tidegate.ErrClosed) {
			return list, err
		}
	}
	list, err := active.receive(ctx, r)
	if len(list) > 0 {
		t.visits.turned(key)
	}
	return list, err
}

// repeat repeats a receive from any queue. Only one endpoint has its deliveries, and the caller
// does not know which.
func (t *Transport) repeat(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	lists, errs := make([][]*tidegate.Delivery, len(t.ends)), make([]error, len(t.ends))
	t.each(func(e *end) { lists[e.index], errs[e.index] = e.receive(ctx, r) })
	all := slices.Concat(lists...)
	if err := errs[t.now().index]; len(all) == 0 && !slices.Contains(errs, nil) {
		return nil, err
	}
	return all, nil
}

// ReceiveOrWatch receives from the endpoint of the queue, which also leaves the watch. There is no
// watch with [transport.AnyQueue], and none if the endpoint's transport is no [transport.Watcher].
// The watch does not depend on the endpoint that sends go to: consumers receive from all.
func (t *Transport) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) (ds []*tidegate.Delivery, ready <-chan struct{}, err error) {
	r.Wait = 0
	q, i := queueOf(r.Queue, len(t.ends))
	w, ok := t.ends[i].Transport.(transport.Watcher)
	if r.Queue == transport.AnyQueue || !ok {
		ds, err = t.Receive(ctx, r)
		return ds, nil, err
	}
	r.Queue = q
	ds, ready, err = w.ReceiveOrWatch(ctx, r)
	return t.ends[i].own(ds), ready, t.ends[i].wrap(err)
}

func (e *end) receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	list, err := e.Transport.Receive(ctx, r)
	return e.own(list), e.wrap(err)
}

// own sets the endpoint of deliveries.
func (e *end) own(list []*tidegate.Delivery) []*tidegate.Delivery {
	for _, d := range list {
		d.Endpoint = e.outer(d.Endpoint)
	}
	return list
}
