package producer

import (
	"container/heap"
	"slices"
	"time"

	"github.com/tidegate/tidegate/transport"
)

// A queue orders the messages of one topic and plans their requests. It is a
// state machine: it neither locks nor waits nor reads a clock. Its user passes
// the time, carries out the jobs that next returns, and reports their results.
//
// Messages stand in units. A message group is one unit: it is in one request at
// a time. A message without a group is a unit of its own.
type queue struct {
	ready   list[*unit]      // units that can be sent and have no lane yet, first come first
	waiting dueUnits         // units whose first message waits for its due time
	groups  map[string]*unit // the message groups that have messages
	lanes   []*lane

	routing bool   // a job asks the transport for lanes
	stalled bool   // no lane is free for units without a message group
	asked   uint64 // counts the questions: tells the messages that came before one from later ones

	share func(it *item, now time.Time) time.Duration // of its deadline that the message's next attempt gets
}

// A unit is the messages of one message group, or a single message without one.
type unit struct {
	group  string // empty for a single message
	items  list[*item]
	place  link[*unit] // in queue.ready or lane.bound
	heapAt int         // index in queue.waiting, -1 if it is not there
	flying int         // messages in the request under way
}

// An ask is the job of asking the transport for lanes: for one unit without a
// message group, or for several message groups.
type ask struct {
	request transport.LaneRequest
	units   []*unit
	number  uint64
	head    *item
	attempt attempt

	oneUnit [1]*unit // saves allocations
	oneLane [1]transport.Lane
}

// maxAsk bounds the message groups of one ask.
const maxAsk = 128

// A job is what is to be done next: an ask or a request.
type job struct {
	ask *ask
	req *request
}

// add puts a message at the end of its message group.
func (q *queue) add(it *item, now time.Time) {
	u := q.unitOf(it)
	it.asked = q.asked
	it.unit = u
	u.items.pushBack(&it.place)
	if u.items.n == 1 && u.flying == 0 {
		q.settle(u, now, false)
	}
}

func (q *queue) unitOf(it *item) *unit {
	if group := it.msg.MessageGroup; group != "" {
		u := q.groups[group]
		if u == nil {
			u = &unit{group: group, heapAt: -1}
			u.place.value = u
			q.groups[group] = u
		}
		return u
	}
	u := &it.alone
	u.heapAt, u.place.value = -1, u
	return u
}

// settle puts a unit that is in no request to where it belongs.
func (q *queue) settle(u *unit, now time.Time, first bool) {
	u.place.leave()
	if u.heapAt >= 0 {
		heap.Remove(&q.waiting, u.heapAt)
	}
	switch {
	case u.items.n == 0:
		if u.group != "" {
			delete(q.groups, u.group)
		}
	case u.items.first.value.due.After(now):
		heap.Push(&q.waiting, u)
	case first:
		q.ready.pushFront(&u.place)
	default:
		q.ready.pushBack(&u.place)
	}
}

// remove takes out a message that is not wanted any more, wherever it stands.
// A request under way goes on for its other messages; remove returns it if
// there are none.
func (q *queue) remove(it *item, now time.Time) *request {
	if r := it.req; r != nil {
		it.req = nil
		if r.alive--; r.alive == 0 {
			return r
		}
		return nil
	}
	u := it.unit
	if u == nil {
		return nil
	}
	head := u.items.first == &it.place
	it.place.leave()
	it.unit = nil
	if head && u.flying == 0 {
		if u.items.n > 0 && u.heapAt < 0 && !u.items.first.value.due.After(now) {
			return nil // the next message takes its place
		}
		q.settle(u, now, false)
	}
	return nil
}

// next returns the next job that can be done now; false if there is none. An ask
// for own, if that is set, is for own alone.
func (q *queue) next(now time.Time, own *item) (job, bool) {
	for _, l := range q.lanes {
		if l.bound.n > 0 && l.free(now) {
			return job{req: q.take(l, nil, now, false)}, true
		}
	}
	if q.routing || q.ready.n == 0 {
		return job{}, false
	}
	head := q.ready.first.value
	if q.stalled && head.group == "" {
		if head = q.firstGroup(); head == nil {
			return job{}, false
		}
	}
	return job{ask: q.ask(head, now, own)}, true
}

func (q *queue) firstGroup() *unit {
	if len(q.groups) == 0 {
		return nil
	}
	for u := range q.ready.all {
		if u.group != "" {
			return u
		}
	}
	return nil
}

// ask begins to ask for the lane of head, and of the message groups beside it.
func (q *queue) ask(head *unit, now time.Time, own *item) *ask {
	q.routing = true
	q.asked++
	it := head.items.first.value
	a := &ask{request: transport.LaneRequest{Topic: it.msg.Topic}, number: q.asked, head: it}
	a.oneUnit[0] = head
	a.units = a.oneUnit[:]
	if head.group == "" {
		if it.avoid != "" {
			a.request.Avoid = append(a.request.Avoid, it.avoid)
		}
		for _, l := range q.lanes {
			if l.Endpoint != "" && l.Endpoint != it.avoid && !l.free(now) {
				a.request.Avoid = append(a.request.Avoid, l.Endpoint)
			}
		}
		return a
	}
	a.request.MessageGroup = head.group
	if it == own {
		return a
	}
	for u := range q.ready.all {
		if len(a.units) == maxAsk {
			break
		}
		if u.group != "" && u != head {
			a.units = append(a.units, u)
		}
	}
	return a
}

