package producer

import (
	"context"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A request is the job of sending messages in one request.
type request struct {
	lane   *lane
	info   transport.Lane // as the lane was when the request was formed
	items  []*item
	alive  int // items that are still wanted
	bytes  int
	pauses int           // of the lane when the request began
	share  time.Duration // the smallest share of its messages
	limit  int           // the smallest limit of its messages, 0 if there is none
	sent   bool          // the transport has been called, and has not returned
	began  time.Time     // then

	attempt attempt // without a ctx as long as the request waits for the limiter

	oneItem    [1]*item // saves allocations
	oneMessage [1]*tidegate.Message
	oneOutcome [1]outcome
}

// cancel ends the call of the transport, if there is one.
func (r *request) cancel() {
	if r.attempt.cancel != nil {
		r.attempt.cancel()
	}
}

// An attempt is the ctx of a job. The request of a single message goes on with the
// ctx of its ask: both are one attempt.
type attempt struct {
	ctx    context.Context //nolint:containedctx // lives as long as the job
	cancel context.CancelFunc
}

// take forms a request for l, which is free: of head if it is set, of the
// message groups that wait for l, and of units without a message group. If
// alone is set, it has only the first of these messages.
func (q *queue) take(l *lane, head *unit, now time.Time, alone bool) *request {
	r := &request{lane: l, info: l.Lane}
	r.items = r.oneItem[:0]
	if alone {
		r.limit = 1
	}
	avoided := head != nil && head.items.first.value.avoid == l.Endpoint // the transport has no other lane
	if head == nil {
		head = l.bound.first.value
	}
	for u := head; u != nil; {
		if !r.fill(u, now, q.share) {
			break
		}
		u.place.leave()
		if alone {
			break
		}
		if u = q.loose(); l.bound.n > 0 {
			u = l.bound.first.value
		} else if u != nil && !avoided && l.Endpoint != "" && u.items.first.value.avoid == l.Endpoint {
			break
		}
	}
	r.alive = len(r.items)
	l.begin(r)
	return r
}

// fill moves messages of u into the request, in order, as many as fit. It
// returns false if not even the first does.
func (r *request) fill(u *unit, now time.Time, share func(*item, time.Time) time.Duration) bool {
	before := len(r.items)
	for u.items.n > 0 {
		it := u.items.first.value
		s := share(it, now)
		if len(r.items) > 0 && (it.due.After(now) || !r.fits(it, s)) {
			break
		}
		if len(r.items) == 0 || s < r.share {
			r.share = s
		}
		if it.limit > 0 && (r.limit == 0 || it.limit < r.limit) {
			r.limit = it.limit
		}
		r.bytes += it.size
		r.items = append(r.items, it)
		it.place.leave()
		it.req = r
		u.flying++
	}
	return len(r.items) > before
}

// fits reports whether a further message may join: within the bounds of the
// lane, of its own limit and those of the others, and with a share of the time
// that is neither too short for the others nor theirs for it.
func (r *request) fits(it *item, share time.Duration) bool {
	n := len(r.items) + 1
	return n <= r.lane.most() &&
		(r.lane.MaxBytes <= 0 || r.bytes+it.size <= r.lane.MaxBytes) &&
		(r.limit == 0 || n <= r.limit) && (it.limit == 0 || n <= it.limit) &&
		share >= r.share/2 && r.share >= share/2
}

// shorten returns the messages of r from the given place on to the queue.
func (q *queue) shorten(r *request, from int, now time.Time) {
	for _, it := range slices.Backward(r.items[from:]) {
		if it.req == r { // otherwise it has left, and counts no more
			r.alive--
		}
		q.giveBack(r, it, now)
	}
	r.items = r.items[:from]
}

// withdraw returns the messages that were ready when the ask began, as a request
// without a lane: if the transport has no lane, it has none for all of them.
func (q *queue) withdraw(a *ask) *request {
	r := &request{}
	for u := range q.ready.all {
		for it := range u.items.all {
			if it.asked >= a.number {
				break // those behind it came later still
			}
			it.place.leave()
			it.req = r
			u.flying++
			r.items = append(r.items, it)
		}
		if u.flying > 0 {
			u.place.leave()
		}
	}
	r.alive = len(r.items)
	return r
}
