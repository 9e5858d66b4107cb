package conn

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

const (
	// together is the number of requests under way after which sends wait. It is the number of
	// requests that a producer has under way for one topic.
	together = 2

	// gather is the longest time for which a second request waits for further sends.
	gather = 5 * time.Millisecond

	// slow is the age from which on a request does not count. Other topics do not wait for one
	// whose response is lost.
	slow = 50 * time.Millisecond

	// The largest request: the limits of a request of one topic, and for its topics so many that a
	// response has room for the wait of each.
	maxMessages = 1000
	maxBytes    = 16 << 20
	maxSends    = 256
)

// A Combined is the response to a send, or why there is none. Response can be valid together with
// Err.
type Combined struct {
	Response *rmqpb.SendMessageResponse
	Trailer  metadata.MD
	Err      *tidegate.Error

	// Shared is the number of sends in the request.
	Shared int

	// Left: ctx ended before the response. The request may have been sent if Sent is set.
	Left, Sent bool
}

// A Combiner combines the sends to one server. Several goroutines may call Send.
type Combiner struct {
	do      func(ctx context.Context, req *wire.Sendings) Combined
	timeout time.Duration

	mu      sync.Mutex // guards the rest, and all passengers and rides
	rides   []*ride    // under way
	begun   time.Time  // start of the newest ride
	recent  int        // sends in recent rides: the largest number, reduced by each ride
	waiting []*passenger
	timer   *time.Timer // runs while sends wait; nil before the first
}

// A ride is a request under way.
type ride struct {
	begun   time.Time
	aboard  []*passenger
	boarded bool          // it is being encoded, and no send can leave without a trace
	left    int           // passengers that left since
	encoded chan struct{} // closed when nothing reads the messages any longer
	cancel  context.CancelFunc
}

// A passenger is a send that waits or shares a ride.
type passenger struct {
	send     *wire.Sending
	size     int
	deadline time.Time
	ride     *ride         // nil while it waits
	out      chan Combined // of one element; Shared is 0 if the send is to go alone, in its ride
}

// NewCombiner returns a Combiner. do makes a request of several sends; ctx has a deadline, which is
// timeout from now for sends without one.
func NewCombiner(timeout time.Duration, do func(ctx context.Context, req *wire.Sendings) Combined) *Combiner {
	return &Combiner{do: do, timeout: timeout}
}

// Send sends s with alone, or in a request with others. It blocks until there is a result or ctx
// ends. Nothing reads the messages afterwards.
func (c *Combiner) Send(ctx context.Context, s *wire.Sending, alone func() Combined) Combined {
	now := time.Now()
	c.mu.Lock()
	if len(c.waiting) == 0 && c.takes(1, now) {
		r := c.begin(now, nil)
		c.mu.Unlock()
		return c.alone(r, alone)
	}
	p := &passenger{send: s, size: s.SizeBound(), out: make(chan Combined, 1)}
	p.deadline, _ = ctx.Deadline()
	if p.deadline.IsZero() {
		p.deadline = now.Add(c.timeout)
	}
	c.waiting = append(c.waiting, p)
	c.dispatch(now)
	c.mu.Unlock()
	select {
	case out := <-p.out:
		if out.Shared == 0 {
			return c.alone(p.ride, alone)
		}
		return out
	case <-ctx.Done():
		return c.leave(p)
	}
}

// alone makes a request of one send, in its caller's goroutine.
func (c *Combiner) alone(r *ride, do func() Combined) Combined {
	defer c.end(r)
	out := do()
	out.Shared = 1
	return out
}

// leave ends the wait of a send whose ctx has ended.
func (c *Combiner) leave(p *passenger) Combined {
	c.mu.Lock()
	r := p.ride
	switch {
	case r == nil:
		c.waiting = slices.DeleteFunc(c.waiting, func(w *passenger) bool { return w == p })
	case r.cancel == nil: // it was to go alone
		c.mu.Unlock()
		c.end(r)
		return Combined{Left: true}
	case !r.boarded:
		r.aboard = slices.DeleteFunc(r.aboard, func(w *passenger) bool { return w == p })
		if len(r.aboard) == 0 {
			r.cancel()
		}
	default:
		if r.left++; r.left == len(r.aboard) {
			r.cancel()
		}
		c.mu.Unlock()
		<-r.encoded // no wait for others: an encoding is under way
		select {
		case out := <-p.out:
			return out
		default:
			return Combined{Left: true, Sent: true}
		}
	}
	c.mu.Unlock()
	return Combined{Left: true}
}

// young returns the number of requests that count.
func (c *Combiner) young(now time.Time) (n int) {
	for _, r := range c.rides {
		if now.Sub(r.begun) < slow {
			n++
		}
	}
	return n
}

// takes reports whether a request of n sends can begin now. A request begins if none is under way;
// a further one if it is at least half as large as the recent ones, or if the wait for sends is
// over.
func (c *Combiner) takes(n int, now time.Time) bool {
	young := c.young(now)
	return young == 0 || young < together && (n >= c.recent/2 || now.Sub(c.begun) >= gather)
}

