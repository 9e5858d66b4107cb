package consume

import "github.com/tidegate/tidegate/broker/internal/store"

// RestoreCursor takes the record of a cursor. A record before the queue's beginning is from before
// a removal, or a power failure took back the later one: then only the time of the rewind counts.
func (p *Progress) RestoreCursor(queue int, at store.Cursor) {
	c := p.cursors[queue]
	c.rewound = at.Rewound
	if at.Next < c.next {
		return
	}
	p.effects.Done.add(at.Next-c.next, at.Bytes-c.bytes)
	c.next, c.bytes = at.Next, at.Bytes
}

// RestoreLease takes the record of a lease, after all cursors. Leases come in the order of their
// offsets, so the first one of a message group is its head.
func (p *Progress) RestoreLease(queue int, offset int64, record store.Lease, fifo bool) {
	l := &Lease{Lease: record, cursor: p.cursors[queue], offset: offset, dueIndex: -1}
	state := l.State()
	l.Lease.State = 0
	p.addLease(l)
	p.effects.Done.add(-1, -record.Size)
	if l.Group != "" && fifo {
		if mg := p.groups[l.Group]; mg != nil {
			mg.held = append(mg.held, l)
			p.set(l, Held)
			return
		}
		p.groups[l.Group] = &messageGroup{head: l}
	}
	switch {
	case state == Inflight, state == WaitingRetry:
		p.set(l, state)
	case state == Parked && p.groups[l.Group] != nil && p.groups[l.Group].head == l:
		p.spillHeld(p.groups[l.Group], "it is not known any more") // until RestoreReason
		p.set(l, Parked)
	default: // Ready, or held behind messages that are done
		p.set(l, Ready)
	}
}

// RestoreReason takes the record of why a message group is parked, after all leases.
func (p *Progress) RestoreReason(queue int, offset int64, reason string) {
	l := p.cursors[queue].leases[offset]
	if l == nil || l.State() != Parked || reason == "" {
		return
	}
	p.groups[l.Group].spill.reason = reason
}

// RestoreSpilled takes the record of a spilled message, after all leases and reasons.
func (p *Progress) RestoreSpilled(queue int, offset int64, name string, size int64) {
	p.effects.Done.add(-1, -size)
	mg := p.groups[name]
	if mg == nil {
		mg = &messageGroup{}
		p.groups[name] = mg
	}
	if mg.spill == nil {
		mg.spill = &spill{}
	}
	p.extendSpill(mg.spill, p.cursors[queue], offset, size)
}

// Resume continues what was under way, once everything is restored.
func (p *Progress) Resume() {
	for name, mg := range p.groups {
		switch {
		case mg.head == nil:
			p.fetch(name, mg)
		case mg.head.Blocked:
			p.block(mg.head)
		}
	}
}
