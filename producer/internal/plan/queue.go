// Package plan orders the messages of one topic and plans their requests. It is
// pure: it neither locks nor waits nor reads a clock. The producer passes the time,
// carries out the jobs that [Queue.Next] returns, and reports their results.
package plan

import (
	"container/heap"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A Queue has the messages of one topic, each in a T of the user. Its requests have a C, which only
// the user reads and writes. The zero value is an empty queue.
//
// Messages are queued in units. The messages of a message group are one unit, which is in one
// request at a time. A lite topic counts as a message group (tidegate.Message.OrderKey). A message
// without a message group is its own unit, a loose one.
//
// Wake-ups: the user calls Next until it returns no job after each call of Add, Routed, Finished
// and Remove, and at the time of WakeAt. If the queue then holds a message, an ask or a request is
// under way, or WakeAt is in the future. The queue stores no reason to wait: a unit waits because
// no lane takes it now, and Next looks at the lanes.
//
// Bound on steps: between two events, Next returns a request only for messages that were not in
// one, and an ask only if a lane that the transport has takes the unit, or if the last ask of that
// kind is recheck ago. An ask without use shows that a lane is busy or lost, so that it is not
// repeated before the next event of that lane.
type Queue[T Sharer, C any] struct {
	// Crowded reports that many requests of other topics are under way. A lane that takes several
	// messages in a request then has one request of this topic at a time. The user may change it
	// before a call of Next.
	Crowded bool

	loose    List[*unit[T, C]]      // loose units that can be sent, first come first
	laneless List[*unit[T, C]]      // message groups that can be sent and whose lane is unknown
	waiting  dueUnits[T, C]         // units whose first message waits for its due time, or for a lane that holds it
	groups   map[string]*unit[T, C] // the message groups that have messages
	lanes    []*Lane[T, C]

	// only takes all units that can be sent, without an ask: its server is the only one of the
	// topic ([transport.Lane].Topics). It is nil until an ask returns it, and after each request of
	// it with a message that returns to the queue.
	only *Lane[T, C]

	routing bool      // a job asks the transport for lanes
	askAt   time.Time // until then the transport has no lanes for loose units beside the known ones; zero if unknown
	asked   uint64    // number of the last ask; orders messages and asks
}

// Empty reports whether the queue has no message outside of requests.
func (q *Queue[T, C]) Empty() bool { return q.loose.Len()+len(q.waiting)+len(q.groups) == 0 }

// A unit is the messages of one message group, or a single message without one.
type unit[T Sharer, C any] struct {
	group  string // empty for a single message
	items  List[*Item[T, C]]
	place  Link[*unit[T, C]] // in Queue.loose, Queue.laneless, Lane.bound or Lane.held
	heapAt int               // index in Queue.waiting, -1 if it is not there
	req    *Request[T, C]    // under way with messages of the unit, nil if there is none
	flying int               // messages in req, also those that have left
}

// A Job is the next action of the producer: an ask or a request.
type Job[T Sharer, C any] struct {
	Ask     *Ask[T, C]
	Request *Request[T, C]
}

// Add puts a message at the end of its message group.
func (q *Queue[T, C]) Add(it *Item[T, C], now time.Time) {
	u := q.groups[it.Message.OrderKey()] // nil for a new message group, and for a message without one
	if u == nil {
		u = &it.alone
		if group := it.Message.OrderKey(); group != "" {
			if q.groups == nil {
				q.groups = make(map[string]*unit[T, C])
			}
			u = &unit[T, C]{group: group}
			q.groups[group] = u
		}
		u.heapAt, u.place.Value = -1, u
	}
	it.asked = q.asked
	it.unit, it.place.Value = u, it
	u.items.PushBack(&it.place)
	if u.items.Len() == 1 && u.flying == 0 {
		q.enqueue(u, now, false)
	}
}

// enqueue moves a unit that is in no request to the list or heap for its state.
func (q *Queue[T, C]) enqueue(u *unit[T, C], now time.Time, first bool) {
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
		q.sendable(u).PushFront(&u.place)
	default:
		q.sendable(u).PushBack(&u.place)
	}
}

// sendable returns the list for a unit that can be sent.
func (q *Queue[T, C]) sendable(u *unit[T, C]) *List[*unit[T, C]] {
	if u.group == "" {
		return &q.loose
	}
	return &q.laneless
}

