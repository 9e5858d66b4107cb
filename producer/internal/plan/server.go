package plan

import "time"

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

// A Server is the order of the topics that share the requests to one server, each a V of the user.
// See [transport.Lane].Topics. The zero value has no topics.
//
// A topic has a turn while its [Queue.Ready] returns a lane of the server. The user passes that
// number to Ready after each call of Queue.Next and Queue.Take. The user calls Next after each call
// of Ready, Filled and Ended and at the time of WakeAt, fills each request that Next begins from
// the topics that First returns, and then calls Filled.
//
// Bound on steps: a request begins only while a topic has units for it. Fairness: a topic that got
// a place in a request has its next turn behind all others.
type Server[V any] struct {
	pace
	turns   List[*Turn[V]]
	units   int  // of all turns
	filling bool // the request that began last takes units
}

// A Turn is the place of a topic in a Server.
type Turn[V any] struct {
	Of V

	place Link[*Turn[V]]
	units int
}

// Ready sets the number of units that the server can have of a topic. The topic joins at the end.
func (s *Server[V]) Ready(t *Turn[V], units int) {
	s.units += units - t.units
	t.units = units
	switch {
	case units == 0:
		t.place.Leave()
	case !t.place.Joined():
		t.place.Value = t
		s.turns.PushBack(&t.place)
	}
}

// First returns the topic whose turn it is, nil if there is none.
func (s *Server[V]) First() *Turn[V] { return s.turns.First() }

// Idle reports whether the server has neither requests nor turns.
func (s *Server[V]) Idle() bool { return s.flying == 0 && s.turns.Len() == 0 }

// Next begins a request and returns its number, if one can begin.
func (s *Server[V]) Next(now time.Time) (number int, ok bool) {
	if s.filling || s.units == 0 || !s.room(sharedWindow, sharedPatience, now) || !s.enough(s.units, now) {
		return 0, false
	}
	s.filling = true
	return s.begin(now), true
}

// Own begins a request of one message that no other topic waits for, if one can begin.
func (s *Server[V]) Own(now time.Time) (number int, ok bool) {
	if s.units > 0 || !s.room(sharedWindow, sharedPatience, now) || !s.enough(1, now) {
		return 0, false
	}
	s.filled(1)
	return s.begin(now), true
}

// Filled notes the load of the request that Next began last.
func (s *Server[V]) Filled(l *Load) {
	s.filling = false
	s.filled(l.units)
}

// Ended notes the end of a request: whether the server accepted a message of it, or did not respond
// in time.
func (s *Server[V]) Ended(number int, accepted, timedOut bool) {
	s.flying--
	if accepted {
		s.newest = max(s.newest, number)
	}
	if timedOut {
		s.timedOut = max(s.timedOut, number)
	}
}

// WakeAt returns when Next begins a request; the zero time means not before another event.
func (s *Server[V]) WakeAt(now time.Time) time.Time {
	switch room := s.room(sharedWindow, sharedPatience, now); {
	case s.filling || s.units == 0 || !room && !s.patient():
		return time.Time{}
	case !room:
		return s.begun.Add(sharedPatience)
	case !s.enough(s.units, now):
		return s.begun.Add(gather)
	}
	return now
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
