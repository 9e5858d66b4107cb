package rocketmq

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// masterBroker is the broker id of the server that takes writes; the others of
// the same name are its copies.
const masterBroker = 0

// A queue is one that can be written to.
type queue struct {
	ep     *endpoint
	broker string
	id     int32
}

// A route tells where a topic's queues are. It is never changed.
type route struct {
	byGroup []queue                    // writable, by broker and id: what message groups are hashed over
	inTurn  []queue                    // the same, neighbours on different brokers
	at      map[string]queue           // the first of each server, by its address
	servers []*endpoint                // of these
	accepts map[rmqpb.MessageType]bool // types of messages; nil: the server does not say
	readers []broker                   // that have a readable queue, by name
	by      map[string]broker          // readers by name
}

// A broker is one that can be read from.
type broker struct {
	ep *endpoint
	pb *rmqpb.Broker
}

// newRoute makes a route of the queues that a server named.
func (c *Client) newRoute(name string, mqs []*rmqpb.MessageQueue) (*route, *tidegate.Error) {
	r := &route{by: map[string]broker{}}
	var unusable error
	for _, mq := range mqs {
		if mq.GetBroker().GetId() != masterBroker {
			continue
		}
		ep, err := c.endpointOf(mq.GetBroker())
		if err != nil {
			unusable = err
			continue
		}
		for _, kind := range mq.GetAcceptMessageTypes() {
			if r.accepts == nil {
				r.accepts = map[rmqpb.MessageType]bool{}
			}
			r.accepts[kind] = true
		}
		p := mq.GetPermission()
		if p == rmqpb.Permission_WRITE || p == rmqpb.Permission_READ_WRITE {
			r.byGroup = append(r.byGroup, queue{ep, mq.GetBroker().GetName(), mq.GetId()})
		}
		if p == rmqpb.Permission_READ || p == rmqpb.Permission_READ_WRITE {
			r.by[mq.GetBroker().GetName()] = broker{ep, mq.GetBroker()}
		}
	}
	if len(r.byGroup) == 0 && len(r.by) == 0 {
		if errors.Is(unusable, tidegate.ErrClosed) {
			return nil, closedError("QueryRoute", name)
		}
		text := "written or read"
		if unusable != nil {
			text += ": " + unusable.Error()
		}
		return nil, noQueue("QueryRoute", name, c.access.key, text)
	}
	slices.SortFunc(r.byGroup, func(a, b queue) int {
		return cmp.Or(cmp.Compare(a.broker, b.broker), cmp.Compare(a.id, b.id))
	})
	r.inTurn = interleave(r.byGroup)
	r.at = map[string]queue{}
	for _, q := range r.byGroup {
		if _, ok := r.at[q.ep.key]; !ok {
			r.at[q.ep.key] = q
			r.servers = append(r.servers, q.ep)
		}
	}
	for _, b := range r.by {
		r.readers = append(r.readers, b)
	}
	slices.SortFunc(r.readers, func(a, b broker) int { return cmp.Compare(a.pb.GetName(), b.pb.GetName()) })
	return r, nil
}

// noQueue makes the error of a route that names no queue for what is to be done.
// It is no refusal, since it passes: a server leaves out a master that is down
// or starts while its copies are still named, and operators take permissions
// away from one that they are about to stop.
func noQueue(op, subject, endpoint, todo string) *tidegate.Error {
	return &tidegate.Error{Op: op, Subject: subject, Endpoint: endpoint, Err: tidegate.ErrUnavailable,
		Message: "the server names no queue, on a master, that can be " + todo}
}

// endpointOf returns where a broker is: what it says, unless the client was
// told to stay with its own endpoints or it says nothing.
func (c *Client) endpointOf(b *rmqpb.Broker) (*endpoint, error) {
	if c.opts.FixedEndpoint || len(b.GetEndpoints().GetAddresses()) == 0 {
		return c.access, nil
	}
	return c.endpoint(b.GetEndpoints())
}

// interleave orders queues, sorted by broker, so that neighbours are on
// different brokers as far as possible: the next attempt goes elsewhere then.
func interleave(sorted []queue) []queue {
	type ranked struct {
		queue
		rank int // within its broker
	}
	list := make([]ranked, len(sorted))
	for i, q := range sorted {
		list[i].queue = q
		if i > 0 && list[i-1].broker == q.broker {
			list[i].rank = list[i-1].rank + 1
		}
	}
	slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	out := make([]queue, len(list))
	for i, q := range list {
		out[i] = q.queue
	}
	return out
}

