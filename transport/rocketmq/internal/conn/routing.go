package conn

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// masterBroker is the broker id of the server that takes writes; the others of
// the same name are its copies.
const masterBroker = 0

// A Queue is one that can be written to.
type Queue struct {
	Server *Server
	broker string
	ID     int32
}

// A Route has the queues of a topic. It is never changed.
type Route struct {
	ByGroup     []Queue                    // writable, by broker and id; message groups are hashed over them
	Interleaved []Queue                    // the same, neighbours on different brokers, for messages without a group
	At          map[string]Queue           // the first of each server, by its address
	Servers     []*Server                  // of these
	Accepts     map[rmqpb.MessageType]bool // types of messages; nil if unknown
	Readers     []Broker                   // that have a readable queue, by name
	by          map[string]Broker          // readers by name
}

// A Broker is one that can be read from.
type Broker struct {
	Server *Server
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

// NewRoute makes a route of the queues that a server named. at returns the endpoint of a broker. A
// queue whose permission is not known can be neither written nor read. Without a queue that can be
// written or read, NewRoute returns nil, and the last reason why a queue was not usable.
func NewRoute(mqs []*rmqpb.MessageQueue, at func(*rmqpb.Broker) (*Server, error)) (_ *Route, unusable error) {
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
		if _, known := rmqpb.Permission_name[int32(p)]; !known {
			unusable = fmt.Errorf("queue %d of broker %q has the permission %d, which this version does not know; update the client", mq.GetId(), mq.GetBroker().GetName(), p)
		}
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

// forGroup returns the queue of a message group or lite topic: always the same as long as
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
		if group := m.OrderKey(); group != "" && r.forGroup(group).Server.Key != endpoint {
			return false
		}
	}
	return true
}

// Queue numbers. The contract names a queue by one number, RocketMQ by broker
// and id. A broker's place in the topic makes one of the two:
//
//	number      queue
//	-1          any queue of the brokers in turn (transport.AnyQueue)
//	-2-b        any queue of broker b
//	b<<20 | id  queue id of broker b, so with one broker the id itself
const brokerShift = 20

// ForgetAfter is after how many refreshes without use a route is dropped,
// and a server that nothing names any more.
const ForgetAfter = 10

// A place is a broker's part of the queue numbers. Parts do not overlap.
type place struct {
	number int
	seen   time.Time // in a route
}

// Places are the brokers in a topic's routes of late. The zero value has none. Goroutines may
// share it.
type Places struct {
	mu     sync.Mutex
	byName map[string]*place // guarded by mu
	given  int               // guarded by mu: how many brokers ever got one
}

// Note gives every broker of r a place, and forgets those of brokers that were in no route for
// ForgetAfter refreshes.
func (l *Places) Note(r *Route, refresh time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, b := range r.Readers {
		p := l.byName[b.PB.GetName()]
		if p == nil {
			p = &place{number: l.given}
			l.given++
			if l.byName == nil {
				l.byName = map[string]*place{}
			}
			l.byName[b.PB.GetName()] = p
		}
		p.seen = now
	}
	maps.DeleteFunc(l.byName, func(_ string, p *place) bool { return now.Sub(p.seen)/ForgetAfter > refresh })
}

