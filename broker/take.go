package broker

import (
	"container/heap"
	"errors"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// take reserves messages for a receive: those due again first, then new ones.
// If there are none it returns a waiter, already in line, or neither if it
// passed messages over and should be called again.
func (s *subscription) take(p *Poll) (grants []grant, flight *store.Flight, w *waiter, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, nil, nil, s.goneError()
	}
	s.lastTake = time.Now()
	budget := p.budget()
	grants, flight = s.takeReady(nil, s.readyShare(p), p, &budget)
	passed, chunk := 0, 0
	for len(grants) < p.Max && budget > 0 && passed < maxPassed {
		c := s.claim(p.Queue)
		if c == nil {
			break
		}
		from, to := c.next, c.queue.end.Load()
		room, kept := p.Max-len(grants), keptBytes(grants)
		chunk = max(chunk, room)
		ms, offsets, end, refused, rerr := s.readUnlocked(p, c, from, to, chunk, budget, kept)
		d, _ := errors.AsType[*store.Damaged](rerr)
		if !s.unclaim(c) && !s.gone && (rerr == nil || d != nil) {
			passed++
			continue
		}
		if len(ms) == 0 && refused != nil && !s.gone {
			s.dropAhead(c)
			if err = refused; len(grants) > 0 {
				err = nil
			}
			break
		}
		if len(ms) == 0 && (rerr == nil || d != nil) && !s.gone {
			if d != nil {
				to = d.To
			}
			if f := s.passHole(c, to, end); f != nil {
				flight = f
			}
			passed += int(max(1, to-from))
			continue
		}
		if rerr != nil || s.gone {
			s.dropAhead(c)
			if err = s.goneError(); rerr != nil {
				err = storeError(rerr)
			}
			break
		}
		before := len(grants)
		grants, flight = s.admit(grants, c, ms, offsets, room, p, &budget)
		passed += len(ms)
		if chunk = min(2*chunk, maxChunk); len(grants) > before {
			chunk = 0
		}
		s.wakeRest()
		if refused != nil {
			break
		}
	}
	if err == nil {
		if more, f := s.takeReady(grants, p.Max, p, &budget); f != nil {
			grants, flight = more, f
		}
	}
	s.arm()
	if len(grants) > 0 || err != nil {
		s.wakeRest()
	} else if passed == 0 {
		w = &waiter{queue: p.Queue, woken: make(chan struct{})}
		s.waiters = append(s.waiters, w)
	}
	return grants, flight, w, err
}

// readUnlocked is readAdmitted, beside other calls: mu is held before and after it, also after a
// panic. Where nothing is left, end is where the queue ends.
func (s *subscription) readUnlocked(p *Poll, c *cursor, from, to int64, limit int, maxBytes, kept int64) (ms []store.Message, offsets []int64, end store.Mark, refused, err error) {
	s.mu.Unlock()
	defer s.mu.Lock()
	ms, offsets, refused, err = s.readAdmitted(p, c, from, to, limit, maxBytes, kept)
	if len(ms) == 0 {
		end = s.broker.endOf(c.queue)
	}
	if d, ok := errors.AsType[*store.Damaged](err); ok {
		s.lost(store.Place{Topic: s.topic.id, Queue: c.queue.number, Offset: d.From}, d.To, d.Err)
	}
	return ms, offsets, end, refused, err
}

// readyShare returns how many of the messages of a receive may be such that
// are due again, or whose turn has come: all, unless there are new ones, which
// then get a quarter, so that retries never keep them waiting for ever. mu is held.
func (s *subscription) readyShare(p *Poll) int {
	if s.counts[StateReady] == 0 || !slices.ContainsFunc(s.cursors, func(c *cursor) bool { return s.claimable(c, p.Queue) }) {
		return p.Max
	}
	s.shares++
	if p.Max < 4 && s.shares%4 == 0 {
		return 0
	}
	return p.Max - p.Max/4
}

// takeReady delivers, beside grants, up to limit messages in all that are due
// again, or whose turn has come, and writes that. mu is held.
func (s *subscription) takeReady(grants []grant, limit int, p *Poll, budget *int64) ([]grant, *store.Flight) {
	if s.counts[StateReady] == 0 {
		return grants, nil
	}
	now := time.Now()
	var ls []*lease
	s.readyTurn++
	for i := range s.cursors {
		c := s.cursors[(s.readyTurn+i)%len(s.cursors)]
		if p.Queue >= 0 && int(c.queue.number) != p.Queue {
			continue
		}
		for len(c.ready) > 0 && len(grants) < limit && spend(budget, c.ready[0].Size, len(grants)) {
			l := heap.Pop(&c.ready).(*lease)
			ls = append(ls, l)
			grants = append(grants, s.deliver(l, p, now))
		}
	}
	if len(ls) == 0 {
		return grants, nil
	}
	return grants, s.saveLazily(ls...)
}

