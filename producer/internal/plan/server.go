package plan

import "time"

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
