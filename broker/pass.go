package broker

import (
	"container/heap"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// pass moves a group over what a sweep removes, and returns what it loses by
// that: messages that it has not consumed. What is kept for it is noted in the sweep.
func (s *subscription) pass(w *sweep) (lost Backlog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return lost
	}
	var gone []*lease
	var moved []*cursor
	look := func(sp *span, l *lease) {
		if !w.purge && (!w.expired(sp, l.offset) || l.holds(w.keep, w.now)) {
			sp.hold(l, l.Due.Add(min(readyGrace, w.keep)))
			return
		}
		gone = append(gone, l)
	}
	for i := range w.spans {
		sp := &w.spans[i]
		if int(sp.queue.number) >= len(s.cursors) {
			continue
		}
		c := s.cursors[sp.queue.number]
		if sp.to == sp.swept { // nothing new; those kept may be done
			for o := range sp.queue.kept {
				if l := c.leases[o]; l != nil {
					look(sp, l)
				}
			}
			continue
		}
		for o, l := range c.leases {
			if o < sp.to.Offset {
				look(sp, l)
			}
		}
		if c.next < sp.to.Offset {
			lost.Messages += sp.to.Offset - c.next
			lost.Bytes += sp.to.Bytes - c.bytes
			c.next, c.bytes = sp.to.Offset, sp.to.Bytes
			moved = append(moved, c)
		}
	}
	var aside []*cursor
	if w.purge {
		aside = s.purgeAside(w, &lost)
	}
	s.doneMessages.Add(lost.Messages)
	s.doneBytes.Add(lost.Bytes)
	for _, l := range gone {
		lost.Messages++
		lost.Bytes += l.Size
	}
	s.discard(gone)
	if !w.purge {
		s.overtaken += lost.Messages
	}
	if len(gone) > 0 || len(moved) > 0 || len(aside) > 0 {
		s.broker.store.Groups.AddLazy(func(b *store.Batch) {
			for _, l := range gone {
				b.DeleteLease(s.group.id, s.place(l))
				if l.Group != "" {
					b.DeleteParked(s.group.id, s.place(l))
				}
			}
			for _, c := range aside {
				b.DeleteAsides(s.group.id, s.topic.id, c.queue.number)
			}
			for _, c := range moved {
				b.PutCursor(s.group.id, s.topic.id, c.queue.number, store.Cursor{Next: c.next, Bytes: c.bytes, Rewound: c.rewound})
			}
		})
	}
	s.arm()
	return lost
}

// purgeAside forgets what is set aside in queues that are purged, and adds it
// to lost. Where the group is past what is purged already, that stays: what of it is
// gone is noticed when it is read back. mu is held.
func (s *subscription) purgeAside(w *sweep, lost *Backlog) (cursors []*cursor) {
	if s.aside.messages == 0 {
		return nil
	}
	whole := map[*cursor]bool{}
	for i := range w.spans {
		if sp := &w.spans[i]; int(sp.queue.number) < len(s.cursors) {
			c := s.cursors[sp.queue.number]
			whole[c] = c.next <= sp.to.Offset
		}
	}
	for c, b := range s.forgetAside(func(c *cursor) bool { return whole[c] }) {
		lost.Messages += b.Messages
		lost.Bytes += b.Bytes
		cursors = append(cursors, c)
	}
	for name, mg := range s.fifo {
		if mg.head == nil {
			s.advance(name, mg)
		}
	}
	return cursors
}

// hold notes that a group is not done with a message of the span.
func (sp *span) hold(l *lease, until time.Time) {
	k := sp.kept[l.offset]
	if k == nil {
		k = &kept{}
		if was := sp.queue.kept[l.offset]; was != nil {
			k.Stored, k.known = was.Stored, true
		}
		sp.kept[l.offset] = k
	}
	k.until = latest(k.until, until)
}

// discard ends leases whose messages are removed: nobody has consumed them. mu is held.
func (s *subscription) discard(ls []*lease) {
	cursors, groups := map[*cursor]bool{}, map[string]bool{}
	for _, l := range ls {
		if l.timer >= 0 {
			heap.Remove(&s.timers, l.timer)
		}
		s.counts[l.State]--
		l.State = 0
		s.drop(l)
		s.doneMessages.Add(1)
		s.doneBytes.Add(l.Size)
		cursors[l.cursor] = true
		if s.fifo[l.Group] != nil {
			groups[l.Group] = true
		}
	}
	isGone := func(l *lease) bool { return l.State == 0 }
	for c := range cursors {
		c.ready = slices.DeleteFunc(c.ready, isGone)
		heap.Init(&c.ready)
	}
	for name := range groups {
		mg := s.fifo[name]
		mg.held = slices.DeleteFunc(mg.held, isGone)
		if isGone(mg.head) {
			s.advance(name, mg)
		}
	}
	if len(groups) > 0 {
		s.wakeRest()
	}
}