// Remove takes a message that is no longer wanted out of the queue, or out of its request. The
// request continues for its other messages. Remove returns the request if it has no others.
func (q *Queue[T, C]) Remove(it *Item[T, C], now time.Time) *Request[T, C] {
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
		if next := u.items.First(); next != nil && u.heapAt < 0 && !next.Due.After(now) && !now.Before(next.Until) {
			return nil // the next message takes its place
		}
		q.enqueue(u, now, false)
	}
	return nil
}

// Has reports whether the queue has messages of the message group, in requests or not.
func (q *Queue[T, C]) Has(group string) bool { return q.groups[group] != nil }

// RequestOf returns the request under way with messages of the message group, nil if there is none.
// The messages of the group in it may have left it.
func (q *Queue[T, C]) RequestOf(group string) *Request[T, C] {
	if u := q.groups[group]; u != nil {
		return u.req
	}
	return nil
}

// Group returns the messages of the message group that are in no request, in order.
func (q *Queue[T, C]) Group(group string) []*Item[T, C] {
	if u := q.groups[group]; u != nil {
		return slices.Collect(u.items.All)
	}
	return nil
}

// Next returns the next job that can be done now, and false if there is none. If own is set, an ask
// with own as its first message is for own alone, and so is the request that follows it.
func (q *Queue[T, C]) Next(now time.Time, own *Item[T, C]) (Job[T, C], bool) {
	for len(q.waiting) > 0 && !q.waiting[0].at().After(now) { // those that are due can be sent
		u := q.waiting[0]
		heap.Pop(&q.waiting)
		u.place.Leave()
		q.sendable(u).PushFront(&u.place)
	}
	for _, l := range q.lanes {
		if l.bound.Len() > 0 && !l.shared() && l.takes(l.bound.Len()+q.loose.Len(), q.Crowded, now) {
			return Job[T, C]{Request: q.take(l, l.bound.First(), new(Load), now, false)}, true
		}
	}
	if q.only != nil && !q.only.shared() {
		q.drop() // its lane has changed
	}
	if q.only != nil {
		q.follow(now)
	}
	if q.routing {
		return Job[T, C]{}, false
	}
	if head := q.laneless.First(); head != nil {
		return Job[T, C]{Ask: q.askGroups(head, own, now)}, true
	}
	for head := q.loose.First(); head != nil; head = q.loose.First() {
		it := head.items.First()
		if !now.Before(q.askAt) || q.only == nil && q.open(it, now) {
			return Job[T, C]{Ask: q.newAsk(head, own, now)}, true
		}
		if it.By == nil || it.By.lost || !it.blocked(it.By, now) {
			break
		}
		q.hold(head, it.By, now) // those behind it need not wait for its lane
	}
	for _, l := range q.lanes {
		if l.waiting() > 0 && !now.Before(l.recheckAt) {
			return Job[T, C]{Ask: q.recheck(l, now)}, true
		}
	}
	return Job[T, C]{}, false
}

// drop forgets the only lane.
func (q *Queue[T, C]) drop() {
	if q.only != nil {
		q.only, q.askAt = nil, time.Time{}
	}
}

// follow makes the units that can be sent wait for the only lane. The first loose unit asks for
// another one if it still waits after recheck.
func (q *Queue[T, C]) follow(now time.Time) {
	for u := range q.laneless.All {
		q.bind(u, q.only, now)
		q.only.unasked = true
	}
	for u := q.loose.First(); u != nil && u.items.First().blocked(q.only, now); u = q.loose.First() {
		q.hold(u, q.only, now)
	}
	switch {
	case q.loose.Len() == 0:
		q.askAt = time.Time{}
	case q.askAt.IsZero():
		q.askAt = now.Add(recheck)
	}
}

// Ready returns the lane whose server can have units of the queue in a request with other topics,
// and the number of these units; 0 if there is none. See [Server]. Next comes before.
func (q *Queue[T, C]) Ready(now time.Time) (lane *Lane[T, C], units int) {
	for _, l := range q.lanes {
		n := l.bound.Len()
		if l == q.only {
			n += q.loose.Len()
		}
		if n > 0 && l.shared() && l.free(now) {
			return l, n
		}
	}
	return nil, 0
}

// Alone returns the lane that [Queue.Ready] returns if the message is all that the server can have.
func (q *Queue[T, C]) Alone(it *Item[T, C], now time.Time) *Lane[T, C] {
	if l, units := q.Ready(now); units == 1 && it.Queued() && it.unit.items.First() == it && (it.unit.place.In(&l.bound) || it.unit.place.In(&q.loose)) {
		return l
	}
	return nil
}

// hold makes a unit wait until l takes it, as the server of l requested.
func (q *Queue[T, C]) hold(u *unit[T, C], l *Lane[T, C], now time.Time) {
	q.join(u, l.holding(u), l, now)
	heap.Push(&q.waiting, u)
}

