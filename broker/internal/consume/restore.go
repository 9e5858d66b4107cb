package consume

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// RestoreCursor restores a cursor from its record. The record may lie before the first offset of
// the queue, if messages were removed after it was written, or if a power failure undid a later
// record. Then only the time of the rewind is restored.
func (p *Progress) RestoreCursor(queue int, at store.Cursor) {
	c := p.cursors[queue]
	c.rewound = at.Rewound
	if at.Next < c.next {
		return
	}
	p.effects.Done.add(at.Next-c.next, at.Bytes-c.bytes)
	c.next, c.bytes = at.Next, at.Bytes
}

// RestoreLease restores a lease from its record. The caller restores all cursors first. It restores
// leases in the order of their offsets, so the first lease of a message group is its head.
//
// The due time is never further ahead of now than the duration for which it was set, although the
// wall clock may be behind that of the record. The times get the monotonic part of now: a later
// step of the wall clock does not change them.
func (p *Progress) RestoreLease(queue int, offset int64, record store.Lease, fifo bool, now time.Time) {
	record.Due, record.Since = restoredTimes(&record, now)
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
		p.spillHeld(p.groups[l.Group], "not recorded") // until RestoreReason
		p.set(l, Parked)
	default: // Ready, or held behind messages that are done
		p.set(l, Ready)
	}
}

// restoredTimes returns the times of a record that is read at now. Records of earlier versions have
// no Span; their due time is at most as far from the delivery as it was.
func restoredTimes(r *store.Lease, now time.Time) (due, since time.Time) {
	due, since = r.Due, r.Since
	if !since.IsZero() {
		since = now.Add(min(since.Sub(now), 0))
	}
	if due.IsZero() || State(r.State) == Parked { // when it was parked
		return due, since
	}
	ahead, span := due.Sub(now), r.Span
	if span == 0 && !r.Since.IsZero() {
		span = max(due.Sub(r.Since), 0)
	}
	if span > 0 {
		ahead = min(ahead, span)
	}
	return now.Add(ahead), since
}

// RestoreReason restores the reason of a parked message group. The caller restores all leases
// first.
func (p *Progress) RestoreReason(queue int, offset int64, reason string) {
	l := p.cursors[queue].leases[offset]
	if l == nil || l.State() != Parked || reason == "" {
		return
	}
	p.groups[l.Group].spill.reason = reason
}

// RestoreSpilled restores a spilled message from its record. The caller restores all leases and
// reasons first.
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

// Resume restarts the work of message groups after everything is restored: it blocks message groups
// again, and requests the read of spilled messages.
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