// forGroup returns the queue of a message group: always the same as long as
// the set of writable queues is.
func (r *route) forGroup(group string) queue {
	h := fnv.New32a()
	h.Write([]byte(group))
	return r.byGroup[h.Sum32()%uint32(len(r.byGroup))]
}

// Queue numbers. The contract names a queue by one number, RocketMQ by broker
// and id. A broker's place in the topic makes one of the two:
//
//	number      queue
//	-1          any queue of the brokers in turn (transport.AnyQueue)
//	-2-b        any queue of broker b
//	b<<20 | id  queue id of broker b, so with one broker the id itself
const brokerShift = 20

// A place is a broker's part of queue numbers. Nobody gets another's.
type place struct {
	number int
	seen   time.Time // in a route
}

// noteBrokers gives every broker of r a place, and forgets those of brokers that
// were in no route for forgetAfter refreshes. t.mu is held.
func (t *topic) noteBrokers(r *route, refresh time.Duration) {
	now := time.Now()
	for _, b := range r.readers {
		p := t.places[b.pb.GetName()]
		if p == nil {
			p = &place{number: t.placed}
			t.placed++
			if t.places == nil {
				t.places = map[string]*place{}
			}
			t.places[b.pb.GetName()] = p
		}
		p.seen = now
	}
	maps.DeleteFunc(t.places, func(_ string, p *place) bool { return now.Sub(p.seen)/forgetAfter > refresh })
}

// source returns what the queue number means: a broker of r, and the queue's id there.
func (t *topic) source(r *route, number int) (b broker, id int32, ok bool) {
	if len(r.readers) == 0 {
		return b, 0, false
	}
	if number == transport.AnyQueue {
		n := t.poll.Add(1) - 1
		return r.readers[n%uint64(len(r.readers))], transport.AnyQueue, true
	}
	wanted := number >> brokerShift
	id = int32(number & (1<<brokerShift - 1))
	if number < 0 {
		wanted, id = -2-number, transport.AnyQueue
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range r.readers {
		if p := t.places[b.pb.GetName()]; p != nil && p.number == wanted {
			return b, id, true
		}
	}
	return broker{}, 0, false
}

// Queues returns the numbers of the topic's queues. Only Receive of this client understands them:
// for a topic on several brokers they include the broker.
func (c *Client) Queues(ctx context.Context, group, topicName string) ([]int, error) {
	const op = "QueryAssignment"
	if err := tidegate.ValidateGroup(group); err != nil {
		return nil, err
	}
	t, r, err := c.consumerRoute(ctx, op, topicName)
	if err != nil {
		return nil, err
	}
	c.access.knock(ctx)
	res, _, err := call(ctx, c, request{ep: c.access, id: c.identity(role{group, true}), op: op, subject: topicName},
		rmqpb.MessagingServiceClient.QueryAssignment,
		&rmqpb.QueryAssignmentRequest{Topic: c.resource(topicName), Group: c.resource(group), Endpoints: c.access.pb})
	if err != nil {
		c.doubtIf(t, err)
		return nil, err
	}
	numbers := t.numbers(r, res.GetAssignments())
	if len(numbers) == 0 {
		c.doubt(t)
		return nil, noQueue(op, topicName, c.access.key, "read")
	}
	return numbers, nil
}

// numbers returns the numbers of the assigned queues that r lets us read from, in order.
func (t *topic) numbers(r *route, assigned []*rmqpb.Assignment) []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	var numbers []int
	for _, a := range assigned {
		mq := a.GetMessageQueue()
		name := mq.GetBroker().GetName()
		p := t.places[name]
		if _, known := r.by[name]; !known || p == nil {
			continue
		}
		switch {
		case mq.GetId() >= 0:
			numbers = append(numbers, p.number<<brokerShift|int(mq.GetId()))
		case len(r.readers) == 1:
			numbers = append(numbers, transport.AnyQueue)
		default:
			numbers = append(numbers, -2-p.number)
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// doubtIf doubts the topic's route if the error may come from a wrong one.
func (c *Client) doubtIf(t *topic, err *tidegate.Error) {
	switch {
	case err.Code == tidegate.CodeTopicNotFound, err.Code == tidegate.CodeMessagePropertyConflict:
		c.lose(t)
	case errors.Is(err, tidegate.ErrUnavailable) && err.Code == 0:
		c.doubt(t)
	}
}
