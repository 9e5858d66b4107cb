// Package plan orders the messages of one topic and plans their requests. It is
// pure: it neither locks nor waits nor reads a clock. The producer passes the time,
// carries out the jobs that [Queue.Next] returns, and reports their results.
package plan

import (
	"container/heap"
	"slices"
	"time"

	"github.com/tidegate/tidegate/producer/internal/list"
	"github.com/tidegate/tidegate/transport"
)

// A Queue has the messages of one topic. Create one with [New].
//
// Messages are queued in units. The messages of a message group are one unit, which is in one
// request at a time. A message without a message group is its own unit.
type Queue struct {
	ready   list.List[*unit] // units that can be sent and have no lane yet, first come first
	waiting dueUnits         // units whose first message waits for its due time
	groups  map[string]*unit // the message groups that have messages
	lanes   []*Lane

	routing bool   // a job asks the transport for lanes
	stalled bool   // no lane takes the units without a message group now
	enough  int    // the number of these units that ends the stall; 0 if only a finished request does
	asked   uint64 // number of the last ask; orders messages and asks

	newRequest func() *Request
}

// New returns an empty queue. It creates requests with newRequest, so that its user
// can keep a request inside a larger struct.
func New(newRequest func() *Request) Queue {
	return Queue{groups: make(map[string]*unit), newRequest: newRequest}
}

// Empty reports whether the queue has no message outside of requests.
func (q *Queue) Empty() bool { return q.ready.Len()+len(q.waiting)+len(q.groups) == 0 }

// A unit is the messages of one message group, or a single message without one.
type unit struct {
	group  string // empty for a single message
	items  list.List[*Item]
	place  list.Link[*unit] // in Queue.ready or Lane.bound
	heapAt int              // index in Queue.waiting, -1 if it is not there
	flying int              // messages in the request under way
}

// An Ask is the job of asking the transport for lanes: for one unit without a
// message group, or for several message groups.
type Ask struct {
	Request transport.LaneRequest // for the first unit
	Head    *Item                 // the first message of the first unit

	units   []*unit
	number  uint64
	oneUnit [1]*unit // saves allocations
	oneLane [1]transport.Lane
}

// Lanes yields the request for each lane that is asked for, in order.
func (a *Ask) Lanes(yield func(transport.LaneRequest) bool) {
	for _, u := range a.units {
		r := a.Request
		r.MessageGroup = u.group
		if !yield(r) {
			return
		}
	}
}

// Buffer returns an empty slice for the lanes.
func (a *Ask) Buffer() []transport.Lane { return a.oneLane[:0] }

// maxAsk bounds the message groups of one ask.
const maxAsk = 128

// A Job is the next action of the producer: an ask or a request.
type Job struct {
	Ask     *Ask
	Request *Request
}

// Add puts a message at the end of its message group.
func (q *Queue) Add(it *Item, now time.Time) {
	u := q.unitOf(it)
	it.asked = q.asked
	it.unit, it.place.Value = u, it
	u.items.PushBack(&it.place)
	if u.items.Len() == 1 && u.flying == 0 {
		q.settle(u, now, false)
	}
}

func (q *Queue) unitOf(it *Item) *unit {
	if group := it.Message.MessageGroup; group != "" {
		u := q.groups[group]
		if u == nil {
			u = &unit{group: group, heapAt: -1}
			u.place.Value = u
			q.groups[group] = u
		}
		return u
	}
	u := &it.alone
	u.heapAt, u.place.Value = -1, u
	return u
}

// settle moves a unit that is in no request to the list or heap for its state.
func (q *Queue) settle(u *unit, now time.Time, first bool) {
	u.place.Leave()
	if u.heapAt >= 0 {
		heap.Remove(&q.waiting, u.heapAt)
	}
	switch {
	case u.items.Len() == 0:
		if u.group != "" {
			delete(q.groups, u.group)
		}
	case u.items.First().Due.After(now):
		heap.Push(&q.waiting, u)
	case first:
		q.ready.PushFront(&u.place)
	default:
		q.ready.PushBack(&u.place)
	}
}

// Remove takes a message that is no longer wanted out of the queue, or out of its request. The
// request continues for its other messages. Remove returns the request if it has no others.
func (q *Queue) Remove(it *Item, now time.Time) *Request {
	if r := it.req; r != nil {
		it.req = nil
		if r.Alive--; r.Alive == 0 {
			return r
		}
		return nil
	}
	u := it.unit
	if u == nil {
		return nil
	}
	head := u.items.First() == it
	it.place.Leave()
	it.unit = nil
	if head && u.flying == 0 {
		if u.items.Len() > 0 && u.heapAt < 0 && !u.items.First().Due.After(now) {
			return nil // the next message takes its place
		}
		q.settle(u, now, false)
	}
	return nil
}

