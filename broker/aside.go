package broker

import (
	"math"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
)

const (
	// fetched is how many messages that were set aside are read at a time, and
	// fewHeld how few of a message group are left in memory when more are read.
	fetched = 256
	fewHeld = 64
)

// A rest is the end of a message group whose head holds it for long, or did:
// on disk only, so that neither memory nor other message groups mind how long
// it is. While there is one, what comes joins its end.
type rest struct {
	away      bool      // the head is parked, or blocked: nothing is read back
	reason    string    // why it is parked; empty if it is not
	stretches []stretch // in order
	messages  int64     // of all stretches
	wanted    bool      // somebody is about to read it back
}

// A stretch is a part of a rest in one queue. A message group has more than one
// only after its topic got more queues.
type stretch struct {
	cursor          *cursor
	from            int64 // no message of it is before this offset
	messages, bytes int64
}

// asides are the rests of a subscription, all guarded by its mu.
type asides struct {
	messages int64 // of all rests
	parked   int64 // of those: behind a parked one
	blocked  int64 // message groups whose head is retried for ever
	wanted   []wanted
	running  bool // fetchAll is
}

type wanted struct {
	name string
	mg   *messageGroup
	rest *rest
}

// setAside puts a message at the end of a rest; the caller writes it. mu is held.
func (s *subscription) setAside(mg *messageGroup, l *lease) {
	l.State = uint8(consume.Held)
	s.extend(mg.rest, l.cursor, l.offset, l.Size)
}

func (s *subscription) extend(r *rest, c *cursor, offset, size int64) {
	if n := len(r.stretches); n == 0 || r.stretches[n-1].cursor != c {
		r.stretches = append(r.stretches, stretch{cursor: c, from: offset})
	}
	last := &r.stretches[len(r.stretches)-1]
	last.messages++
	last.bytes += size
	s.leasedBytes.Add(size) // passed, though not in memory
	s.count(r, 1)
}

// count keeps the sums when a rest gets n messages more. mu is held.
func (s *subscription) count(r *rest, n int64) {
	r.messages += n
	s.aside.messages += n
	if r.reason != "" {
		s.aside.parked += n
	}
}

// closeOff sets aside all that follows the head of a message group, and what
// will: it is parked for that reason or, if that is empty, blocked. It returns
// what was in memory, for the caller to write. mu is held.
func (s *subscription) closeOff(mg *messageGroup, reason string) (moved []*lease) {
	if mg.rest != nil {
		s.callBack(mg) // blocked before, or not read back wholly
	}
	r := &rest{away: true, reason: reason}
	for _, l := range mg.held {
		s.drop(l)
		s.counts[consume.Held]--
		s.extend(r, l.cursor, l.offset, l.Size)
	}
	moved, mg.held = mg.held, nil
	if old := mg.rest; old != nil {
		s.count(old, -old.messages)
		for _, sp := range old.stretches {
			if n := len(r.stretches); n > 0 && r.stretches[n-1].cursor == sp.cursor {
				r.stretches[n-1].messages += sp.messages
				r.stretches[n-1].bytes += sp.bytes
			} else {
				r.stretches = append(r.stretches, sp)
			}
			s.count(r, sp.messages)
		}
	}
	mg.rest = r // a new one: who reads the old one back notices
	if reason == "" {
		s.aside.blocked++
	}
	return moved
}

// callBack ends that a message group is parked or blocked. mu is held.
func (s *subscription) callBack(mg *messageGroup) {
	r := mg.rest
	switch {
	case r.away && r.reason != "":
		s.aside.parked -= r.messages
	case r.away:
		s.aside.blocked--
	}
	r.away, r.reason = false, ""
	if r.messages == 0 {
		mg.rest = nil
	}
}

// block sets aside what follows a message that is retried after its last attempt, and notes that in
// its lease: retention keeps the message itself until it is done. mu is held.
func (s *subscription) block(l *lease) {
	mg := s.fifo[l.Group]
	if !l.Blocked {
		l.Blocked = true
		s.saveLazily(l)
	}
	if mg.rest != nil && mg.rest.away {
		return
	}
	full := s.counts[consume.Held] >= maxHeld
	if moved := s.closeOff(mg, ""); len(moved) > 0 {
		s.broker.store.Groups.AddLazy(func(w *store.Batch) { s.moveAside(w, moved) })
	}
	if full {
		s.wakeRest()
	}
}

// moveAside writes that leases are set aside.
func (s *subscription) moveAside(w *store.Batch, ls []*lease) {
	for _, l := range ls {
		w.DeleteLease(s.group.id, s.place(l))
		w.PutAside(s.group.id, s.place(l), &l.Lease)
	}
}

// fetch has some of a message group's rest read back. mu is held.
func (s *subscription) fetch(name string, mg *messageGroup) {
	if mg.rest.wanted {
		return
	}
	if !s.aside.running {
		if !s.broker.begin() {
			return // it is read after the restart
		}
		s.aside.running = true
		go s.fetchAll()
	}
	mg.rest.wanted = true
	s.aside.wanted = append(s.aside.wanted, wanted{name, mg, mg.rest})
}