// routed reports the lanes of an ask, one for each of its units as far as the
// transport named them, and returns a request if one can begin. If own is set
// the request has that message alone.
func (q *queue) routed(a *ask, lanes []transport.Lane, now time.Time, own *item) *request {
	q.routing = false
	var l *lane
	for i, info := range lanes {
		u := a.units[i]
		l = q.lane(info, now)
		if u.group != "" && u.place.in == &q.ready {
			u.place.leave()
			l.bound.pushBack(&u.place)
		}
	}
	if l == nil {
		return nil
	}
	if a.units[0].group != "" {
		if own != nil && l.bound.n == 1 && l.free(now) && l.bound.first.value == own.unit {
			return q.take(l, nil, now, true)
		}
		return nil // next forms the requests
	}
	if !l.free(now) {
		q.stalled = true
		return nil
	}
	head := a.units[0]
	if head.place.in != &q.ready { // it left meanwhile
		if head = q.loose(); head == nil || own != nil {
			return nil
		}
	}
	return q.take(l, head, now, own != nil)
}

// loose returns the first unit in ready if it has no message group.
func (q *queue) loose() *unit {
	if q.ready.n == 0 || q.ready.first.value.group != "" {
		return nil
	}
	return q.ready.first.value
}

// lane returns the queue's record of a lane, brought up to date.
func (q *queue) lane(info transport.Lane, now time.Time) *lane {
	for _, l := range q.lanes {
		if l.Endpoint == info.Endpoint {
			l.Lane = info
			return l
		}
	}
	if len(q.lanes) >= maxLanes {
		for i, l := range q.lanes {
			if l.flying == 0 && l.bound.n == 0 && !now.Before(l.pausedUntil) {
				q.lanes = append(q.lanes[:i], q.lanes[i+1:]...)
				break
			}
		}
	}
	l := &lane{Lane: info, window: firstWindow}
	q.lanes = append(q.lanes, l)
	return l
}

// finished reports the end of a request. Those of its messages that are still
// wanted return to the front of their units, and wait until they are due.
func (q *queue) finished(r *request, now time.Time) {
	if r.lane != nil {
		r.lane.end(r)
		q.stalled = false
	}
	for _, it := range slices.Backward(r.items) {
		q.giveBack(r, it, now)
	}
}

// giveBack takes a message out of a request. If it is still wanted, it returns to
// the front of its unit. The messages of a request return in reverse order.
func (q *queue) giveBack(r *request, it *item, now time.Time) {
	u := it.unit
	u.flying--
	if it.req == r {
		it.req, it.asked, it.returned = nil, q.asked, true
		u.items.pushFront(&it.place)
	}
	if u.flying == 0 {
		q.settle(u, now, u.items.n > 0 && u.items.first.value.returned)
	}
}

// wake moves the units that are due to where they can be sent.
func (q *queue) wake(now time.Time) {
	for len(q.waiting) > 0 && !q.waiting[0].items.first.value.due.After(now) {
		u := q.waiting[0]
		heap.Pop(&q.waiting)
		q.ready.pushFront(&u.place)
	}
	for _, l := range q.lanes {
		if l.probing && l.probe == nil && !now.Before(l.pausedUntil) {
			q.stalled = false
		}
	}
}

// wakeAt returns when wake has something to do; the zero time means never.
func (q *queue) wakeAt(now time.Time) time.Time {
	var at time.Time
	earlier := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if len(q.waiting) > 0 {
		earlier(q.waiting[0].items.first.value.due)
	}
	for _, l := range q.lanes {
		if now.Before(l.pausedUntil) && (l.bound.n > 0 || q.ready.n > 0) {
			earlier(l.pausedUntil)
		}
	}
	return at
}

// anyPaused reports whether a lane is paused.
func (q *queue) anyPaused(now time.Time) bool {
	return slices.ContainsFunc(q.lanes, func(l *lane) bool { return now.Before(l.pausedUntil) })
}

// pauseOf returns the paused lane that a queued message waits for, nil if it
// waits for none: that of its message group, or the one whose pause ends first
// if every lane is paused.
func (q *queue) pauseOf(it *item, now time.Time) *lane {
	var first *lane
	for _, l := range q.lanes {
		if it.unit.place.in == &l.bound {
			if now.Before(l.pausedUntil) {
				return l
			}
			return nil
		}
		if first == nil || l.pausedUntil.Before(first.pausedUntil) {
			first = l
		}
	}
	if first == nil || !now.Before(first.pausedUntil) || it.unit.place.in != &q.ready {
		return nil
	}
	return first
}

// behind returns the messages that wait for the end of the pause of l.
func (q *queue) behind(l *lane, now time.Time) (items []*item) {
	for u := range l.bound.all {
		items = slices.AppendSeq(items, u.items.all)
	}
	if u := q.ready.first; u == nil || q.pauseOf(u.value.items.first.value, now) == nil {
		return items
	}
	for u := range q.ready.all {
		items = slices.AppendSeq(items, u.items.all)
	}
	return items
}
