package failover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// The outer name of a server is the endpoint's name followed by the name in the endpoint's
// transport.

func (e *end) outer(server string) string { return e.Name + "/" + server }

// inner returns the endpoint of an outer name and the inner name, or nil for an unknown name.
func (t *Transport) inner(outer string) (*end, string) {
	name, server, ok := strings.Cut(outer, "/")
	for _, e := range t.ends {
		if ok && e.Name == name {
			return e, server
		}
	}
	return nil, ""
}

// wrap returns err with the outer name of its server.
func (e *end) wrap(err error) error {
	inner, ok := err.(*tidegate.Error) //nolint:errorlint // an error that wraps it names its own server
	if !ok || inner == nil || inner.Endpoint == "" {
		return err
	}
	outer := *inner
	outer.Endpoint = e.outer(inner.Endpoint)
	return &outer
}

// results sets the outer names of the servers in the results.
func (e *end) results(list []transport.SendResult) []transport.SendResult {
	for i := range list {
		r := &list[i]
		if r.Err != nil {
			r.Err = e.wrap(r.Err)
			continue
		}
		r.Receipt.Endpoint = e.outer(r.Receipt.Endpoint)
		if r.Receipt.RecallHandle != "" {
			r.Receipt.RecallHandle = e.outer(r.Receipt.RecallHandle)
		}
	}
	return list
}

// Send sends to the active endpoint, in one attempt. Its results count for switching. A send that
// waits for a connection (transport.AwaitConnection) ends when sends switch to another endpoint;
// its error then matches tidegate.ErrUnavailable. The other errors are those of the endpoint's
// transport.
func (t *Transport) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	if len(msgs) == 0 {
		return nil
	}
	e := t.now()
	ctx, end := t.sending(ctx, e)
	defer end()
	report := t.track(ctx, e)
	list := e.Transport.Send(ctx, msgs)
	report(list)
	return e.results(list)
}

// Lane returns a lane of the active endpoint. If its transport has no lanes, the lane is the
// endpoint, for one message. Lane blocks and fails like the endpoint's transport.
func (t *Transport) Lane(ctx context.Context, r transport.LaneRequest) (transport.Lane, error) {
	e := t.now()
	s, ok := e.Transport.(transport.LaneSender)
	if !ok {
		return transport.Lane{Endpoint: e.outer(""), MaxMessages: 1}, nil
	}
	var avoid []string
	for _, outer := range r.Avoid {
		if at, server := t.inner(outer); at == e {
			avoid = append(avoid, server)
		}
	}
	r.Avoid = avoid
	ctx, end := t.sending(ctx, e)
	defer end()
	lane, err := s.Lane(ctx, r)
	if err != nil {
		if ctx.Err() == nil || errors.Is(context.Cause(ctx), tidegate.ErrUnavailable) {
			t.track(ctx, e)([]transport.SendResult{{Err: err}}) // the send ends here
		}
		return lane, e.wrap(err)
	}
	lane.Endpoint = e.outer(lane.Endpoint)
	return lane, nil
}

// SendLane sends to the lane's endpoint like Send, if that endpoint is still active. Otherwise it
// sends nothing, and the results match transport.ErrLaneChanged.
func (t *Transport) SendLane(ctx context.Context, lane transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	e, server := t.inner(lane.Endpoint)
	if e == nil || e != t.now() {
		list := make([]transport.SendResult, len(msgs))
		for i := range list {
			list[i].Err = &tidegate.Error{Op: "SendMessage", Subject: msgs[i].Topic, Endpoint: lane.Endpoint, Err: transport.ErrLaneChanged}
		}
		return list
	}
	s, ok := e.Transport.(transport.LaneSender)
	if !ok {
		return t.Send(ctx, msgs)
	}
	lane.Endpoint = server
	ctx, end := t.sending(ctx, e)
	defer end()
	report := t.track(ctx, e)
	list := s.SendLane(ctx, lane, msgs)
	report(list)
	return e.results(list)
}

// from returns the endpoint that delivered d, and d with the endpoint's inner names.
func (t *Transport) from(op string, d *tidegate.Delivery) (*end, *tidegate.Delivery, error) {
	e, server := t.inner(d.Endpoint)
	if e == nil {
		return nil, nil, &tidegate.Error{Op: op, Subject: d.Topic, Endpoint: d.Endpoint, Code: tidegate.CodeIllegalAccessPoint,
			Message: "none of the endpoints delivered the message; settle it with the transport that received it"}
	}
	inner := *d
	inner.Endpoint = server
	return e, &inner, nil
}

