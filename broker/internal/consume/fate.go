package consume

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Fate is where one message is in the consumption of a group.
type Fate struct {
	// State is Ready, Inflight, WaitingRetry, Parked or Held; DeadLetter while the message departs;
	// and Commit if the group is done with it: consumed, a dead letter, skipped or removed.
	State State

	New   bool  // Ready, and never delivered: no cursor has passed it
	Ahead int64 // offsets of the queue before a new message that no cursor has passed

	Attempt int       // deliveries
	Due     time.Time // end of the lease or of the retry interval; parked: since when
	Owner   string    // the client whose heartbeats keep the lease; empty for none
	Blocked bool      // it is retried without end, and blocks its message group

	// Spilled means that the message may be spilled. The state is right if the store has its
	// record; without a record the group is done with the message.
	Spilled bool

	// Head is the first unfinished message of the message group, if the message has to wait for it.
	Head   *store.Place
	Reason string // for which the message group is parked
}

// Fate returns where a message is. The message must exist; messageGroup is its message group.
func (p *Progress) Fate(queue int, offset int64, messageGroup string) Fate {
	if queue >= len(p.cursors) {
		return Fate{State: Ready, New: true, Ahead: offset}
	}
	c := p.cursors[queue]
	mg := p.groups[messageGroup]
	f := Fate{State: Commit}
	l := c.leases[offset]
	switch {
	case offset >= c.next:
		f.State, f.New, f.Ahead = Ready, true, offset-c.next
	case l != nil:
		f.State, f.Attempt, f.Due, f.Owner, f.Blocked = l.State(), l.Attempt, l.Due, l.Owner, l.Blocked
	case mg != nil && mg.spill != nil && mg.spill.has(c, offset):
		f.Spilled = true
		if f.State = Held; mg.spill.reason != "" {
			f.State = Parked
		}
	}
	if mg == nil || mg.head == nil || f.State == Commit {
		return f
	}
	if mg.head != l {
		f.Head = new(p.Place(mg.head))
	}
	if mg.spill != nil && f.State == Parked {
		f.Reason = mg.spill.reason
	}
	return f
}

// has reports whether a message of the message group that a cursor has passed is in the spill.
func (s *spill) has(c *cursor, offset int64) bool {
	for i := range s.segments {
		if part := &s.segments[i]; part.cursor == c && part.messages > 0 && part.from <= offset {
			return true
		}
	}
	return false
}
