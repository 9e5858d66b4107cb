package broker

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
)

// arm sets the timer to the first due time. mu is held.
func (s *subscription) arm() {
	if len(s.timers) == 0 || s.gone {
		return
	}
	due := s.timers[0].Due
	if !s.armed.IsZero() && !due.Before(s.armed) {
		return // it fires early enough, and arms again
	}
	s.armed = due
	s.timer.Reset(time.Until(due))
}

// expire moves on every message that is due: its invisible duration or its
// retry interval is over. The timer calls it.
func (s *subscription) expire() {
	b := s.broker
	if !b.begin() {
		return
	}
	defer b.end()
	s.mu.Lock()
	s.armed = time.Time{}
	if s.gone {
		s.mu.Unlock()
		return
	}
	dying, parked := s.due(time.Now())
	s.arm()
	s.mu.Unlock()
	for i, err := range b.endAll(dying) {
		if err != nil {
			b.logger.Error("a message could not be made a dead letter; it is tried again in a second",
				"group", s.group.name, "topic", s.topic.name, "offset", dying[i].lease.offset, "error", err)
		}
	}
	for _, p := range parked {
		_ = p.end(b) // a store that fails tells everybody else
	}
}

// due applies what the passing of time does, and returns the messages that
// become dead letters by it, and those whose message groups are parked by it. mu is held.
//
// Nothing but what is parked, set aside or kept by a blocked message group is written: after a
// restart the same follows from the same records.
func (s *subscription) due(now time.Time) (dying []*deadLetter, parked []*parking) {
	policy := s.policy()
	for len(s.timers) > 0 && !s.timers[0].Due.After(now) {
		l := s.timers[0]
		e := consume.EventTimeout
		if l.state() == StateWaitingRetry {
			e = consume.EventDue
		} else if s.renew(l, now) {
			continue
		}
		x := policy.exhaustion(e, l)
		to, _ := l.state().Next(e, x, l.Push)
		if x == consume.ThenBlock {
			s.block(l)
		}
		switch to {
		case StateWaitingRetry:
			l.Due = l.Due.Add(policy.interval(l.Attempt, s.draw(l))) // from the time-out on, whenever it is noticed
			s.set(l, to)
		case StateReady:
			if e == consume.EventDue {
				s.broker.counters.lateness.Observe(int64(now.Sub(l.Due)))
			}
			s.set(l, to)
			s.wake(1, l.cursor.queue.number)
		case StateDeadLetter:
			dying = append(dying, s.dying(l, e, lastDelivery(l, e)))
		case StateParked:
			parked = append(parked, s.park(l, lastDelivery(l, e), now))
		}
	}
	return dying, parked
}

// lastDelivery says why a message is given up.
func lastDelivery(l *lease, e consume.Event) string {
	return fmt.Sprintf("delivered %d times, the most that the group allows; the last delivery %s",
		l.Attempt, map[consume.Event]string{consume.EventTimeout: "was not answered in time", consume.EventDue: "failed"}[e])
}

// renew puts off the end of a lease in flight whose owner lives, and reports
// whether it did. mu is held.
func (s *subscription) renew(l *lease, now time.Time) bool {
	if l.Owner == "" {
		return false
	}
	seen, ok := s.broker.owners.lastSeen(l.Owner)
	until := renewedUntil(seen, l.Since, s.broker.opts.MaxInvisibleDuration)
	if !ok || !until.After(now) {
		return false
	}
	l.Due = until
	heap.Fix(&s.timers, l.timer)
	return true
}

// disown ends the leases that owner kept alive at the given time.
func (s *subscription) disown(owner string, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed []*lease
	for _, l := range s.timers {
		if l.Owner == owner && l.state() == StateInflight {
			changed = append(changed, l)
		}
	}
	for _, l := range changed {
		l.Owner = ""
		l.Due = until
		heap.Fix(&s.timers, l.timer)
	}
	if len(changed) > 0 && !s.gone {
		s.saveLazily(changed...)
		s.arm()
	}
}
