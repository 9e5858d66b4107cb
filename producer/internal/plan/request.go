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
	bytes   int
	number  int            // in its lane, from 1
	pauses  int            // of the lane when the request began
	cuts    int            // likewise
	share   time.Duration  // the smallest share of its messages
	limit   int            // the smallest limit of its messages, 0 if there is none
	oneItem [1]*Item[T, C] // saves an allocation
}

// take forms a request for l, which is free: of head if it is set, of the
// message groups that wait for l, and of units without a message group. If
// own is set, it has only the first of these messages.
func (q *Queue[T, C]) take(l *Lane[T, C], head *unit[T, C], now time.Time, own bool) *Request[T, C] {
	r := &Request[T, C]{}
	r.Lane, r.Info = l, l.Lane
	r.Items = r.oneItem[:0]
	if r.Own = own; own {
		r.limit = 1
	}
	onlyLane := head != nil && head.items.First().Avoid == l.Endpoint // the transport has no other one
	if head == nil {
		head = l.bound.First()
	}
	for u := head; u != nil; {
		if !r.fill(u, now) {
			break
		}
		r.units++
		u.place.Leave()
		if own {
			break
		}
		if u = q.loose.First(); l.bound.Len() > 0 {
			u = l.bound.First()
		} else if u != nil && (!onlyLane && l.Endpoint != "" && u.items.First().Avoid == l.Endpoint || u.items.First().blocked(l, now)) {
			break
		}
	}
	r.Alive = len(r.Items)
	l.begin(r, now)
	return r
}

// fill moves messages of u into the request, in order, as many as fit. It
// returns false if not even the first does.
func (r *Request[T, C]) fill(u *unit[T, C], now time.Time) bool {
	before := len(r.Items)
	for u.items.Len() > 0 {
		it := u.items.First()
		s := it.Of.Share(now)
		if len(r.Items) > 0 && (it.Due.After(now) || it.blocked(r.Lane, now) || !r.fits(it, s)) {
			break
		}
		if len(r.Items) == 0 || s < r.share {
			r.share = s
		}
		if it.Limit > 0 && (r.limit == 0 || it.Limit < r.limit) {
			r.limit = it.Limit
		}
		r.bytes += it.Size
		r.Items = append(r.Items, it)
		it.place.Leave()
		it.req, u.req = r, r
		u.flying++
	}
	return len(r.Items) > before
}

// fits reports whether a further message may join the request. It may if
//   - the request stays within the bounds of the lane,
//   - it stays within the limits of all of its messages, and
//   - neither the message's share of the time nor the request's is less than half of the other.
func (r *Request[T, C]) fits(it *Item[T, C], share time.Duration) bool {
	n := len(r.Items) + 1
	return n <= r.Lane.most() &&
		(r.Lane.MaxBytes <= 0 || r.bytes+it.Size <= r.Lane.MaxBytes) &&
		(r.limit == 0 || n <= r.limit) && (it.Limit == 0 || n <= it.Limit) &&
		share >= r.share/2 && r.share >= share/2
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
