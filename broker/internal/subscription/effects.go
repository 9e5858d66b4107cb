package subscription

import (
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// remaining is the work that remains, without the lock, after effects of package consume were
// applied.
type remaining struct {
	write   *store.PendingWrite // of the writes; nil if there were none
	leaving []*Departure        // for writeDepartures
	parked  []*parking          // for awaitParked
}

// apply carries out the effects of the caller's changes to s.progress. No other code does. mu is
// held, so the writes are in the order of the changes.
func (s *Subscription) apply(now time.Time) (out remaining) {
	e := s.progress.Effects()
	s.countLeases()
	s.Done(topic.Amount(e.Done), e.LeasedBytes)
	if e.Drained != (consume.Amount{}) {
		s.Drain(topic.Amount(e.Drained), now)
		s.Topic().GroupConsumed(now)
	}
	for _, late := range e.Late {
		s.env.Lateness.Observe(max(0, late).Seconds())
	}
	if len(e.Writes) > 0 && e.Durable {
		out.write = s.env.Store.Groups.Add(s.progress.Encode, nil)
	} else if len(e.Writes) > 0 {
		out.write = s.env.Store.Groups.AddLazy(s.progress.Encode)
	}
	for i := range e.Departures {
		out.leaving = append(out.leaving, s.newDeparture(e.Departures[i]))
	}
	for i := range e.Failures {
		s.noteFailure(&e.Failures[i])
	}
	for i := range e.Parked {
		out.parked = append(out.parked, &parking{group: e.Parked[i], write: out.write})
	}
	for _, queue := range e.Reread {
		s.dropReadAhead(s.readers[queue])
	}
	for _, w := range e.Wakes {
		s.wake(w.N, w.Queue)
	}
	if e.WakeRest {
		s.wakeRest()
	}
	if e.Fetch {
		s.startFetch()
	}
	if e.Done != (consume.Amount{}) || len(e.Writes)+len(e.Late)+len(e.Wakes) > 0 {
		s.env.Activity.Note()
	}
	e.Reset()
	s.arm()
	return out
}

// wake ends the wait of up to n receives that may read the queue, and wakes the watches. mu is
// held.
func (s *Subscription) wake(n int64, queue uint16) {
	if n > 0 {
		s.wakeWatches(queue)
	}
	for i := 0; n > 0 && i < len(s.waiters); {
		w := s.waiters[i]
		if w.queue >= 0 && w.queue != int(queue) {
			i++
			continue
		}
		s.waiters = slices.Delete(s.waiters, i, i+1)
		close(w.woken)
		n--
	}
}

// wakeRest wakes receives for messages that no receive has taken: one for each ready message, and
// one for each queue with new messages. mu is held.
func (s *Subscription) wakeRest() {
	if len(s.waiters) == 0 && len(s.watches) == 0 {
		return
	}
	s.extend()
	for _, r := range s.readers {
		if n := s.progress.Available(int(r.queue.Number())); n > 0 {
			s.wake(n, r.queue.Number())
		}
	}
}

// wakeAll ends the wait of all receives, and wakes the watches. mu is held.
func (s *Subscription) wakeAll() {
	for w := range s.watches {
		w.wake()
	}
	clear(s.watches)
	for _, w := range s.waiters {
		close(w.woken)
	}
	s.waiters = nil
}

// arm sets the timer to the first due time, unless the subscription is being restored: a message
// that is due could be parked while those after it are not known yet. mu is held.
func (s *Subscription) arm() {
	due, ok := s.progress.NextDue()
	if !ok || s.gone != nil || s.restoring || !s.armed.IsZero() && !due.Before(s.armed) {
		return // nothing is due, or the timer fires early enough and is set again then
	}
	s.armed = due
	s.timer.Reset(time.Until(due))
}
