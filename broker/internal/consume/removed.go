package consume

import (
	"container/heap"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Removal is the removal of messages from the beginning of a queue.
type Removal struct {
	Queue int
	To    store.Mark // the first message that stays

	// Again means that an earlier removal has removed the messages before To and kept those of
	// Offsets. Only the leases of Offsets may be over now.
	Again   bool
	Offsets []int64
}

// Needed reports whether retention keeps a message that is too old. It keeps
//   - a message that was parked, blocked or spilled,
//   - a message that is in flight, waits for its retry or becomes a dead letter, and
//   - a message that is ready again, for the grace period.
func (l *Lease) Needed(grace time.Duration, now time.Time) bool {
	switch {
	case l.Retain || l.Blocked:
		return true
	case l.State() == Held:
		return false
	case l.State() == Ready:
		return l.Attempt > 0 && now.Before(l.Due.Add(grace))
	}
	return true
}

// SkipRemoved moves the group over removed messages, and returns the amount that the group loses
// because it has not consumed them. For each lease before the end of a removal, gone decides
// whether its message is removed; the other messages stay. A purge also removes spilled messages.
func (p *Progress) SkipRemoved(removals []Removal, purge bool, gone func(*Lease) bool) (lost Amount) {
	var ended []*Lease
	for _, r := range removals {
		if r.Queue >= len(p.cursors) {
			continue
		}
		c := p.cursors[r.Queue]
		if r.Again {
			for _, o := range r.Offsets {
				if l := c.leases[o]; l != nil && gone(l) {
					ended = append(ended, l)
				}
			}
			continue
		}
		for o, l := range c.leases {
			if o < r.To.Offset && gone(l) {
				ended = append(ended, l)
			}
		}
		if c.next < r.To.Offset {
			lost.add(r.To.Offset-c.next, r.To.Bytes-c.bytes)
			c.next, c.bytes = r.To.Offset, r.To.Bytes
			p.newRound()
			p.putCursor(c)
		}
	}
	if purge {
		p.purgeSpilled(removals, &lost)
	}
	p.effects.Done.add(lost.Messages, lost.Bytes)
	for _, l := range ended {
		lost.add(1, l.Size)
	}
	p.endRemoved(ended)
	if !purge {
		p.stats.Overtaken += lost.Messages
	}
	return lost
}

// purgeSpilled drops the spilled messages of queues that are purged completely. In a queue in which
// the group has passed later messages, the spilled messages stay, and TakeBack notices which of
// them are gone.
func (p *Progress) purgeSpilled(removals []Removal, lost *Amount) {
	if p.spilled.messages == 0 {
		return
	}
	purged := map[*cursor]bool{}
	for _, r := range removals {
		if r.Queue < len(p.cursors) {
			c := p.cursors[r.Queue]
			purged[c] = c.next <= r.To.Offset
		}
	}
	for c, sum := range p.forgetSpilled(func(c *cursor) bool { return purged[c] }) {
		lost.add(sum.Messages, sum.Bytes)
		p.effects.add(Write{Kind: DeleteAllSpilled, Queue: c.number})
	}
	for name, mg := range p.groups {
		if mg.head == nil {
			p.promote(name, mg)
		}
	}
}

// endRemoved ends the leases of removed messages. These messages do not count in the drain rate.
func (p *Progress) endRemoved(ls []*Lease) {
	cursors, groups := map[*cursor]bool{}, map[string]bool{}
	for _, l := range ls {
		if l.dueIndex >= 0 {
			heap.Remove(&p.due, l.dueIndex)
		}
		p.uncount(l)
		l.Lease.State = 0
		p.removeLease(l)
		p.effects.Done.add(1, l.Size)
		p.deleteLease(l)
		if l.Group != "" {
			p.write(DeleteParked, l, "")
		}
		cursors[l.cursor] = true
		if p.groups[l.Group] != nil {
			groups[l.Group] = true
		}
	}
	isGone := func(l *Lease) bool { return l.Lease.State == 0 }
	for c := range cursors {
		c.ready = slices.DeleteFunc(c.ready, isGone)
		heap.Init(&c.ready)
	}
	for name := range groups {
		mg := p.groups[name]
		mg.held = slices.DeleteFunc(mg.held, isGone)
		if mg.head != nil && isGone(mg.head) {
			p.promote(name, mg)
		}
	}
	if len(groups) > 0 {
		p.effects.WakeRest = true
	}
}