// join moves a unit that can be sent to the bound or held units of l.
func (q *Queue[T, C]) join(u *unit[T, C], units *List[*unit[T, C]], l *Lane[T, C], now time.Time) {
	l.await(now)
	u.place.Leave()
	units.PushBack(&u.place)
}

// unbind makes the units that wait for l ask for a lane again.
func (q *Queue[T, C]) unbind(l *Lane[T, C]) {
	for u := range l.bound.All {
		u.place.Leave()
		q.laneless.PushBack(&u.place)
	}
	for i := range l.held {
		for u := range l.held[i].All {
			heap.Remove(&q.waiting, u.heapAt)
			u.place.Leave()
			q.sendable(u).PushBack(&u.place)
		}
	}
}

// lane returns the queue's record of a lane that the transport has returned now.
func (q *Queue[T, C]) lane(info transport.Lane, now time.Time) *Lane[T, C] {
	for _, l := range q.lanes {
		if l.Endpoint == info.Endpoint {
			l.Lane, l.lost = info, false
			return l
		}
	}
	if len(q.lanes) >= maxLanes {
		for i, l := range q.lanes {
			if l.flying == 0 && l.waiting() == 0 && !l.paused(now) {
				q.lanes = append(q.lanes[:i], q.lanes[i+1:]...)
				break
			}
		}
	}
	l := &Lane[T, C]{Lane: info, window: FirstWindow}
	q.lanes = append(q.lanes, l)
	return l
}

// Finished reports the end of a request. Those of its messages that are still
// wanted return to the front of their units, and wait until they are due.
func (q *Queue[T, C]) Finished(r *Request[T, C], now time.Time) {
	if r.Lane != nil {
		r.Lane.requestEnded(r)
	}
	for _, it := range slices.Backward(r.Items) {
		if it.req == r && r.Lane == q.only {
			q.drop()
		}
		q.giveBack(r, it, now)
	}
}

// giveBack takes a message out of a request. If it is still wanted, it returns to
// the front of its unit. The messages of a request return in reverse order.
func (q *Queue[T, C]) giveBack(r *Request[T, C], it *Item[T, C], now time.Time) {
	u := it.unit
	u.flying--
	if it.req == r {
		it.req, it.asked, it.returned = nil, q.asked, true
		u.items.PushFront(&it.place)
	}
	if u.flying == 0 {
		u.req = nil
		q.enqueue(u, now, u.items.Len() > 0 && u.items.First().returned)
	}
}

// WakeAt returns when Next has something to do; the zero time means never.
func (q *Queue[T, C]) WakeAt(now time.Time) time.Time {
	var at time.Time
	earlier := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if len(q.waiting) > 0 {
		earlier(q.waiting[0].at())
	}
	if q.loose.Len() > 0 && !q.routing { // the end of an ask wakes the units too
		earlier(q.askAt)
	}
	for _, l := range q.lanes {
		n := l.bound.Len()
		if l.waiting() > 0 && !q.routing {
			earlier(l.recheckAt)
		}
		if !l.lost {
			n += q.loose.Len()
		}
		switch {
		case n == 0:
		case l.paused(now):
			earlier(l.PausedUntil)
		case l.probesOn() && !l.free(now):
			earlier(l.begun.Add(l.pause))
		case l.free(now) && !l.takes(n, q.Crowded, now):
			earlier(l.gathered(q.Crowded))
		case l.patient() && !l.free(now):
			earlier(l.overfilled())
		}
	}
	return at
}

