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
