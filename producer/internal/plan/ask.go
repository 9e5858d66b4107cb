package plan

import (
	"slices"
	"time"

	"github.com/tidegate/tidegate/transport"
)

// recheck is the interval in which a queue whose units wait for lanes asks the transport again. A
// transport does not report that it has other lanes, for example after the failover has switched.
const recheck = time.Second

// An Ask is the job of asking the transport for lanes: for one loose unit, or for several message
// groups.
type Ask[T Sharer, C any] struct {
	Request transport.LaneRequest // for the first unit
	Head    *Item[T, C]           // the first message of the first unit
	Own     bool                  // for Head alone, whose caller carries out the ask and its request
	Lanes   []transport.Lane      // the lanes that the user got so far: one for each of Requests, in order

	of      *Lane[T, C] // of a unit that waits for it and asks again; nil for units without a lane
	units   []*unit[T, C]
	number  uint64
	oneUnit [1]*unit[T, C] // saves allocations
	oneLane [1]transport.Lane
}

// Requests yields the request for each lane that is asked for, in order.
func (a *Ask[T, C]) Requests(yield func(transport.LaneRequest) bool) {
	for _, u := range a.units {
		r := a.Request
		r.MessageGroup = u.group
		if !yield(r) {
			return
		}
	}
}

// maxAsk bounds the message groups of one ask.
const maxAsk = 128

// open reports whether a lane that the transport has takes the loose units now, with it as the
// first message.
func (q *Queue[T, C]) open(it *Item[T, C], now time.Time) bool {
	return slices.ContainsFunc(q.lanes, func(l *Lane[T, C]) bool {
		if l.lost || it.blocked(l, now) || !l.takes(q.loose.Len(), q.Crowded, now) {
			return false
		}
		others, _ := q.others(it, now)
		return l.Endpoint != it.Avoid || !others
	})
}

// others reports whether the transport has lanes that are not paused, and whether it has lanes at
// all, beside the lane that the message avoids.
func (q *Queue[T, C]) others(it *Item[T, C], now time.Time) (open, known bool) {
	for _, l := range q.lanes {
		if !l.lost && l.Endpoint != it.Avoid {
			known = true
			open = open || !l.paused(now)
		}
	}
	return open, known
}

// avoided returns the endpoints that the lane of a loose message should not have. The transport
// returns one of them nevertheless if it has no other lane.
func (q *Queue[T, C]) avoided(it *Item[T, C], now time.Time) (endpoints []string) {
	if open, known := q.others(it, now); it.Avoid != "" && (open || !known) { // not if all others are paused
		endpoints = append(endpoints, it.Avoid)
	}
	for _, l := range q.lanes {
		if l.Endpoint != "" && (it.blocked(l, now) || !l.takes(q.loose.Len(), q.Crowded, now)) && !slices.Contains(endpoints, l.Endpoint) {
			endpoints = append(endpoints, l.Endpoint)
		}
	}
	return endpoints
}

// askGroups begins to ask for the lanes of message groups.
func (q *Queue[T, C]) askGroups(head *unit[T, C], own *Item[T, C], now time.Time) *Ask[T, C] {
	a := q.newAsk(head, own, now)
	if a.Own {
		return a
	}
	for u := range q.laneless.All {
		if len(a.units) == maxAsk {
			break
		}
		if u != head {
			a.units = append(a.units, u)
		}
	}
	return a
}

// maxRecheck bounds the message groups of one recheck. A few are enough: if one of them has another
// lane now, all units that wait for the same lane ask again.
const maxRecheck = 8

// recheck begins to ask whether units that wait for l still have that lane: the first loose one,
// and the first message groups.
func (q *Queue[T, C]) recheck(l *Lane[T, C], now time.Time) *Ask[T, C] {
	lists := [...]*List[*unit[T, C]]{&l.bound, &l.held[1]}
	var units []*unit[T, C]
	if u := l.held[0].First(); u != nil {
		units = append(units, u)
	}
	for _, groups := range lists {
		for u := range groups.All {
			if len(units) > maxRecheck {
				break
			}
			units = append(units, u)
		}
	}
	a := q.newAsk(units[0], nil, now)
	a.of, a.units = l, units
	return a
}

// newAsk begins to ask for the lane of one unit: for own alone if that is its first message.
func (q *Queue[T, C]) newAsk(head *unit[T, C], own *Item[T, C], now time.Time) *Ask[T, C] {
	q.routing = true
	q.asked++
	it := head.items.First()
	a := &Ask[T, C]{Head: it, Own: it == own, number: q.asked, Request: transport.LaneRequest{Topic: it.Message.Topic, MessageGroup: head.group}}
	if head.group == "" {
		a.Request.Avoid = q.avoided(it, now)
	}
	a.oneUnit[0] = head
	a.units, a.Lanes = a.oneUnit[:], a.oneLane[:0]
	return a
}

// Routed notes the end of an ask: the units have the lanes in a.Lanes, and the last ones have none
// if the transport returned fewer. It returns a request if one can begin: for Head alone if the ask
// is.
func (q *Queue[T, C]) Routed(a *Ask[T, C], now time.Time) *Request[T, C] {
	q.routing = false
	if a.of != nil {
		a.of.recheckAt = now.Add(recheck)
	}
	for i, info := range a.Lanes {
		if l := q.lane(info, now); a.of != nil && a.of != l && (a.units[i].group != "" || !slices.Contains(a.Request.Avoid, l.Endpoint)) {
			q.unbind(a.of) // the others may have another lane too
		}
	}
	var r *Request[T, C]
	for i, info := range a.Lanes {
		if l := q.lane(info, now); a.units[i].group != "" {
			q.bind(a.units[i], l, now)
		} else {
			r = q.routedLoose(a, l, now)
		}
	}
	if r != nil || !a.Own || len(a.Lanes) == 0 {
		return r // Next forms the requests
	}
	l := q.lane(a.Lanes[0], now)
	if l.bound.Len() == 1 && l.bound.First() == a.Head.unit && l.takes(1+q.loose.Len(), q.Crowded, now) {
		return q.take(l, nil, now, true)
	}
	return nil
}

// bind makes a message group wait for its lane l.
func (q *Queue[T, C]) bind(u *unit[T, C], l *Lane[T, C], now time.Time) {
	switch {
	case !u.place.In(&q.laneless): // it has left meanwhile, or l is its lane already
	case u.items.First().blocked(l, now):
		q.hold(u, l, now)
	default:
		q.join(u, &l.bound, l, now)
	}
}

// routedLoose passes the lane of a loose unit to the queue.
func (q *Queue[T, C]) routedLoose(a *Ask[T, C], l *Lane[T, C], now time.Time) *Request[T, C] {
	none := l.Endpoint == "" || slices.Contains(a.Request.Avoid, l.Endpoint) // the transport has no other lane
	if none {
		for _, other := range q.lanes {
			other.lost = other.lost || other != l && !slices.Contains(a.Request.Avoid, other.Endpoint)
		}
	}
	if !l.takes(q.loose.Len(), q.Crowded, now) {
		if none { // otherwise the lane has become busy since, and the next ask avoids it
			q.askAt = now.Add(recheck)
		}
		return nil
	}
	head := a.units[0]
	if a.of != nil && !head.place.In(&q.loose) {
		return nil // it still waits for its lane
	}
	if !head.place.In(&q.loose) { // it left meanwhile
		if head = q.loose.First(); head == nil || a.Own {
			return nil
		}
	}
	if head.items.First().blocked(l, now) {
		q.hold(head, l, now)
		return nil
	}
	return q.take(l, head, now, a.Own)
}
