package plan

import (
	"slices"
	"time"

	"github.com/tidegate/tidegate/transport"
)

// A Request is the job of sending messages in one request.
type Request[T Sharer, C any] struct {
	Call C // of the user

	Lane  *Lane[T, C]    // nil if the transport has none
	Info  transport.Lane // as Lane was when the request was formed
	Items []*Item[T, C]
	Alive int  // items that are still wanted
	Own   bool // it has one message, whose caller carries it out

	units   int
	number  int            // in its lane, from 1
	pauses  int            // of the lane when the request began
	cuts    int            // likewise
	oneItem [1]*Item[T, C] // saves an allocation
}

// Take forms a request of the units that [Queue.Ready] counted for l, or of own alone if that is
// set. It adds the messages to load, which may have messages of other topics. It returns nil if no
// message fits.
func (q *Queue[T, C]) Take(l *Lane[T, C], load *Load, now time.Time, own bool) *Request[T, C] {
	q.askAt = time.Time{}
	head := l.bound.First()
	if head == nil && l == q.only {
		head = q.loose.First()
	}
	if head == nil || load.Full() {
		return nil
	}
	return q.take(l, head, load, now, own)
}

// take forms a request for l, which is free: of head, of the message groups that wait for l, and of
// units without a message group. If own is set, it has only the first of these messages.
func (q *Queue[T, C]) take(l *Lane[T, C], head *unit[T, C], load *Load, now time.Time, own bool) *Request[T, C] {
	r := &Request[T, C]{Own: own}
	r.Lane, r.Info = l, l.Lane
	r.Items = r.oneItem[:0]
	if own {
		load.limit = 1
	}
	onlyLane := l == q.only || head.group == "" && head.items.First().Avoid == l.Endpoint // the transport has no other one
	for u := head; u != nil; {
		if !r.fill(u, load, now) {
			break
		}
		r.units++
		u.place.Leave()
		if own {
			break
		}
		if u = l.bound.First(); u != nil {
			continue
		}
		if u = q.loose.First(); u != nil && (l.shared() && l != q.only || !onlyLane && l.Endpoint != "" && u.items.First().Avoid == l.Endpoint ||
			u.items.First().blocked(l, now)) {
			break
		}
	}
	if r.Alive = len(r.Items); r.Alive == 0 {
		return nil
	}
	load.topics++
	load.units += r.units
	l.begin(r, now)
	return r
}

// fill moves messages of u into the request, in order, as many as fit. It
// returns false if not even the first does.
func (r *Request[T, C]) fill(u *unit[T, C], load *Load, now time.Time) bool {
	before := len(r.Items)
	for u.items.Len() > 0 {
		it := u.items.First()
		share := it.Of.Share(now)
		if load.messages > 0 && (it.Due.After(now) || it.blocked(r.Lane, now) || r.Lane.probing && len(r.Items) > 0 ||
			!load.fits(r.Lane.MaxMessages, r.Lane.MaxBytes, it.Size, it.Limit, share)) {
			break
		}
		load.add(it.Size, it.Limit, share)
		r.Items = append(r.Items, it)
		it.place.Leave()
		it.req, u.req = r, r
		u.flying++
	}
	return len(r.Items) > before
}

// Shorten returns the messages of r from the given place on to the queue. Message groups that can
// be sent keep their lane: r has not tried it, and an ask for each of the groups in each request
// would be quadratic.
func (q *Queue[T, C]) Shorten(r *Request[T, C], from int, now time.Time) {
	for _, it := range slices.Backward(r.Items[from:]) {
		if it.req == r { // otherwise it has left, and counts no more
			r.Alive--
		}
		u := it.unit
		q.giveBack(r, it, now)
		if u.place.In(&q.laneless) && !u.items.First().blocked(r.Lane, now) {
			r.Lane.await(now)
			u.place.Leave()
			r.Lane.bound.PushFront(&u.place)
		}
	}
	r.Items = r.Items[:from]
}

// Withdraw returns the messages that were ready when the ask began, as a request without a lane. It
// is for a transport without a lane for the ask: that transport has no lane for any of these
// messages. Message groups that wait for a lane keep it.
func (q *Queue[T, C]) Withdraw(a *Ask[T, C]) *Request[T, C] {
	r := &Request[T, C]{}
	if a.of != nil {
		return r
	}
	for _, units := range []*List[*unit[T, C]]{&q.loose, &q.laneless} {
		for u := range units.All {
			q.withdraw(r, u, a.number)
		}
	}
	r.Alive = len(r.Items)
	return r
}