// Ack acknowledges each delivery at the endpoint that it came from, at all endpoints at the same
// time. The error of a delivery has CodeIllegalAccessPoint if it came from none of the endpoints;
// the others are those of the endpoint's transport.
func (t *Transport) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, len(ds))
	lists, places := make([][]*tidegate.Delivery, len(t.ends)), make([][]int, len(t.ends))
	for n, d := range ds {
		e, inner, err := t.from("AckMessage", d)
		if err != nil {
			errs[n] = err
			continue
		}
		lists[e.index], places[e.index] = append(lists[e.index], inner), append(places[e.index], n)
	}
	t.each(func(e *end) {
		if len(lists[e.index]) == 0 {
			return
		}
		for k, err := range e.Transport.Ack(ctx, lists[e.index]) {
			errs[places[e.index][k]] = e.wrap(err)
		}
	})
	return errs
}

// Settle ends the delivery at its endpoint. Its errors are those of Ack.
func (t *Transport) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	e, inner, err := t.from("Settle", d)
	if err != nil {
		return transport.RetryResult{}, err
	}
	r, err := e.Transport.Settle(ctx, inner, v)
	return r, e.wrap(err)
}

// Extend changes the invisible duration at the endpoint of the delivery. Its errors are those of
// Ack.
func (t *Transport) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (string, error) {
	e, inner, err := t.from("ChangeInvisibleDuration", d)
	if err != nil {
		return "", err
	}
	handle, err := e.Transport.Extend(ctx, inner, dur, repeat)
	return handle, e.wrap(err)
}

// missing returns the error of an operation that an endpoint's transport does not support.
func (e *end) missing(op, subject string) error {
	return &tidegate.Error{Op: op, Subject: subject, Endpoint: e.outer(""), Code: tidegate.CodeNotImplemented,
		Message: fmt.Sprintf("the transport of %q does not support the operation", e.Name)}
}

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
		return t.receiveFrom(ctx, t.ends[i], r)
	}
	if r.Repeat {
		return t.repeat(ctx, r)
	}
	active, key := t.now(), visitKey{r.Group, r.Topic, r.Filter, r.LiteConsumer}
	down := func(i int) bool { return t.ends[i].down.Load() }
	for _, i := range t.visits.plan(key, active.index, len(t.ends), time.Now(), down) {
		e, rest := t.ends[i], r
		rest.Wait = 0
		list, err := t.receiveFrom(ctx, e, rest)
		t.visits.note(key, i, len(list) > 0, time.Now())
		if len(list) > 0 || ctx.Err() != nil || errors.Is(err, tidegate.ErrClosed) {
			return list, err
		}
	}
	list, err := t.receiveFrom(ctx, active, r)
	if len(list) > 0 {
		t.visits.turned(key)
	}
	return list, err
}

// repeat repeats a receive from any queue. Only one endpoint has its deliveries, and the caller
// does not know which.
func (t *Transport) repeat(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	lists, errs := make([][]*tidegate.Delivery, len(t.ends)), make([]error, len(t.ends))
	t.each(func(e *end) { lists[e.index], errs[e.index] = t.receiveFrom(ctx, e, r) })
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
	if err = t.align(ctx, t.ends[i], r); err != nil {
		return nil, nil, err
	}
	ds, ready, err = w.ReceiveOrWatch(ctx, r)
	t.received(t.ends[i], r, err)
	return t.ends[i].own(ds), ready, t.ends[i].wrap(err)
}

// ReceiveParts receives from the endpoint of the queue. deliver gets nothing with
// [transport.AnyQueue], as r.Arrived would not say of which endpoint the parts are, and if the
// endpoint's transport is no [transport.Streamer].
func (t *Transport) ReceiveParts(ctx context.Context, r transport.ReceiveRequest, deliver func(part []*tidegate.Delivery, since time.Time)) ([]*tidegate.Delivery, error) {
	q, i := queueOf(r.Queue, len(t.ends))
	s, ok := t.ends[i].Transport.(transport.Streamer)
	if r.Queue == transport.AnyQueue || !ok {
		return t.Receive(ctx, r)
	}
	r.Queue = q
	if err := t.align(ctx, t.ends[i], r); err != nil {
		return nil, err
	}
	list, err := s.ReceiveParts(ctx, r, func(part []*tidegate.Delivery, since time.Time) { deliver(t.ends[i].own(part), since) })
	t.received(t.ends[i], r, err)
	return t.ends[i].own(list), t.ends[i].wrap(err)
}

// receiveFrom receives from an endpoint.
func (t *Transport) receiveFrom(ctx context.Context, e *end, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	if err := t.align(ctx, e, r); err != nil {
		return nil, err
	}
	list, err := e.Transport.Receive(ctx, r)
	t.received(e, r, err)
	return e.own(list), e.wrap(err)
}

// own sets the endpoint of deliveries.
func (e *end) own(list []*tidegate.Delivery) []*tidegate.Delivery {
	for _, d := range list {
		d.Endpoint = e.outer(d.Endpoint)
	}
	return list
}
