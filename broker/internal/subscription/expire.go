package subscription

import "time"

// expire ends the leases and retry intervals that are due. The timer calls it.
func (s *Subscription) expire() {
	if !s.env.Calls.Begin() {
		return
	}
	defer s.env.Calls.End()
	rest, gone := s.expireUnsynced()
	if gone {
		return
	}
	for i, err := range s.writeDepartures(rest.leaving) {
		if err != nil {
			s.env.Logger.Error("message not moved to the dead letters; retry in a second",
				"group", s.Group().Name(), "topic", s.Topic().Name(), "offset", rest.leaving[i].place.Offset, "error", err)
		}
	}
	for _, p := range rest.parked {
		_ = s.awaitParked(p) // other calls report a store that fails
	}
}

func (s *Subscription) expireUnsynced() (out remaining, gone bool) {
	policy := s.Policy().Rules()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = time.Time{}
	if s.gone != nil {
		return remaining{}, true
	}
	now := time.Now()
	s.progress.Expire(&policy, now)
	return s.apply(now), false
}

// EndPostponed makes the messages due that were postponed because the wall clock was not trusted.
func (s *Subscription) EndPostponed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return
	}
	now := time.Now()
	s.progress.EndPostponed(now)
	s.apply(now)
}

// Postponed returns the number of messages that wait because the wall clock is not trusted.
func (s *Subscription) Postponed() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress.Postponed()
}

// Disown sets the end of the leases that the heartbeats of an owner kept alive.
func (s *Subscription) Disown(owner string, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return
	}
	now := time.Now()
	s.progress.Disown(owner, until, now)
	s.apply(now)
}
