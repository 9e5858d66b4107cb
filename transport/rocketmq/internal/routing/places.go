package routing

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

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