// fetchAll reads back what is wanted. One runs at a time; the broker waits for it.
func (s *subscription) fetchAll() {
	b := s.broker
	defer b.end()
	for {
		w, sp, limit := s.nextWanted()
		if w.rest == nil {
			return
		}
		q := sp.cursor.queue.number
		ls, offsets, err := b.store.Aside(s.group.id, s.topic.id, q, w.name, sp.from, limit)
		if err == nil && len(ls) == 0 { // on its way to the disk
			if err = b.store.Groups.Add(func(*store.Batch) {}, nil).Wait(); err == nil {
				ls, offsets, err = b.store.Aside(s.group.id, s.topic.id, q, w.name, sp.from, limit)
			}
		}
		s.mu.Lock()
		valid := !s.gone && s.fifo[w.name] == w.mg && w.mg.rest == w.rest && !w.rest.away
		if valid && err == nil {
			s.takeBack(w, ls, offsets)
		}
		s.mu.Unlock()
		if !valid || err == nil {
			continue
		}
		b.logger.Error("messages that were set aside could not be read; it is tried again in a second",
			"group", s.group.name, "topic", s.topic.name, "message_group", w.name, "error", err)
		select {
		case <-time.After(time.Second):
		case <-b.life.Done():
		}
		s.mu.Lock()
		if w.mg.rest == w.rest && b.life.Err() == nil {
			s.fetch(w.name, w.mg)
		}
		s.mu.Unlock()
	}
}

// nextWanted returns what to read back next; nothing if that was all.
func (s *subscription) nextWanted() (wanted, stretch, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.aside.wanted) > 0 && !s.gone {
		w := s.aside.wanted[0]
		s.aside.wanted = s.aside.wanted[1:]
		w.rest.wanted = false
		if w.mg.rest != w.rest || w.rest.away || len(w.rest.stretches) == 0 {
			continue
		}
		limit := fetched
		if s.counts[consume.Held] >= maxHeld {
			limit = 1
		}
		sp := w.rest.stretches[0]
		return w, sp, int(min(int64(limit), sp.messages))
	}
	s.aside.wanted, s.aside.running = nil, false
	return wanted{}, stretch{}, 0
}

// takeBack puts messages that were read back behind those in memory. mu is held.
func (s *subscription) takeBack(w wanted, recs []store.Lease, offsets []int64) {
	r := w.rest
	sp := &r.stretches[0]
	c := sp.cursor
	if len(recs) == 0 { // a disk that lost something: nothing else shall be
		s.done(sp.messages, sp.bytes, time.Now())
		s.leasedBytes.Add(-sp.bytes)
		s.count(r, -sp.messages)
		sp.messages = 0
	}
	ls := make([]*lease, len(recs))
	for i := range recs {
		l := &lease{Lease: recs[i], cursor: c, offset: offsets[i], timer: -1}
		l.Group, l.State, l.Keep = w.name, 0, true
		s.leasedBytes.Add(-l.Size)
		s.keep(l)
		s.set(l, consume.Held)
		w.mg.held = append(w.mg.held, l)
		sp.messages--
		sp.bytes -= l.Size
		sp.from = l.offset + 1
		s.count(r, -1)
		ls[i] = l
	}
	if sp.messages == 0 {
		r.stretches = r.stretches[1:]
	}
	if r.messages == 0 {
		w.mg.rest = nil
	}
	if w.mg.head == nil {
		s.advance(w.name, w.mg)
	}
	s.broker.store.Groups.AddLazy(func(b *store.Batch) {
		for _, l := range ls {
			b.DeleteAside(s.group.id, s.place(l), w.name)
			b.PutLease(s.group.id, s.place(l), &l.Lease)
		}
	})
}

// restoreAside brings back that a message is set aside, after all leases.
func (s *subscription) restoreAside(p store.Place, name string, rec store.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doneMessages.Add(-1)
	s.doneBytes.Add(-rec.Size)
	mg := s.fifo[name]
	if mg == nil {
		mg = &messageGroup{}
		s.fifo[name] = mg
	}
	if mg.rest == nil {
		mg.rest = &rest{}
	}
	s.extend(mg.rest, s.cursors[p.Queue], p.Offset, rec.Size)
}

// resume goes on, once everything is restored, with what was under way. mu is held.
func (s *subscription) resume() {
	for name, mg := range s.fifo {
		switch {
		case mg.head == nil:
			s.fetch(name, mg)
		case mg.head.Blocked:
			s.block(mg.head)
		}
	}
}

// firstAside returns the offset of the first message of a queue that is set
// aside, or one that is before it; the largest number if there is none.
func (s *subscription) firstAside(q *queue) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := int64(math.MaxInt64)
	if s.aside.messages == 0 {
		return first
	}
	for _, mg := range s.fifo {
		if mg.rest == nil {
			continue
		}
		for _, st := range mg.rest.stretches {
			if st.cursor.queue == q && st.messages > 0 {
				first = min(first, st.from)
			}
		}
	}
	return first
}

// forgetAside forgets, in memory, what is set aside in some queues, and returns
// how much that was in each. mu is held.
func (s *subscription) forgetAside(of func(*cursor) bool) (lost map[*cursor]Backlog) {
	lost = map[*cursor]Backlog{}
	for _, mg := range s.fifo {
		if mg.rest == nil {
			continue
		}
		r := *mg.rest
		r.stretches, r.wanted = nil, false
		for _, st := range mg.rest.stretches {
			if !of(st.cursor) {
				r.stretches = append(r.stretches, st)
				continue
			}
			s.count(&r, -st.messages)
			s.leasedBytes.Add(-st.bytes)
			b := lost[st.cursor]
			lost[st.cursor] = Backlog{b.Messages + st.messages, b.Bytes + st.bytes}
		}
		mg.rest = &r // a new one: who reads the old one back notices
	}
	return lost
}