// Has reports whether the queue has messages of the message group, in requests or not.
func (q *Queue) Has(group string) bool { return q.groups[group] != nil }

// Flying reports whether a message of the message group is in a request.
func (q *Queue) Flying(group string) bool {
	u := q.groups[group]
	return u != nil && u.flying > 0
}

// Group returns the messages of the message group that are in no request, in order.
func (q *Queue) Group(group string) []*Item {
	if u := q.groups[group]; u != nil {
		return slices.Collect(u.items.All)
	}
	return nil
}

// Next returns the next job that can be done now, and false if there is none. If own is set, an ask
// is for own alone.
func (q *Queue) Next(now time.Time, own *Item) (Job, bool) {
	for _, l := range q.lanes {
		if l.bound.Len() > 0 && l.takes(l.bound.Len()+q.ready.Len(), now) {
			return Job{Request: q.take(l, nil, now, false)}, true
		}
	}
	if q.routing || q.ready.Len() == 0 {
		return Job{}, false
	}
	if q.enough > 0 && q.ready.Len() >= q.enough {
		q.stalled, q.enough = false, 0
	}
	head := q.ready.First()
	if q.stalled && head.group == "" {
		if head = q.firstGroup(); head == nil {
			return Job{}, false
		}
	}
	return Job{Ask: q.ask(head, now, own)}, true
}

func (q *Queue) firstGroup() *unit {
	if len(q.groups) == 0 {
		return nil
	}
	for u := range q.ready.All {
		if u.group != "" {
			return u
		}
	}
	return nil
}

// ask begins to ask for the lane of head, and of the message groups beside it.
func (q *Queue) ask(head *unit, now time.Time, own *Item) *Ask {
	q.routing = true
	q.asked++
	it := head.items.First()
	a := &Ask{Request: transport.LaneRequest{Topic: it.Message.Topic}, Head: it, number: q.asked}
	a.oneUnit[0] = head
	a.units = a.oneUnit[:]
	if head.group == "" {
		if it.Avoid != "" {
			a.Request.Avoid = append(a.Request.Avoid, it.Avoid)
		}
		for _, l := range q.lanes {
			if l.Endpoint != "" && l.Endpoint != it.Avoid && !l.takes(q.ready.Len(), now) {
				a.Request.Avoid = append(a.Request.Avoid, l.Endpoint)
			}
		}
		return a
	}
	a.Request.MessageGroup = head.group
	if it == own {
		return a
	}
	for u := range q.ready.All {
		if len(a.units) == maxAsk {
			break
		}
		if u.group != "" && u != head {
			a.units = append(a.units, u)
		}
	}
	return a
}

// Routed passes the lanes of an ask to the queue: one for each unit, except for units without an
// answer of the transport. It returns a request if one can begin. If own is set, the request has
// own alone.
func (q *Queue) Routed(a *Ask, lanes []transport.Lane, now time.Time, own *Item) *Request {
	q.routing = false
	var l *Lane
	for i, info := range lanes {
		u := a.units[i]
		l = q.lane(info, now)
		if u.group != "" && u.place.In(&q.ready) {
			u.place.Leave()
			l.bound.PushBack(&u.place)
		}
	}
	if l == nil {
		return nil
	}
	if a.units[0].group != "" {
		if own != nil && l.bound.Len() == 1 && l.takes(1+q.ready.Len(), now) && l.bound.First() == own.unit {
			return q.take(l, nil, now, true)
		}
		return nil // Next forms the requests
	}
	if !l.takes(q.ready.Len(), now) {
		q.stalled, q.enough = true, 0
		if l.free(now) {
			q.enough = l.recent / 2
		}
		q.lose(a, l)
		return nil
	}
	head := a.units[0]
	if !head.place.In(&q.ready) { // it left meanwhile
		if head = q.loose(); head == nil || own != nil {
			return nil
		}
	}
	return q.take(l, head, now, own != nil)
}

// lose notes the lanes that the transport does not have at present, if it returned l although the
// ask avoids l.
func (q *Queue) lose(a *Ask, returned *Lane) {
	if !slices.Contains(a.Request.Avoid, returned.Endpoint) {
		return
	}
	for _, l := range q.lanes {
		l.lost = l.lost || l != returned && !slices.Contains(a.Request.Avoid, l.Endpoint)
	}
}

