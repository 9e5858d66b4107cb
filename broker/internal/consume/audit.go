package consume

import (
	"fmt"

	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// Audit compares all counts, heaps and message groups with the leases, and returns the first
// difference as an error. It is for tests, between operations.
func (p *Progress) Audit() error {
	var counts Counts
	timed := 0
	heads, held := map[string]int{}, map[string]int{}
	for _, c := range p.cursors {
		ready := 0
		ages, inAges := map[int64]int{}, map[int64]int{}
		for o, l := range c.leases {
			if l.cursor != c || l.offset != o || o >= c.next {
				return fmt.Errorf("queue %d has the lease %+v at %d; its next offset is %d", c.number, l, o, c.next)
			}
			counts[l.Lease.State]++
			ages[l.Stored/throttle.AgeTick]++
			switch l.State() {
			case Inflight, WaitingRetry:
				timed++
				if l.dueIndex < 0 || p.due[l.dueIndex] != l {
					return fmt.Errorf("offset %d of queue %d is %s, and is not among those that are due", o, c.number, l.State())
				}
			case Ready:
				ready++
			}
			if mg := p.groups[l.Group]; mg != nil && l.Group != "" {
				if l.State() == Held {
					held[l.Group]++
				} else {
					heads[l.Group]++
				}
			}
		}
		for stored, n := range c.ages.All() {
			inAges[stored/throttle.AgeTick] += n
		}
		for tick, n := range ages {
			if inAges[tick] != n {
				return fmt.Errorf("queue %d counts %d leases of the age %d; there are %d", c.number, inAges[tick], tick, n)
			}
		}
		if ready != len(c.ready) {
			return fmt.Errorf("queue %d has %d ready leases, and %d in its heap", c.number, ready, len(c.ready))
		}
		for i, l := range c.ready {
			if l.State() != Ready || c.leases[l.offset] != l || i > 0 && c.ready[(i-1)/2].offset > l.offset {
				return fmt.Errorf("the ready heap of queue %d has %+v at %d", c.number, l, i)
			}
		}
	}
	if counts != p.counts || timed != len(p.due) {
		return fmt.Errorf("the leases by state are %v, and %d are due; it counts %v and %d", counts, timed, p.counts, len(p.due))
	}
	for i, l := range p.due {
		if i > 0 && p.due[(i-1)/2].Due.After(l.Due) {
			return fmt.Errorf("the heap of those that are due is not in order at %d", i)
		}
	}
	return p.auditGroups(heads, held)
}

// auditGroups compares the message groups with their heads and held messages by the leases.
func (p *Progress) auditGroups(heads, held map[string]int) error {
	var spilled spilledCounts
	ahead := aheadCounts{round: p.ahead.round}
	for name, mg := range p.groups {
		if mg.head == nil && mg.spill == nil || mg.head == nil && len(mg.held) > 0 {
			return fmt.Errorf("message group %q has no head: %+v", name, mg)
		}
		if mg.head != nil && (heads[name] != 1 || mg.head.cursor.leases[mg.head.offset] != mg.head || mg.head.State() == Held) {
			return fmt.Errorf("message group %q has %d heads, of which it knows %+v", name, heads[name], mg.head)
		}
		if len(mg.held) != held[name] {
			return fmt.Errorf("message group %q has %d held messages, and knows %d", name, held[name], len(mg.held))
		}
		if mg.spill == nil {
			continue
		}
		var sum int64
		for _, part := range mg.spill.segments {
			sum += part.messages
		}
		spilled.messages += sum
		switch {
		case sum != mg.spill.messages:
			return fmt.Errorf("message group %q has %d spilled messages, and counts %d", name, sum, mg.spill.messages)
		case mg.spill.standstill && mg.spill.reason == "":
			spilled.blocked++
			spilled.still++
			spilled.behind += sum
			ahead.blocked += p.aheadOf(mg.spill)
		case mg.spill.standstill:
			spilled.still++
			spilled.parked += sum
			ahead.parked += p.aheadOf(mg.spill)
		}
		if mg.spill.standstill && len(mg.held) > 0 {
			return fmt.Errorf("message group %q stands still, and %d messages are held in memory", name, len(mg.held))
		}
	}
	if ahead != p.ahead {
		return fmt.Errorf("the new messages behind those are %+v; it counts %+v", ahead, p.ahead)
	}
	if spilled != p.spilled {
		return fmt.Errorf("the spilled messages are %+v; it counts %+v", spilled, p.spilled)
	}
	return nil
}