// budget returns how many bytes of bodies a receive may bring; the first message may have more.
func (p *Poll) budget() int64 {
	if p.MaxBytes > 0 {
		return min(int64(p.MaxBytes), maxReceiveBytes)
	}
	return maxReceiveBytes
}

// spend takes a message of that size out of the budget of a receive that has n messages.
// It returns false, and ends the budget, if the message does not fit.
func spend(budget *int64, size int64, n int) bool {
	if *budget <= 0 || n > 0 && size > *budget {
		*budget = 0
		return false
	}
	*budget -= size
	return true
}

// claimable reports whether a receive from queue can read new messages there. mu is held.
func (s *subscription) claimable(c *cursor, queue int) bool {
	return (queue < 0 || int(c.queue.number) == queue) && !c.claimed && c.next < c.queue.end.Load() && s.counts[consume.Held] < maxHeld
}

// claim chooses a queue with new messages that no other receive reads. mu is held.
func (s *subscription) claim(queue int) *cursor {
	for i := range s.cursors {
		c := s.cursors[(s.turn+i)%len(s.cursors)]
		if !s.claimable(c, queue) {
			continue
		}
		s.turn = (s.turn + i + 1) % len(s.cursors)
		c.claimed = true
		return c
	}
	return nil
}

// admit moves a cursor over messages that were read: those that match are
// delivered, beside grants, or held until it is their turn. It stops when it has delivered
// room messages, or spent the budget of bytes. mu is held.
func (s *subscription) admit(grants []grant, c *cursor, ms []store.Message, offsets []int64, room int, p *Poll, budget *int64) ([]grant, *store.Flight) {
	now := time.Now()
	fifo := s.group.config.Load().FIFO
	grants = slices.Grow(grants, min(room, len(ms)))
	full := len(grants) + room
	ls := make([]*lease, 0, len(ms))
	var aside []*lease
	for i := range ms {
		m := &ms[i]
		if len(grants) == full {
			break
		}
		if offsets[i] < c.next {
			continue // removed while it was read, see pass
		}
		if len(grants) > 0 && int64(len(m.Body)) > *budget {
			*budget = 0
			break
		}
		if skipped, bytes := offsets[i]-c.next, m.Cumulative-int64(len(m.Body))-c.bytes; skipped > 0 || bytes > 0 {
			s.done(skipped, bytes, now) // removed meanwhile, as is what was before the cursor and not counted then, or damaged, see passHole
		}
		c.next, c.bytes = offsets[i]+1, m.Cumulative
		if !p.wants(m) {
			s.done(1, int64(len(m.Body)), now)
			continue
		}
		l := &lease{cursor: c, offset: offsets[i], timer: -1}
		l.Size, l.Stored, l.Serial = int64(len(m.Body)), m.StoredAt.UnixNano(), firstSerial(now, c.rewound)
		if fifo && m.MessageGroup != "" {
			l.Group = m.MessageGroup
			if mg := s.fifo[l.Group]; mg != nil && mg.rest != nil {
				s.setAside(mg, l)
				aside = append(aside, l)
				continue
			} else if mg != nil {
				mg.held = append(mg.held, l)
				s.keep(l)
				ls = append(ls, l)
				s.set(l, consume.Held)
				continue
			}
			s.fifo[l.Group] = &messageGroup{head: l}
		}
		s.keep(l)
		ls = append(ls, l)
		l.State = uint8(StateReady)
		s.counts[StateReady]++
		g := s.deliver(l, p, now)
		g.message = m
		grants = append(grants, g)
		*budget -= int64(len(m.Body))
	}
	return grants, s.saveAdmitted(c, aside, ls)
}

// firstSerial returns a serial number for a message that has none: one that no
// handle of before a rewind, or of a group of the same name, has.
func firstSerial(now time.Time, rewound int64) uint32 {
	return uint32(now.UnixMicro()) + uint32(rewound)*0x9E3779B1
}

// deliver makes one delivery of a message that is ready. mu is held.
func (s *subscription) deliver(l *lease, p *Poll, now time.Time) grant {
	to, _ := l.state().Next(consume.EventDeliver, consume.AttemptsLeft, p.Push)
	l.Attempt++
	l.renumber()
	l.Push, l.Negative, l.Owner = p.Push, false, p.Owner
	l.Since, l.Due = now, now.Add(p.InvisibleDuration)
	s.set(l, to)
	return s.grant(l)
}

func (s *subscription) grant(l *lease) grant {
	return grant{
		lease: l, attempt: l.Attempt, due: l.Due,
		handle: handle.Receipt{Group: s.group.id, Place: s.place(l), Serial: l.Serial},
	}
}