// withdraw moves the messages of u that came before the ask with the given number into r.
func (q *Queue[T, C]) withdraw(r *Request[T, C], u *unit[T, C], asked uint64) {
	for it := range u.items.All {
		if it.asked >= asked {
			break // those behind it came later still
		}
		it.place.Leave()
		it.req, u.req = r, r
		u.flying++
		r.Items = append(r.Items, it)
	}
	if u.flying > 0 {
		u.place.Leave()
	}
}

const (
	// sharedWindow is the number of requests under way with which a server that takes several
	// messages in one request is full. Messages that arrive meanwhile share the next request.
	sharedWindow = 2

	// gather is the longest time for which a second request waits for further messages.
	gather = 5 * time.Millisecond

	// A full lane or server takes another request if none began for patience: the responses to
	// those under way may be lost. Each success then opens the window of a lane. While the server
	// does not respond at all, the window remains, so that few messages lose their attempts.
	// Requests with several messages wait for sharedPatience, because a request for each pause of a
	// disk would make them small.
	patience       = 20 * time.Millisecond
	sharedPatience = 100 * time.Millisecond

	// maxTopics bounds the topics of one request, so that a response has room for the wait of each.
	maxTopics = 256
)

// A pace is the gathering rule: it decides when another request to a server begins.
type pace struct {
	flying   int       // requests under way
	recent   int       // units in recent requests: the largest number, reduced by each request
	begun    time.Time // start of the newest request
	begins   int       // requests so far; each has its own number
	newest   int       // largest number of a request that the server has accepted
	timedOut int       // largest number of one to which it did not respond in time
}

// begin notes the start of a request and returns its number.
func (p *pace) begin(now time.Time) int {
	p.flying++
	p.begins++
	p.begun = now
	return p.begins
}

// filled notes the number of units in the request that began last.
func (p *pace) filled(units int) { p.recent = max(units, p.recent*3/4) }

// patient reports whether another request begins after the patience although full are under way.
func (p *pace) patient() bool { return p.flying < maxWindow && p.newest >= p.timedOut }

// room reports whether another request can begin, where full is the number of them at once.
func (p *pace) room(full int, patience time.Duration, now time.Time) bool {
	return p.flying < full || p.patient() && !now.Before(p.begun.Add(patience))
}

// enough reports whether n units need not wait for further ones. That is so if
//   - no other request is under way,
//   - the request is at least half as large as the recent ones, or
//   - the wait for further units is over.
//
// Without the rule about the size, requests of one message alternate with requests of all other
// messages when many callers wait for their results.
func (p *pace) enough(n int, now time.Time) bool {
	return p.flying == 0 || n >= p.recent/2 || !now.Before(p.begun.Add(gather))
}

// A Load is what a request contains so far: of one topic, or of several in turn. The zero value is
// empty.
type Load struct {
	topics, units, messages, bytes int

	share time.Duration // the smallest share of its messages
	limit int           // the smallest limit of its messages, 0 if there is none
}

// Full reports whether no other topic can join.
func (l *Load) Full() bool { return l.topics == maxTopics }

// add adds a message with its share of the time.
func (l *Load) add(size, limit int, share time.Duration) {
	if l.messages == 0 || share < l.share {
		l.share = share
	}
	if limit > 0 && (l.limit == 0 || limit < l.limit) {
		l.limit = limit
	}
	l.messages++
	l.bytes += size
}

// fits reports whether a further message may join. It may if
//   - the request stays within the bounds of the lane,
//   - it stays within the limits of all of its messages, and
//   - neither the message's share of the time nor the request's is less than half of the other.
func (l *Load) fits(most, mostBytes, size, limit int, share time.Duration) bool {
	n := l.messages + 1
	return n <= most && (mostBytes <= 0 || l.bytes+size <= mostBytes) &&
		(l.limit == 0 || n <= l.limit) && (limit == 0 || n <= limit) &&
		share >= l.share/2 && l.share >= share/2
}
