package producer

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/plan"
	"github.com/tidegate/tidegate/transport"
)

// maxServers bounds the remembered servers without topics.
const maxServers = 64

// A server sends the messages of topics that share requests (transport.Lane.Topics). Its lock is
// acquired under a topic's lock, and none is acquired under it.
//
// A topic with messages for the server takes its turn. A goroutine begins each request, takes
// messages of the topics whose turn it is, and settles the results topic by topic. A message whose
// caller waits and that no other one can join is sent on its caller's goroutine instead.
type server struct {
	p        *Producer
	endpoint string

	mu    sync.Mutex
	plan  plan.Server[*topic]
	alarm alarm // for the next request
}

// server returns the server of an endpoint.
func (p *Producer) server(endpoint string) *server {
	p.serversMu.Lock()
	defer p.serversMu.Unlock()
	s := p.servers[endpoint]
	if s == nil {
		if len(p.servers) >= maxServers {
			maps.DeleteFunc(p.servers, func(_ string, s *server) bool { return s.idle() })
		}
		s = &server{p: p, endpoint: endpoint}
		p.servers[endpoint] = s
	}
	return s
}

func (s *server) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plan.Idle()
}

// takeTurn gives the topic a turn at the server that can have messages of its queue, or ends its
// turn. The lock of the topic is held.
func (t *topic) takeTurn(now time.Time) {
	var at *server
	l, units := t.queue.Ready(now)
	if units > 0 && !t.p.closed.Load() {
		at = t.serverOf(l)
	}
	if t.at != nil && t.at != at {
		t.at.ready(t, 0, now)
	}
	if t.at = at; at != nil {
		at.ready(t, units, now)
	}
}

// serverOf returns the server of a lane. The lock of the topic is held.
func (t *topic) serverOf(l *lane) *server {
	if t.server == nil || t.server.endpoint != l.Endpoint {
		t.server = t.p.server(l.Endpoint)
	}
	return t.server
}

// alone returns a request of own alone, if that is all that can be sent. The lock of the topic is
// held.
func (t *topic) alone(own *queueItem, now time.Time) *request {
	l := t.queue.Alone(own, now)
	if l == nil || t.p.closed.Load() {
		return nil
	}
	s := t.serverOf(l)
	s.mu.Lock()
	number, ok := s.plan.Own(now)
	s.schedule(now)
	s.mu.Unlock()
	if !ok {
		return nil
	}
	r := t.queue.Take(l, new(plan.Load), now, true)
	r.Call.server, r.Call.number = s, number
	return r
}

// end notes the end of the call at its server. A throttled lane takes no message from here on. The
// lock of the topic is held.
func (c *roundTrip) end(results []transport.SendResult, now time.Time) {
	s := c.server
	switch {
	case c.ride != nil:
		c.ride.charging.Done()
		return
	case s == nil:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended(c.number, results)
	s.begin(now)
}

// ended notes the end of a request with these results. The lock is held.
func (s *server) ended(number int, results []transport.SendResult) {
	accepted, timedOut := false, false
	for i := range results {
		accepted = accepted || results[i].Err == nil
		timedOut = timedOut || errors.Is(results[i].Err, errAttemptTimeout)
	}
	s.plan.Ended(number, accepted, timedOut)
}

// ready notes the units that the server can have of a topic, and begins a request if one can begin.
func (s *server) ready(t *topic, units int, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan.Ready(&t.turn, units)
	s.begin(now)
}

func (s *server) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alarm.at = time.Time{}
	s.begin(time.Now())
}

// begin begins requests and sets the alarm. Close does not wait for Running while a topic has its
// turn, because it has a pending message. The lock is held.
func (s *server) begin(now time.Time) {
	for number, ok := s.plan.Next(now); ok; number, ok = s.plan.Next(now) {
		s.p.ledger.Running.Go(func() { s.work(number) })
	}
	s.schedule(now)
}

// schedule sets the alarm for the next request. The lock is held.
func (s *server) schedule(now time.Time) {
	s.alarm.set(s.plan.WakeAt(now), now, s)
}

// work carries out a request, and those that can begin after it.
func (s *server) work(number int) {
	for ok := true; ok; {
		r := &ride{server: s, number: number, shortest: math.MaxInt64}
		number, ok = r.run()
	}
}

// A part is the request of one topic in a ride.
type part struct {
	topic   *topic
	request *request
}

// A ride is a call of the transport with the requests of several topics.
type ride struct {
	server *server
	number int
	parts  []part
	total  int // messages in parts

	copies   *copySet      // of the messages
	first    *item         // whose message is the first
	shortest time.Duration // share of a message
	await    bool

	wanted atomic.Int64 // parts with a wanted message; and 1 until cancel is set
	cancel context.CancelFunc

	charging sync.WaitGroup // parts whose lanes do not know the results
	ended    []*item        // whose callers are not awake yet
}