// Source returns the broker of r and the ID of the queue there for a queue number. next counts the
// receives from any queue.
func (l *Places) Source(r *Route, next *atomic.Uint64, number int) (b Broker, id int32, ok bool) {
	if len(r.Readers) == 0 {
		return b, 0, false
	}
	if number == transport.AnyQueue {
		n := next.Add(1) - 1
		return r.Readers[n%uint64(len(r.Readers))], transport.AnyQueue, true
	}
	wanted := number >> brokerShift
	id = int32(number & (1<<brokerShift - 1))
	if number < 0 {
		wanted, id = -2-number, transport.AnyQueue
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range r.Readers {
		if p := l.byName[b.PB.GetName()]; p != nil && p.number == wanted {
			return b, id, true
		}
	}
	return Broker{}, 0, false
}

// Numbers returns the numbers of the assigned queues that r lets us read from, in order.
func (l *Places) Numbers(r *Route, assigned []*rmqpb.Assignment) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	var numbers []int
	for _, a := range assigned {
		mq := a.GetMessageQueue()
		name := mq.GetBroker().GetName()
		p := l.byName[name]
		if _, known := r.by[name]; !known || p == nil {
			continue
		}
		switch {
		case mq.GetId() >= 0:
			numbers = append(numbers, p.number<<brokerShift|int(mq.GetId()))
		case len(r.Readers) == 1:
			numbers = append(numbers, transport.AnyQueue)
		default:
			numbers = append(numbers, -2-p.number)
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// excluded returns which of the servers sends leave out: those that tripped first,
// at most half. trips has the number of each one's trip, 0 for none.
func excluded(trips []int64) []bool {
	out := make([]bool, len(trips))
	for range len(trips) / 2 {
		first := -1
		for i, n := range trips {
			if n != 0 && !out[i] && (first < 0 || n < trips[first]) {
				first = i
			}
		}
		if first < 0 {
			break
		}
		out[first] = true
	}
	return out
}

// Excludes returns the servers of r that sends leave out; nil if there are none.
func (r *Route) Excludes() (out []*Server) {
	if len(r.Servers) < 2 || !slices.ContainsFunc(r.Servers, func(e *Server) bool { return e.Tripped.Load() != 0 }) {
		return nil
	}
	trips := make([]int64, len(r.Servers))
	for i, e := range r.Servers {
		trips[i] = e.Tripped.Load()
	}
	for i, is := range excluded(trips) {
		if is {
			out = append(out, r.Servers[i])
		}
	}
	return out
}

// Choose returns the queue for a message: its group's, or the next in turn on a
// server that is neither excluded nor in avoid, if there is one. It may be one on an
// excluded server that the message is to probe. next counts the messages without a group.
func (r *Route) Choose(next *atomic.Uint64, group string, avoid []string) (q Queue, probe bool) {
	if group != "" {
		return r.forGroup(group), false
	}
	out := r.Excludes()
	for _, e := range out {
		if !slices.Contains(avoid, e.Key) && e.MayProbe(time.Now()) {
			return r.At[e.Key], true
		}
	}
	n := next.Add(1) - 1
	for _, avoided := range [][]string{avoid, nil} {
		for i := range uint64(len(r.Interleaved)) {
			if q := r.Interleaved[(n+i)%uint64(len(r.Interleaved))]; !slices.Contains(out, q.Server) && !slices.Contains(avoided, q.Server.Key) {
				return q, false
			}
		}
	}
	return r.Interleaved[n%uint64(len(r.Interleaved))], false // cannot happen: half of the servers are not excluded
}

// Ranked reports whether the topic takes messages of type PRIORITY, and none of type NORMAL. A
// message without a priority has the lowest one then.
func (r *Route) Ranked() bool {
	return r.Accepts[rmqpb.MessageType_PRIORITY] && !r.Accepts[rmqpb.MessageType_NORMAL]
}

// Takes reports whether the topic takes messages of m's type. A message with another
// fault is left to the server, which knows which of its faults counts.
func (r *Route) Takes(m *tidegate.Message) bool {
	is := wire.TypeOf(m)
	return r.Accepts == nil || r.Accepts[rmqpb.MessageType_MESSAGE_TYPE_UNSPECIFIED] || r.Accepts[is] ||
		is == rmqpb.MessageType_NORMAL && r.Ranked() || m.Validate(math.MaxInt) != nil
}

// Types returns the names of the types that the topic takes.
func (r *Route) Types() string {
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(r.Accepts)) {
		names = append(names, kind.String())
	}
	return strings.Join(names, ", ")
}

// Remedy returns the remedy for a message of the wrong type.
func Remedy(is rmqpb.MessageType, accepts map[rmqpb.MessageType]bool) string {
	switch {
	case is == rmqpb.MessageType_NORMAL && accepts[rmqpb.MessageType_FIFO]:
		return "; set MessageGroup, or create the topic as NORMAL"
	case is == rmqpb.MessageType_NORMAL && accepts[rmqpb.MessageType_DELAY]:
		return "; set DeliverAt, or create the topic as NORMAL"
	case is == rmqpb.MessageType_NORMAL && accepts[rmqpb.MessageType_LITE]:
		return "; set LiteTopic, or create the topic as NORMAL"
	case is == rmqpb.MessageType_LITE:
		return "; leave LiteTopic empty, or create the topic as LITE (RocketMQ from 5.5.0 on, with enableLmq and enableMultiDispatch)"
	case is == rmqpb.MessageType_PRIORITY:
		return "; leave Priority 0, or create the topic as PRIORITY (RocketMQ from 5.4.0 on)"
	case accepts[rmqpb.MessageType_TRANSACTION] && len(accepts) == 1:
		return "; send it as part of a transaction, or create the topic as " + is.String()
	}
	return "; create the topic as " + is.String()
}