// loose returns the first unit in ready if it has no message group.
func (q *Queue) loose() *unit {
	if q.ready.Len() == 0 || q.ready.First().group != "" {
		return nil
	}
	return q.ready.First()
}

// lane returns the queue's record of a lane, brought up to date.
func (q *Queue) lane(info transport.Lane, now time.Time) *Lane {
	for _, l := range q.lanes {
		if l.Endpoint == info.Endpoint {
			l.Lane, l.lost = info, false
			return l
		}
	}
	if len(q.lanes) >= maxLanes {
		for i, l := range q.lanes {
			if l.flying == 0 && l.bound.Len() == 0 && !now.Before(l.PausedUntil) {
				q.lanes = append(q.lanes[:i], q.lanes[i+1:]...)
				break
			}
		}
	}
	l := &Lane{Lane: info, window: FirstWindow}
	q.lanes = append(q.lanes, l)
	return l
}

// Finished reports the end of a request. Those of its messages that are still
// wanted return to the front of their units, and wait until they are due.
func (q *Queue) Finished(r *Request, now time.Time) {
	if r.Lane != nil {
		r.Lane.requestEnded(r)
		q.stalled, q.enough = false, 0
	}
	for _, it := range slices.Backward(r.Items) {
		q.giveBack(r, it, now)
	}
}

// giveBack takes a message out of a request. If it is still wanted, it returns to
// the front of its unit. The messages of a request return in reverse order.
func (q *Queue) giveBack(r *Request, it *Item, now time.Time) {
	u := it.unit
	u.flying--
	if it.req == r {
		it.req, it.asked, it.returned = nil, q.asked, true
		u.items.PushFront(&it.place)
	}
	if u.flying == 0 {
		q.settle(u, now, u.items.Len() > 0 && u.items.First().returned)
	}
}

// Wake moves the units that are due to where they can be sent.
func (q *Queue) Wake(now time.Time) {
	for len(q.waiting) > 0 && !q.waiting[0].items.First().Due.After(now) {
		u := q.waiting[0]
		heap.Pop(&q.waiting)
		q.ready.PushFront(&u.place)
	}
	for _, l := range q.lanes {
		if (l.probing || l.gathered(now)) && l.takes(q.ready.Len(), now) { // otherwise an ask would end in the same stall
			q.stalled, q.enough = false, 0
		}
	}
}

// WakeAt returns when Wake has something to do; the zero time means never.
func (q *Queue) WakeAt(now time.Time) time.Time {
	var at time.Time
	earlier := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if len(q.waiting) > 0 {
		earlier(q.waiting[0].items.First().Due)
	}
	for _, l := range q.lanes {
		switch n := l.bound.Len() + q.ready.Len(); {
		case n == 0:
		case now.Before(l.PausedUntil):
			earlier(l.PausedUntil)
		case l.free(now) && !l.takes(n, now):
			earlier(l.begun.Add(gather))
		}
	}
	return at
}

// AnyPaused reports whether a lane is paused.
func (q *Queue) AnyPaused(now time.Time) bool {
	return slices.ContainsFunc(q.lanes, func(l *Lane) bool { return now.Before(l.PausedUntil) })
}

// PauseOf returns the paused lane that a queued message waits for: the lane of its message group
// or, if every lane is paused, the lane with the first end of its pause. Lanes that the transport
// no longer returns, for example those of a server that is gone, do not count. PauseOf returns nil
// if the message waits for no lane.
func (q *Queue) PauseOf(it *Item, now time.Time) *Lane {
	var first *Lane
	for _, l := range q.lanes {
		if it.unit.place.In(&l.bound) {
			if now.Before(l.PausedUntil) {
				return l
			}
			return nil
		}
		if l.lost {
			continue
		}
		if first == nil || l.PausedUntil.Before(first.PausedUntil) {
			first = l
		}
	}
	if first == nil || !now.Before(first.PausedUntil) || !it.unit.place.In(&q.ready) {
		return nil
	}
	return first
}

// Behind returns the messages that wait for the end of the pause of l.
func (q *Queue) Behind(l *Lane, now time.Time) (items []*Item) {
	for u := range l.bound.All {
		items = slices.AppendSeq(items, u.items.All)
	}
	if u := q.ready.First(); u == nil || q.PauseOf(u.items.First(), now) == nil {
		return items
	}
	for u := range q.ready.All {
		items = slices.AppendSeq(items, u.items.All)
	}
	return items
}
