package broker

import "time"

// expire applies the passing of time to messages whose invisible duration or retry interval is
// over. The timer calls it.
func (s *subscription) expire() {
	b := s.broker
	if !b.begin() {
		return
	}
	defer b.end()
	effects, gone := s.expireUnsynced()
	if gone {
		return
	}
	for i, err := range b.depart(effects.leaving) {
		if err != nil {
			b.logger.Error("a message could not be made a dead letter; it is tried again in a second",
				"group", s.Group().Name(), "topic", s.Topic().Name(), "offset", effects.leaving[i].place.Offset, "error", err)
		}
	}
	for _, p := range effects.parked {
		_ = b.letters.AwaitParked(s.Consumed(), &p.group, p.write) // a store that fails reports that itself
	}
}

func (s *subscription) expireUnsynced() (effects applied, gone bool) {
	policy := s.Policy().Rules()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = time.Time{}
	if s.gone {
		return applied{}, true
	}
	now := time.Now()
	s.progress.Expire(&policy, now)
	return s.apply(now), false
}

// disown ends, at a time, the leases that an owner's heartbeats kept invisible.
func (s *subscription) disown(owner string, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return
	}
	s.progress.Disown(owner, until)
	s.apply(time.Now())
}