func (c *Combiner) begin(now time.Time, aboard []*passenger) *ride {
	r := &ride{begun: now, aboard: aboard}
	c.rides = append(c.rides, r)
	c.begun, c.recent = now, max(len(aboard), 1, c.recent*3/4)
	return r
}

// end ends a ride and begins the next.
func (c *Combiner) end(r *ride) {
	c.mu.Lock()
	c.rides = slices.DeleteFunc(c.rides, func(o *ride) bool { return o == r })
	c.dispatch(time.Now())
	c.mu.Unlock()
}

// dispatch begins rides for the sends that wait, as many as may be under way, and sets the timer
// for the others. The lock is held.
func (c *Combiner) dispatch(now time.Time) {
	for len(c.waiting) > 0 && c.takes(len(c.waiting), now) {
		n := c.fitting()
		aboard := slices.Clone(c.waiting[:n])
		c.waiting = slices.Delete(c.waiting, 0, n)
		r := c.begin(now, aboard)
		for _, p := range aboard {
			p.ride = r
		}
		if n == 1 {
			aboard[0].out <- Combined{}
			continue
		}
		last := slices.MaxFunc(aboard, func(a, b *passenger) int { return a.deadline.Compare(b.deadline) })
		// Each passenger leaves at its own deadline, with its own cause.
		ctx, cancel := context.WithDeadline(context.Background(), last.deadline.Add(time.Second))
		r.cancel, r.encoded = cancel, make(chan struct{})
		go c.drive(ctx, r)
	}
	if len(c.waiting) == 0 {
		return
	}
	next := now.Add(slow)
	if c.young(now) < together {
		next = c.begun.Add(gather)
	}
	for _, r := range c.rides {
		if at := r.begun.Add(slow); at.After(now) && at.Before(next) {
			next = at
		}
	}
	if c.timer == nil {
		c.timer = time.AfterFunc(next.Sub(now), c.tick)
		return
	}
	c.timer.Reset(next.Sub(now))
}

// tick begins rides beside those that have become slow.
func (c *Combiner) tick() {
	c.mu.Lock()
	c.dispatch(time.Now())
	c.mu.Unlock()
}

// fitting returns how many of the sends that wait fit into one request, at least one.
func (c *Combiner) fitting() int {
	messages, size := 0, 0
	for n, p := range c.waiting {
		messages += len(p.send.Messages)
		size += p.size
		if n > 0 && (n == maxSends || messages > maxMessages || size > maxBytes) {
			return n
		}
	}
	return len(c.waiting)
}

// drive makes the request of a ride.
func (c *Combiner) drive(ctx context.Context, r *ride) {
	defer r.cancel()
	var encoded sync.Once
	left := func() { encoded.Do(func() { close(r.encoded) }) }
	req := &wire.Sendings{Encoded: left, Take: func() []*wire.Sending {
		c.mu.Lock()
		defer c.mu.Unlock()
		r.boarded = true
		return r.sends()
	}}
	out := c.do(ctx, req)
	left()
	c.mu.Lock()
	r.boarded = true
	c.mu.Unlock()
	for i, one := range divide(out, r.sends()) { // no send leaves any more
		one.Shared = len(r.aboard)
		r.aboard[i].out <- one
	}
	c.end(r)
}

// sends returns the sends aboard. The lock is held, or the ride is boarded.
func (r *ride) sends() []*wire.Sending {
	sends := make([]*wire.Sending, len(r.aboard))
	for i, p := range r.aboard {
		sends[i] = p.send
	}
	return sends
}

// divide divides the result of a request among its sends.
func divide(r Combined, sends []*wire.Sending) []Combined {
	out := make([]Combined, len(sends))
	total := 0
	for _, s := range sends {
		total += len(s.Messages)
	}
	entries := r.Response.GetEntries()
	var waits []string // of the runs
	if v := r.Trailer.Get(wire.TrailerPushBacks); len(v) > 0 {
		waits = strings.Split(v[0], ",")
	}
	run := 0
	for i, s := range sends {
		if i > 0 && s.Topic.GetName() != sends[i-1].Topic.GetName() {
			run++
		}
		one := Combined{Trailer: r.Trailer}
		if waits != nil {
			one.Trailer = nil
			if run < len(waits) && waits[run] != "0" {
				one.Trailer = metadata.Pairs(wire.TrailerPushBack, waits[run])
			}
		}
		if r.Response != nil {
			one.Response = &rmqpb.SendMessageResponse{Status: r.Response.GetStatus(), Entries: entries}
			if n := len(s.Messages); len(entries) == total {
				one.Response.Entries = entries[:n]
				entries, total = entries[n:], total-n
			}
		}
		if r.Err != nil {
			e := *r.Err
			e.Subject = s.Topic.GetName()
			one.Err = &e
		}
		out[i] = one
	}
	return out
}
