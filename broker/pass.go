package broker

import (
	"container/heap"
	"slices"

	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// pass moves a group over the messages that a round of retention removes, and returns those that
// it loses: it has not consumed them. It notes in the plan those that are kept for the group.
func (s *subscription) pass(r *round) (lost Backlog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return lost
	}
	var gone []*lease
	var moved []*cursor
	look := func(q *retention.QueuePlan, l *lease) {
		if !r.Purge && (!r.Expired(q, l.offset) || l.holds(r.Policy, r.Now)) {
			q.Keep(l.offset, l.Due.Add(r.Grace()))
			return
		}
		gone = append(gone, l)
	}
	for i := range r.Queues {
		q := &r.Queues[i]
		if int(q.Number) >= len(s.cursors) {
			continue
		}
		c := s.cursors[q.Number]
		if !q.Moves() { // nothing new; leftovers may be done
			for o := range q.Leftovers {
				if l := c.leases[o]; l != nil {
					look(q, l)
				}
			}
			continue
		}
		for o, l := range c.leases {
			if o < q.To.Offset {
				look(q, l)
			}
		}
		if c.next < q.To.Offset {
			lost.Messages += q.To.Offset - c.next
			lost.Bytes += q.To.Bytes - c.bytes
			c.next, c.bytes = q.To.Offset, q.To.Bytes
			moved = append(moved, c)
		}
	}
	var aside []*cursor
	if r.Purge {
		aside = s.purgeAside(r, &lost)
	}
	s.doneMessages.Add(lost.Messages)
	s.doneBytes.Add(lost.Bytes)
	for _, l := range gone {
		lost.Messages++
		lost.Bytes += l.Size
	}
	s.discard(gone)
	if !r.Purge {
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
func (s *subscription) purgeAside(r *round, lost *Backlog) (cursors []*cursor) {
	if s.aside.messages == 0 {
		return nil
	}
	whole := map[*cursor]bool{}
	for i := range r.Queues {
		if q := &r.Queues[i]; int(q.Number) < len(s.cursors) {
			c := s.cursors[q.Number]
			whole[c] = c.next <= q.To.Offset
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
