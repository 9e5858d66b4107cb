package consume

import (
	"cmp"
	"slices"
	"time"
)

// A LeaseState is the state of a message that has a lease.
type LeaseState struct {
	Queue        int
	Offset       int64
	State        State
	Attempt      int
	Due          time.Time // end of the invisible duration or of the retry interval; zero in other states
	Since        time.Time // begin of the last delivery, in state Inflight only
	Owner        string    // the client whose heartbeats keep the lease
	Holder       string    // the client that has the delivery, in state Inflight only; empty if it is not known
	MessageGroup string
	Size         int64 // of the body
}

// Compare orders leases by due time if byDue is set, those without one last, and then by position.
func (s *LeaseState) Compare(o *LeaseState, byDue bool) int {
	if byDue {
		if s.Due.IsZero() != o.Due.IsZero() {
			return cmp.Compare(o.Due.UnixNano(), s.Due.UnixNano())
		}
		if c := s.Due.Compare(o.Due); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(s.Queue, o.Queue), cmp.Compare(s.Offset, o.Offset))
}

// A LeaseQuery selects leases.
type LeaseQuery struct {
	State State       // 0 means all states
	ByDue bool        // in the order of their due times, not of their positions
	After *LeaseState // the lease before the page; nil means the first page
	Limit int
}

// LeasePage returns the first leases that the query selects, and whether there are more. It looks
// at all leases; spilled messages are not in memory, and not among them.
func (p *Progress) LeasePage(q LeaseQuery) (page []LeaseState, more bool) {
	compare := func(x, y LeaseState) int { return x.Compare(&y, q.ByDue) }
	for _, c := range p.cursors {
		for _, l := range c.leases {
			if q.State != 0 && l.State() != q.State {
				continue
			}
			s := l.describe()
			if q.After != nil && s.Compare(q.After, q.ByDue) <= 0 || more && s.Compare(&page[q.Limit-1], q.ByDue) > 0 {
				continue
			}
			if page = append(page, s); len(page) == 2*q.Limit { // the rest cannot be on the page
				slices.SortFunc(page, compare)
				page, more = page[:q.Limit], true
			}
		}
	}
	slices.SortFunc(page, compare)
	if len(page) > q.Limit {
		page, more = page[:q.Limit], true
	}
	return page, more
}

func (l *Lease) describe() LeaseState {
	s := LeaseState{
		Queue: int(l.cursor.number), Offset: l.offset, State: l.State(), Attempt: l.Attempt, Owner: l.Owner, MessageGroup: l.Group, Size: l.Size,
	}
	if l.dueIndex >= 0 {
		s.Due = l.Due
	}
	if s.State == Inflight {
		s.Since, s.Holder = l.Since, l.Receiver()
	}
	return s
}

// Unfinished returns the number of messages before the cursor of a queue that are not finished,
// spilled ones included.
func (p *Progress) Unfinished(queue int) int64 {
	c := p.cursors[queue]
	n := int64(len(c.leases))
	for _, mg := range p.groups {
		if mg.spill == nil {
			continue
		}
		for i := range mg.spill.segments {
			if s := &mg.spill.segments[i]; s.cursor == c {
				n += s.messages
			}
		}
	}
	return n
}

// DueCounts are the numbers of the leases in flight, and of the messages that wait for a retry, by
// the time until they are due.
type DueCounts struct {
	Inflight, WaitingRetry []int64   // by bound, and those after the last bound
	NextLease, NextRetry   time.Time // of the first ones; zero means none
}

// Due counts leases by the time until they are due. The bounds ascend; a lease belongs to the first
// bound that is not less than its time.
func (p *Progress) Due(bounds []time.Duration, now time.Time) DueCounts {
	d := DueCounts{Inflight: make([]int64, len(bounds)+1), WaitingRetry: make([]int64, len(bounds)+1)}
	for _, l := range p.due {
		counts, first := d.Inflight, &d.NextLease
		if l.State() == WaitingRetry {
			counts, first = d.WaitingRetry, &d.NextRetry
		}
		i, _ := slices.BinarySearch(bounds, l.Due.Sub(now))
		counts[i]++
		if first.IsZero() || l.Due.Before(*first) {
			*first = l.Due
		}
	}
	return d
}