// PauseOf returns the paused lane that a queued message waits for: the lane of its message group
// or, if every lane is paused, the lane with the first end of its pause. Lanes that the transport
// no longer returns, for example those of a server that is gone, do not count. PauseOf returns nil
// if the message waits for no lane.
func (q *Queue[T, C]) PauseOf(it *Item[T, C], now time.Time) *Lane[T, C] {
	var first *Lane[T, C]
	for _, l := range q.lanes {
		if it.unit.place.In(&l.bound) {
			if l.paused(now) {
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
	if first == nil || !first.paused(now) || !it.unit.place.In(&q.loose) && !it.unit.place.In(&q.laneless) {
		return nil
	}
	return first
}

// Behind returns the messages that wait for the end of the pause of l.
func (q *Queue[T, C]) Behind(l *Lane[T, C], now time.Time) (items []*Item[T, C]) {
	for u := range l.bound.All {
		items = slices.AppendSeq(items, u.items.All)
	}
	for _, units := range []*List[*unit[T, C]]{&q.loose, &q.laneless} {
		if u := units.First(); u == nil || q.PauseOf(u.items.First(), now) == nil {
			continue
		}
		for u := range units.All {
			items = slices.AppendSeq(items, u.items.All)
		}
	}
	return items
}

// A List is an ordered list of elements. The zero value is an empty list.
type List[T any] struct {
	first, last *Link[T]
	n           int
}

// A Link is the place of one element. It is in one list at most.
type Link[T any] struct {
	Value T // the element

	in         *List[T]
	prev, next *Link[T]
}

// Len returns the number of elements.
func (l *List[T]) Len() int { return l.n }

// First returns the first element, and the zero value of an empty list.
func (l *List[T]) First() (first T) {
	if l.first != nil {
		first = l.first.Value
	}
	return first
}

// PushBack puts e, which is in no list, at the end.
func (l *List[T]) PushBack(e *Link[T]) {
	e.in, e.prev, e.next = l, l.last, nil
	if l.last != nil {
		l.last.next = e
	} else {
		l.first = e
	}
	l.last = e
	l.n++
}

// PushFront puts e, which is in no list, at the front.
func (l *List[T]) PushFront(e *Link[T]) {
	e.in, e.prev, e.next = l, nil, l.first
	if l.first != nil {
		l.first.prev = e
	} else {
		l.last = e
	}
	l.first = e
	l.n++
}

// Joined reports whether the element is in a list.
func (e *Link[T]) Joined() bool { return e.in != nil }

// In reports whether the element is in l.
func (e *Link[T]) In(l *List[T]) bool { return e.in == l }

// Leave takes the element out of its list, if it is in one.
func (e *Link[T]) Leave() {
	l := e.in
	if l == nil {
		return
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.last = e.prev
	}
	l.n--
	e.in, e.prev, e.next = nil, nil, nil
}

// All yields the elements in order. The one that was yielded may leave meanwhile.
func (l *List[T]) All(yield func(T) bool) {
	for e := l.first; e != nil; {
		next := e.next
		if !yield(e.Value) {
			return
		}
		e = next
	}
}

// An Item is one message of a queue: of a T of the user. The caller sets the first part before
// [Queue.Add], and the second part while the item is in a request.
type Item[T Sharer, C any] struct {
	Of      T // the struct of the user that has the item
	Message *tidegate.Message
	Size    int // estimate of the encoded bytes

	Due   time.Time   // not to be sent before
	By    *Lane[T, C] // whose server is not to get the message before Until; nil if none requested that
	Until time.Time
	Avoid string // the endpoint where the last attempt failed
	Limit int    // the most messages of its next request; 0 for no limit

	held     tidegate.Message  // the message, if SetMessage was called
	alone    unit[T, C]        // of a message without a message group
	unit     *unit[T, C]       // nil before it is queued, and after it was removed from the queue
	place    Link[*Item[T, C]] // in unit.items
	req      *Request[T, C]    // that it is in, else nil
	asked    uint64            // Queue.asked when it became ready
	returned bool              // it was in a request before
}

// blocked reports whether the server of l requested to get the message later.
func (it *Item[T, C]) blocked(l *Lane[T, C], now time.Time) bool {
	return it.By == l && now.Before(it.Until)
}

// A Sharer is a struct of the queue's user that has an item.
type Sharer interface {
	// Share is the time that the message's next attempt gets.
	Share(now time.Time) time.Duration
}

// SetMessage sets the item's message, with a new ID if msg has none. The message shares the body,
// the keys and the properties of msg.
func (it *Item[T, C]) SetMessage(msg *tidegate.Message) {
	it.held = *msg
	if it.held.ID == "" {
		it.held.ID = tidegate.NewMessageID()
	}
	it.Message, it.Size = &it.held, SizeOf(&it.held)
}

// Request returns the request that the message is in, nil if there is none.
func (it *Item[T, C]) Request() *Request[T, C] { return it.req }

// Queued reports whether the message is in a queue, and in no request.
func (it *Item[T, C]) Queued() bool { return it.unit != nil && it.req == nil }

// SizeOf estimates the encoded size of a message from above.
func SizeOf(m *tidegate.Message) int {
	size := 512 + len(m.Body) + len(m.ID) + len(m.Topic) + len(m.Tag) + len(m.MessageGroup) + len(m.LiteTopic) + len(m.TraceContext)
	for _, k := range m.Keys {
		size += len(k) + 8
	}
	for k, v := range m.Properties {
		size += len(k) + len(v) + 16
	}
	return size
}
