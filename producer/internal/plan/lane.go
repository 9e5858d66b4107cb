package plan

import (
	"slices"
	"time"

	"github.com/tidegate/tidegate/transport"
)

const (
	// crowdedGather is gather while many other topics have requests under way. Their requests keep
	// the server busy, so a second request of the topic gains nothing. The messages of the topic
	// share the next request instead, which begins with the end of this one. The bound is for a
	// request whose response is lost.
	crowdedGather = 200 * time.Millisecond

	// A lane that takes one message a request starts with FirstWindow requests at
	// once and adapts between 1 and maxWindow. Probes are bounded by FirstWindow.
	FirstWindow = 32
	maxWindow   = 512

	// maxLanes bounds the lanes that are remembered of one topic.
	maxLanes = 64
)

// A Lane is the queue's state of one server for its topic. A throttled lane pauses, and then sends
// one request with one message, the probe. Only a successful probe opens the lane again. If the
// server has not responded after the length of the pause, a lane of one message a request sends
// another probe: a server that throttles responds at once, so it is about to accept the first one.
type Lane[T Sharer, C any] struct {
	transport.Lane
	Deciding    bool // it throttled a request, and the pause is being decided
	PausedUntil time.Time
	Throttle    error // the error that caused the pause

	pace
	window     int                  // the number of them with which the lane is full, where a request takes one message
	bound      List[*unit[T, C]]    // message groups that wait for this lane
	held       [2]List[*unit[T, C]] // loose units and message groups in Queue.waiting that this lane takes later, as its server requested
	unasked    bool                 // it was the only lane, so that message groups wait for it that did not ask for theirs
	probing    bool                 // from the pause until a probe succeeded
	pause      time.Duration        // the length of the last pause, at least gather: the time between probes
	lost       bool                 // the transport has returned an avoided lane since, although the ask did not avoid this one
	pauses     int                  // pauses so far; a request with a smaller number began before the last pause
	cuts       int                  // reductions of the window so far, likewise
	sincePause int                  // requests under way that began after the last pause; while probing, the probes

	recheckAt time.Time // when one of the bound and held units asks for its lane again
}

// waiting returns the number of units that wait for this lane alone.
func (l *Lane[T, C]) waiting() int { return l.bound.Len() + l.held[0].Len() + l.held[1].Len() }

// await sets the time of the next recheck for the first unit that waits for the lane. The unit
// joins afterwards.
func (l *Lane[T, C]) await(now time.Time) {
	if l.waiting() == 0 {
		l.recheckAt = now.Add(recheck)
	}
}

// holding returns the list for a unit that the lane takes later.
func (l *Lane[T, C]) holding(u *unit[T, C]) *List[*unit[T, C]] {
	if u.group == "" {
		return &l.held[0]
	}
	return &l.held[1]
}

func (l *Lane[T, C]) paused(now time.Time) bool { return now.Before(l.PausedUntil) }

// free reports whether the lane takes another request now.
func (l *Lane[T, C]) free(now time.Time) bool {
	switch {
	case l.Deciding, l.paused(now):
		return false
	case l.probing:
		return l.sincePause == 0 || l.probesOn() && now.Sub(l.begun) >= l.pause
	}
	return l.shared() || l.room(l.full(), l.patience(), now)
}

// shared reports whether the server of the lane decides when the lane's messages are sent. See
// [Server].
func (l *Lane[T, C]) shared() bool { return l.Topics && l.MaxMessages > 1 }

// patient reports whether the lane takes another request after its patience if it is full.
func (l *Lane[T, C]) patient() bool {
	return !l.Deciding && !l.probing && !l.shared() && l.pace.patient()
}

// full returns the number of requests under way from which on the lane is full.
func (l *Lane[T, C]) full() int {
	if l.MaxMessages > 1 {
		return sharedWindow
	}
	return l.window
}

func (l *Lane[T, C]) patience() time.Duration {
	if l.MaxMessages > 1 {
		return sharedPatience
	}
	return patience
}

// overfilled returns the time at which the lane takes another request although it is full.
func (l *Lane[T, C]) overfilled() time.Time { return l.begun.Add(l.patience()) }

// probesOn reports whether the lane sends another probe before the server has responded to those
// under way, once the newest has the age of a pause.
func (l *Lane[T, C]) probesOn() bool {
	return l.probing && !l.Deciding && l.MaxMessages <= 1 && l.flying < FirstWindow
}

// takes reports whether the lane takes a request of n units now. A lane that is not free takes
// none. A free lane of several messages a request waits until n is enough. While many other topics
// have requests under way (crowded), the size of the request does not count, and the wait is
// longer.
func (l *Lane[T, C]) takes(n int, crowded bool, now time.Time) bool {
	switch {
	case !l.free(now):
		return false
	case l.MaxMessages <= 1 || l.shared() || l.flying == 0:
		return true
	case crowded:
		return !now.Before(l.gathered(true))
	}
	return l.enough(n, now)
}

