package subscription

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
)

// ParkedGroups returns the message groups that are parked or blocked, in no order, after a look
// ahead.
func (s *Subscription) ParkedGroups() []consume.ParkedGroup {
	s.LookAhead(new(int64(MaxLook)))
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress.ParkedGroups()
}

// RedriveParked sends parked message groups on, in order, the failed message first or, with
// deadLetter, without it: it leaves as a dead letter. messageGroup names the only one; empty means
// all. It returns the number of message groups and messages when this is on disk. With an error
// these are the ones that were sent on.
func (s *Subscription) RedriveParked(messageGroup string, deadLetter bool) (groups, messages int64, err error) {
	s.LookAhead(new(int64(MaxLook)))
	groups, messages, behind, rest := s.redriveUnsynced(messageGroup, deadLetter)
	if groups > 0 {
		s.Topic().WakeRetention(time.Now()) // it kept the messages of parked message groups
	}
	for i, derr := range s.writeDepartures(rest.leaving) {
		if derr != nil { // its message group stays parked
			err = derr
			groups--
			messages -= 1 + behind[i]
		}
	}
	if rest.write == nil {
		rest.write = s.env.Store.Groups.Barrier()
	}
	if werr := rest.write.Wait(); werr != nil {
		err = refusal.Store(werr)
	}
	return groups, messages, err
}

// redriveUnsynced also returns the number of messages behind each one that leaves.
func (s *Subscription) redriveUnsynced(messageGroup string, deadLetter bool) (groups, messages int64, behind []int64, out remaining) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return 0, 0, nil, remaining{}
	}
	now := time.Now()
	groups, messages, behind = s.progress.Redrive(messageGroup, deadLetter, now)
	return groups, messages, behind, s.apply(now)
}
