package plan

import (
	"time"

	"github.com/tidegate/tidegate/transport"
)

const (
	// sharedWindow is the number of requests under way with which a lane that takes several
	// messages in one request is full. Messages that arrive meanwhile share the next request.
	sharedWindow = 2

	// gather is the longest time for which a second request waits for further messages.
	gather = 5 * time.Millisecond

	// crowdedGather is gather while many other topics have requests under way. Their requests keep
	// the server busy, so a second request of the topic gains nothing. The messages of the topic
	// share the next request instead, which begins with the end of this one. The bound is for a
	// request whose response is lost.
	crowdedGather = 200 * time.Millisecond

	// A lane that takes one message a request starts with FirstWindow requests at
	// once and adapts between 1 and maxWindow. Probes are bounded by FirstWindow.
	FirstWindow = 32
	maxWindow   = 512

	// A full lane takes another request if none began for patience: the responses to those under
	// way may be lost. Each success then opens the window. While the server does not respond at
	// all, the window remains, so that few messages lose their attempts. A lane that takes several
	// messages waits for sharedPatience, because a request for each pause of a disk would make its
	// requests small.
	patience       = 20 * time.Millisecond
	sharedPatience = 100 * time.Millisecond

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

	flying     int                  // requests under way
	recent     int                  // units in recent requests: the largest number, reduced by each request
	begun      time.Time            // start of the newest request
	window     int                  // the number of them with which the lane is full, where a request takes one message
	bound      List[*unit[T, C]]    // message groups that wait for this lane
	held       [2]List[*unit[T, C]] // loose units and message groups in Queue.waiting that this lane takes later, as its server requested
	probing    bool                 // from the pause until a probe succeeded
	pause      time.Duration        // the length of the last pause, at least gather: the time between probes
	lost       bool                 // the transport returned an avoided lane instead of this one, until it returns this one again
	pauses     int                  // pauses so far; a request with a smaller number began before the last pause
	cuts       int                  // reductions of the window so far, likewise
	begins     int                  // requests so far; each has its own number
	sincePause int                  // requests under way that began after the last pause; while probing, the probes
	newest     int                  // largest number of a request that the server has accepted
	timedOut   int                  // largest number of one to which it did not respond in time

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
	return l.flying < l.full() || l.patient() && !now.Before(l.overfilled())
}

// patient reports whether the lane takes another request after its patience if it is full.
func (l *Lane[T, C]) patient() bool {
	return !l.Deciding && !l.probing && l.flying < maxWindow && l.newest >= l.timedOut
}

// full returns the number of requests under way from which on the lane is full.
func (l *Lane[T, C]) full() int {
	if l.MaxMessages > 1 {
		return sharedWindow
	}
	return l.window
}

// overfilled returns the time at which the lane takes another request although it is full.
func (l *Lane[T, C]) overfilled() time.Time {
	if l.MaxMessages > 1 {
		return l.begun.Add(sharedPatience)
	}
	return l.begun.Add(patience)
}

// probesOn reports whether the lane sends another probe before the server has responded to those
// under way, once the newest has the age of a pause.
func (l *Lane[T, C]) probesOn() bool {
	return l.probing && !l.Deciding && l.MaxMessages <= 1 && l.flying < FirstWindow
}

// takes reports whether the lane takes a request of n units now. A lane that is not free takes
// none. A free lane takes the request if
//   - no other request is under way in the lane,
//   - requests of the lane take one message each,
//   - the request is at least half as large as the recent ones, or
//   - the wait for further messages is over.
//
// While many other topics have requests under way (crowded), the rule about the size does not
// apply, and the wait is longer.
//
// Without the rule about the size, requests of one message alternate with requests of all other
// messages when many callers wait for their results.
func (l *Lane[T, C]) takes(n int, crowded bool, now time.Time) bool {
	return l.free(now) && (l.flying == 0 || l.MaxMessages <= 1 || !crowded && n >= l.recent/2 || !now.Before(l.gathered(crowded)))
}

// gathered returns the end of the wait for messages of a second request.
func (l *Lane[T, C]) gathered(crowded bool) time.Time {
	if crowded {
		return l.begun.Add(crowdedGather)
	}
	return l.begun.Add(gather)
}

// most is the number of messages that one request takes now.
func (l *Lane[T, C]) most() int {
	if l.probing {
		return 1
	}
	return max(1, l.MaxMessages)
}

// begin notes that r begins.
func (l *Lane[T, C]) begin(r *Request[T, C], now time.Time) {
	l.flying++
	l.begun = now
	l.recent = max(r.units, l.recent*3/4)
	l.begins++
	r.number, r.pauses, r.cuts = l.begins, l.pauses, l.cuts
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