// gathered returns the end of the wait for messages of a second request.
func (l *Lane[T, C]) gathered(crowded bool) time.Time {
	if crowded {
		return l.begun.Add(crowdedGather)
	}
	return l.begun.Add(gather)
}

// begin notes that r begins.
func (l *Lane[T, C]) begin(r *Request[T, C], now time.Time) {
	r.number, r.pauses, r.cuts = l.pace.begin(now), l.pauses, l.cuts
	l.filled(r.units)
	l.sincePause++
}

// requestEnded notes that r is not under way any more.
func (l *Lane[T, C]) requestEnded(r *Request[T, C]) {
	l.flying--
	if r.pauses == l.pauses {
		l.sincePause--
	}
}

// Succeeded notes that the server accepted a message of r, while r is under way. A successful probe
// opens the lane for at least as many requests as were under way.
func (l *Lane[T, C]) Succeeded(r *Request[T, C]) {
	l.newest = max(l.newest, r.number)
	if l.flying >= l.window && l.window < maxWindow && !l.probing {
		l.window++
	}
	if l.probing && r.pauses == l.pauses {
		l.probing, l.Throttle = false, nil
		l.window = max(l.window, l.flying)
	}
}

// TimedOut notes that the server did not respond to r in time. Timeouts of requests that were under
// way together halve the window once. A server that has accepted a request that began after r is
// not slow: the response to r is lost, and the window remains.
func (l *Lane[T, C]) TimedOut(r *Request[T, C]) {
	l.timedOut = max(l.timedOut, r.number)
	if l.newest <= r.number {
		l.cut(r)
	}
}

func (l *Lane[T, C]) cut(r *Request[T, C]) {
	if r.cuts == l.cuts {
		l.cuts++
		l.window = max(1, l.window/2)
	}
}

// Pause notes that the server throttled r, for the given time. It returns false if r began before
// the last pause: then the throttling is known already. Such a result can lengthen the pause, but
// not begin another one: the server decided it before the probe.
func (l *Lane[T, C]) Pause(r *Request[T, C], now time.Time, d time.Duration, err error) bool {
	known := r.pauses != l.pauses
	if until := now.Add(d); until.After(l.PausedUntil) && (!known || l.paused(now)) {
		l.PausedUntil = until
	}
	if known {
		return false
	}
	if !l.probing { // a probe does not fill the window
		l.cut(r)
	}
	l.pauses++
	l.sincePause, l.pause = 0, max(gather, d)
	l.probing, l.Throttle = true, err
	return true
}

// dueUnits is a heap of units by the time at which they can be sent.
type dueUnits[T Sharer, C any] []*unit[T, C]

func (h dueUnits[T, C]) Len() int { return len(h) }
func (h dueUnits[T, C]) Less(i, j int) bool {
	return h[i].at().Before(h[j].at())
}
func (h dueUnits[T, C]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i, j
}

// at returns when a waiting unit can be sent: when its first message is due or, if a lane holds the
// unit, at the end of the requested wait.
func (u *unit[T, C]) at() time.Time {
	it := u.items.First()
	if it.By != nil && u.place.In(it.By.holding(u)) {
		return it.Until
	}
	return it.Due
}

// Push implements heap.Interface.
func (h *dueUnits[T, C]) Push(x any) {
	u := x.(*unit[T, C])
	u.heapAt = len(*h)
	*h = append(*h, u)
}

// Pop implements heap.Interface.
func (h *dueUnits[T, C]) Pop() any {
	old := *h
	u := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	u.heapAt = -1
	return u
}

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
	q.drop()
	for i, info := range a.Lanes {
		l := q.lane(info, now)
		if q.drop(); l.shared() {
			q.only = l
			for _, other := range q.lanes {
				other.lost = other != l
			}
		}
		// A loose unit also leaves for the lane that it avoids after its last failure: that server
		// takes it now. The one that it waits for takes it later, or is gone.
		if a.of != nil && a.of != l && (a.units[i].group != "" || l.Endpoint == a.Head.Avoid || !slices.Contains(a.Request.Avoid, l.Endpoint)) {
			q.unbind(a.of) // the others may have another lane too
		}
	}
	for _, l := range q.lanes {
		if l.unasked && l != q.only && len(a.Lanes) > 0 { // not while the transport has none
			l.unasked = false
			q.unbind(l)
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
	if !l.shared() && l.bound.Len() == 1 && l.bound.First() == a.Head.unit && l.takes(1+q.loose.Len(), q.Crowded, now) {
		return q.take(l, l.bound.First(), new(Load), now, true)
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
			other.lost = other != l && !slices.Contains(a.Request.Avoid, other.Endpoint)
		}
	}
	if l.shared() {
		q.askAt = time.Time{}
		return nil // Ready returns it
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
	return q.take(l, head, new(Load), now, a.Own)
}