// leave notes that a part has no wanted message any longer. The last one cancels the call.
func (r *ride) leave() {
	if r.wanted.Add(-1) == 0 {
		r.cancel()
	}
}

// run fills the request, sends it, and settles the results of each topic. It returns the next
// request of the server, if one can begin. A topic with failures is settled by a goroutine of its
// own, because the decision about them can wait for the server's settings.
func (r *ride) run() (next int, ok bool) {
	s := r.server
	settled := 0
	var results []transport.SendResult
	returned := false
	defer func() {
		if returned {
			return
		}
		// The transport, the limiter or OnAttempt has ended this goroutine.
		for _, part := range r.parts[settled:] {
			part.topic.abandon(nil, part.request)
		}
		s.p.wakeCallers(r.ended)
		if next, ok := s.next(r.number, results); ok {
			s.p.ledger.Running.Go(func() { s.work(next) })
		}
	}()
	r.fill()
	results, err := r.send()
	rest := results
	for _, part := range r.parts {
		c, own := &part.request.Call, rest
		if settled++; err == nil {
			own, rest = rest[:len(c.items)], rest[len(c.items):]
		}
		if err != nil || slices.ContainsFunc(own, func(r transport.SendResult) bool { return r.Err != nil }) {
			s.p.ledger.Running.Go(func() {
				ended, _, _ := part.topic.settle(part.request, own, err, false)
				s.p.wakeCallers(ended)
			})
			continue
		}
		ended, _, _ := part.topic.settle(part.request, own, err, false)
		r.ended = append(r.ended, ended...)
	}
	returned = true
	r.charging.Wait() // no wait for others: each needs the lock of its topic only
	if next, ok = s.next(r.number, results); ok && len(r.ended) > 1 {
		// The next request does not wait for the wake-ups.
		s.p.ledger.Running.Go(func() { s.p.wakeCallers(r.ended) })
	} else {
		s.p.wakeCallers(r.ended)
	}
	return next, ok
}

// next ends a request with these results, and returns the next one if it can begin.
func (s *server) next(number int, results []transport.SendResult) (next int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.ended(number, results)
	next, ok = s.plan.Next(now)
	s.schedule(now)
	return next, ok
}

// fill takes messages of the topics whose turn it is, until one finds no place.
func (r *ride) fill() {
	s := r.server
	var load plan.Load
	r.wanted.Store(1)
	for room := true; room; {
		s.mu.Lock()
		turn := s.plan.First()
		s.mu.Unlock()
		room = turn != nil && turn.Of.join(r, &load)
	}
	s.mu.Lock()
	s.plan.Filled(&load)
	s.begin(time.Now())
	s.mu.Unlock()
}

// join takes messages of the topic into a ride. It returns false if none finds a place.
func (t *topic) join(r *ride, load *plan.Load) (room bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	room = true
	if l, units := t.queue.Ready(now); units > 0 && t.at == r.server && l.Endpoint == t.at.endpoint && !t.p.closed.Load() {
		request := t.queue.Take(l, load, now, false)
		if room = request != nil; room {
			request.Call.ride = r
			r.parts = append(r.parts, part{t, request})
			r.total += len(request.Items)
			r.wanted.Add(1)
			r.charging.Add(1)
			if t.p.opts.Limiter == nil { // otherwise send starts it
				t.start(request, now)
			}
			t.at.ready(t, 0, now) // its next turn is behind those of the others
			t.at = nil
		}
	}
	t.pump(now, nil, false)
	return room
}

// add adds messages of a topic. The lock of the topic is held.
func (r *ride) add(items []*item, messages []*tidegate.Message, shortest time.Duration, await bool) {
	if len(items) == 0 {
		return
	}
	if r.copies == nil {
		r.copies, r.first = copyPool.Get().(*copySet), items[0]
	}
	r.copies.add(messages) // the callers may leave before the end of the request
	r.shortest, r.await = min(r.shortest, shortest), r.await || await
}

// send carries out the request. It returns the results of all parts, or an error for all.
func (r *ride) send() (results []transport.SendResult, err error) {
	p := r.server.p
	if p.opts.Limiter != nil {
		joined := false
		for _, part := range r.parts {
			joined = part.topic.limit(p.opts.Limiter, part.request, joined)
			part.topic.mu.Lock()
			part.topic.start(part.request, time.Now())
			part.topic.mu.Unlock()
		}
	}
	if r.copies == nil {
		return nil, nil
	}
	defer r.copies.Free()
	ctx, alone := context.Background(), len(r.copies.Messages) == 1 // it ends when all callers have left
	if alone {
		ctx = r.first.ctx
	}
	scope := newScope(ctx, !alone, r.await, r.shortest)
	defer scope.cancel()
	r.cancel = scope.cancel
	r.leave()
	p.calls.Add(1)
	defer p.calls.Add(-1)
	results = p.lanes.SendLane(scope.ctx, r.parts[0].request.Info, r.copies.Messages)
	return results, resultsError(r.parts[0].topic.name, len(results), len(r.copies.Messages))
}
