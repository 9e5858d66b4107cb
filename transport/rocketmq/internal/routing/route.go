package routing

import (
	"cmp"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
)

// masterBroker is the broker id of the server that takes writes; the others of
// the same name are its copies.
const masterBroker = 0

// A Queue is one that can be written to.
type Queue struct {
	Server *remote.Server
	broker string
	ID     int32
}

// A Route has the queues of a topic. It is never changed.
type Route struct {
	ByGroup     []Queue                    // writable, by broker and id; message groups are hashed over them
	Interleaved []Queue                    // the same, neighbours on different brokers, for messages without a group
	At          map[string]Queue           // the first of each server, by its address
	Servers     []*remote.Server           // of these
	Accepts     map[rmqpb.MessageType]bool // types of messages; nil if unknown
	Readers     []Broker                   // that have a readable queue, by name
	by          map[string]Broker          // readers by name
}

// A Broker is one that can be read from.
type Broker struct {
	Server *remote.Server
	PB     *rmqpb.Broker
}

// interleave orders queues, sorted by broker, so that neighbours are on
// different brokers as far as possible: the next attempt goes elsewhere then.
func interleave(sorted []Queue) []Queue {
	type ranked struct {
		Queue
		rank int // within its broker
	}
	list := make([]ranked, len(sorted))
	for i, q := range sorted {
		list[i].Queue = q
		if i > 0 && list[i-1].broker == q.broker {
			list[i].rank = list[i-1].rank + 1
		}
	}
	slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	out := make([]Queue, len(list))
	for i, q := range list {
		out[i] = q.Queue
	}
	return out
}

// NewRoute makes a route of the queues that a server named. at returns the endpoint of a broker.
// Without a queue that can be written or read, NewRoute returns nil, and the last error of at.
func NewRoute(mqs []*rmqpb.MessageQueue, at func(*rmqpb.Broker) (*remote.Server, error)) (_ *Route, unusable error) {
	r := &Route{by: map[string]Broker{}}
	for _, mq := range mqs {
		if mq.GetBroker().GetId() != masterBroker {
			continue
		}
		ep, err := at(mq.GetBroker())
		if err != nil {
			unusable = err
			continue
		}
		for _, kind := range mq.GetAcceptMessageTypes() {
			if r.Accepts == nil {
				r.Accepts = map[rmqpb.MessageType]bool{}
			}
			r.Accepts[kind] = true
		}
		p := mq.GetPermission()
		if p == rmqpb.Permission_WRITE || p == rmqpb.Permission_READ_WRITE {
			r.ByGroup = append(r.ByGroup, Queue{ep, mq.GetBroker().GetName(), mq.GetId()})
		}
		if p == rmqpb.Permission_READ || p == rmqpb.Permission_READ_WRITE {
			r.by[mq.GetBroker().GetName()] = Broker{ep, mq.GetBroker()}
		}
	}
	if len(r.ByGroup) == 0 && len(r.by) == 0 {
		return nil, unusable
	}
	slices.SortFunc(r.ByGroup, func(a, b Queue) int {
		return cmp.Or(cmp.Compare(a.broker, b.broker), cmp.Compare(a.ID, b.ID))
	})
	r.Interleaved = interleave(r.ByGroup)
	r.At = map[string]Queue{}
	for _, q := range r.ByGroup {
		if _, ok := r.At[q.Server.Key]; !ok {
			r.At[q.Server.Key] = q
			r.Servers = append(r.Servers, q.Server)
		}
	}
	for _, b := range r.by {
		r.Readers = append(r.Readers, b)
	}
	slices.SortFunc(r.Readers, func(a, b Broker) int { return cmp.Compare(a.PB.GetName(), b.PB.GetName()) })
	return r, nil
}

// Same reports whether the routes have the same queues on the same servers, and accept messages of
// the same types.
func (r *Route) Same(o *Route) bool {
	return slices.Equal(r.ByGroup, o.ByGroup) && maps.Equal(r.Accepts, o.Accepts) && slices.EqualFunc(r.Readers, o.Readers, Broker.Same)
}

// Same reports whether both are one broker at one address.
func (b Broker) Same(o Broker) bool {
	return b.Server == o.Server && b.PB.GetName() == o.PB.GetName()
}

// forGroup returns the queue of a message group: always the same as long as
// the set of writable queues is.
func (r *Route) forGroup(group string) Queue {
	h := fnv.New32a()
	h.Write([]byte(group))
	return r.ByGroup[h.Sum32()%uint32(len(r.ByGroup))]
}

// Leads reports whether all messages may go to the server at endpoint.
func (r *Route) Leads(endpoint string, msgs []*tidegate.Message) bool {
	if _, ok := r.At[endpoint]; !ok {
		return false
	}
	for _, m := range msgs {
		if m.MessageGroup != "" && r.forGroup(m.MessageGroup).Server.Key != endpoint {
			return false
		}
	}
	return true
}
