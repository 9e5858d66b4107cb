package shelf

import (
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
)

// A Request is one receive.
type Request struct {
	Key
	FIFO        bool
	MaxAttempts int // not positive: no maximum
	Push        bool
	Max         int // positive
	MaxBytes    int // 0: no bound
	Invisible   time.Duration
	Wait        time.Duration
	AttemptID   string
	Repeat      bool
}

// A Waiter is a receive that waits.
type Waiter struct {
	C chan struct{} // of the caller; closed or signalled for Out.Wake

	source *Source
	r      Request
	start  time.Time
	first  time.Time // when it saw a ready message
	linger time.Time // when it collects the ready messages although there are fewer than Max
	woken  bool
	ended  bool
	err    error
}

// Receive returns deliveries, or nothing and no Waiter, or the Waiter of a receive that waits. The
// caller then calls Collect after each wake-up and at the end of its timer, or Leave.
func (s *Shelf) Receive(r Request, now time.Time) (*Waiter, []*tidegate.Delivery, error) {
	src := s.sources[r.Key]
	if s.closed {
		return nil, nil, tidegate.ErrClosed
	}
	if src != nil && src.link != nil && r.AttemptID != "" {
		if ds := src.link.again(r.AttemptID); len(ds) > 0 {
			return nil, ds, nil
		}
	}
	if r.Repeat {
		if src != nil && r.AttemptID != "" {
			s.end(src, r.AttemptID)
		}
		return nil, nil, nil
	}
	if src == nil {
		src = s.add(r.Key)
	}
	s.alarms.remove(&src.alarm)
	if f := &src.full; !f.at.IsZero() {
		f.quick, f.at = now.Sub(f.at) < s.limits.Linger, time.Time{}
	}
	if src.link == nil {
		src.link = newLink(src, r.FIFO, r.MaxAttempts)
		s.open(src)
	}
	w := &Waiter{source: src, r: r, start: now, C: make(chan struct{}, 1)}
	quick := src.full.quick && src.link.ready.len() < r.Max // it has not asked for all of them
	if quick || s.lingers(w, now) {
		s.wake(w) // its next step depends on this moment
	} else if ds := s.hand(src.link, r, now); len(ds) > 0 {
		src.got(len(ds), r.Max, now)
		s.update(src, now)
		return nil, ds, nil
	}
	src.waiters = append(src.waiters, w)
	src.wanted += r.Max
	s.update(src, now)
	return w, nil, nil
}

// got notes the messages of a receive.
func (src *Source) got(n, most int, now time.Time) {
	if n < most {
		src.full = full{}
		return
	}
	src.full.at, src.full.ahead = now, most
}

func (s *Shelf) add(k Key) *Source {
	src := newSource(k)
	s.sources[k] = src
	return src
}

// again returns the deliveries of an earlier receive that are still in flight.
func (l *Link) again(attemptID string) (ds []*tidegate.Delivery) {
	r := l.receives[attemptID]
	if r == nil {
		return nil
	}
	for _, m := range r.messages {
		if m != nil && m.state == leased {
			ds = append(ds, m.deliver())
		}
	}
	return ds
}

// end ends the waiting receives with an AttemptID.
func (s *Shelf) end(src *Source, attemptID string) {
	for _, w := range src.waiters {
		if w.r.AttemptID == attemptID {
			w.ended = true
			s.wake(w)
		}
	}
}

// Collect returns the result of a receive that waited, and whether it has ended. If not, next is
// when to call Collect again without a wake-up; zero means not at all.
func (s *Shelf) Collect(w *Waiter, now time.Time) (ds []*tidegate.Delivery, done bool, next time.Time, err error) {
	src := w.source
	over := w.err != nil || w.ended
	lingers := !over && src.link.open && s.lingers(w, now)
	if !over && !lingers {
		ds = s.hand(src.link, w.r, now)
	}
	if over || len(ds) > 0 {
		src.got(len(ds), w.r.Max, now)
		s.Leave(w, now)
		return ds, true, next, w.err
	}
	if src.link.open {
		if next = w.end(s.limits.Grace); lingers {
			next = w.linger
		} else if !now.Before(next) {
			src.got(0, w.r.Max, now)
			s.Leave(w, now)
			return nil, true, next, nil
		}
	}
	s.slept(w)
	s.update(src, now)
	return nil, false, next, nil
}

// lingers reports whether a receive waits for more messages than are ready: some have just arrived,
// and others are under way. It waits for a quarter of Limits.Linger after each message.
func (s *Shelf) lingers(w *Waiter, now time.Time) bool {
	l := w.source.link
	n := l.ready.len()
	if n == 0 {
		w.first, w.linger = time.Time{}, time.Time{}
	} else if w.first.IsZero() {
		w.first = now
	}
	if n == 0 || n >= w.r.Max || l.credit == 0 {
		return false
	}
	w.linger = l.arrived.Add(s.limits.Linger / 4)
	if from := w.start.Add(s.limits.Linger / 4); w.source.full.quick && from.After(w.linger) {
		w.linger = from // it has asked for messages then
	}
	if last := w.first.Add(s.limits.Linger); last.Before(w.linger) {
		w.linger = last
	}
	return w.linger.After(now)
}

// end returns when the receive returns nothing. Its link is open. Messages that the system has, or
// gets back now, take some time to arrive.
func (w *Waiter) end(grace time.Duration) time.Time {
	l := w.source.link
	end := w.start.Add(w.r.Wait)
	last := end.Add(grace)
	if l.expected.Before(end) {
		last = l.expected.Add(grace)
	}
	for _, t := range []time.Time{w.start.Add(grace), l.openedAt.Add(grace), last} {
		if t.After(end) {
			end = t
		}
	}
	return end
}

// Leave ends a receive that waits.
func (s *Shelf) Leave(w *Waiter, now time.Time) {
	src := w.source
	i := slices.Index(src.waiters, w)
	if i < 0 {
		return
	}
	src.waiters = slices.Delete(src.waiters, i, i+1)
	src.wanted -= w.r.Max
	s.slept(w)
	s.update(src, now)
	s.forget(src)
}

// forget removes a source that has neither links nor receives.
func (s *Shelf) forget(src *Source) {
	if src.link == nil && src.closing == 0 && len(src.waiters) == 0 && s.sources[src.Key] == src {
		delete(s.sources, src.Key)
	}
}

func (s *Shelf) wake(w *Waiter) {
	if !w.woken {
		w.woken = true
		w.source.woken++
		s.out.Wake = append(s.out.Wake, w)
	}
}

func (s *Shelf) slept(w *Waiter) {
	if w.woken {
		w.woken = false
		w.source.woken--
	}
}

// update brings a source up to date after an event: it wakes a receive for a ready message, asks
// for messages, and sets the alarm of a source without receives.
func (s *Shelf) update(src *Source, now time.Time) {
	l := src.link
	if l == nil || !l.open {
		return
	}
	if len(src.waiters) == 0 {
		if src.alarm.place == 0 && l.canReturn() {
			s.wakeAt(&src.alarm, now.Add(s.limits.Idle))
		}
		if src.full.quick {
			s.refill(src)
		}
		return
	}
	if w := src.waiters[0]; l.ready.len() > 0 && src.woken == 0 && (!w.linger.After(now) || !s.lingers(w, now)) {
		s.wake(w)
	}
	s.refill(src)
}

// refill asks for messages if less than half of the wanted and expected ones are under way.
func (s *Shelf) refill(src *Source) {
	l := src.link
	under, wanted := l.ready.len()+l.credit, src.wanted
	if src.full.quick {
		wanted += src.full.ahead
	}
	if 2*under >= wanted {
		return
	}
	n := min(wanted-under, s.limits.Messages-s.held-s.credit, (s.limits.Bytes-s.bytes)/max(s.large, 1)-s.credit)
	if n < 1 && l.credit == 0 {
		if (s.held >= s.limits.Messages || s.bytes >= s.limits.Bytes) && len(l.messages) > 0 {
			if !slices.Contains(s.starved, src) {
				s.starved = append(s.starved, src)
			}
			return
		}
		n = 1 // each source gets on, although the messages and the credit of others may stay for long
	}
	if n > 0 {
		l.credit += n
		s.credit += n
		s.out.Grant = append(s.out.Grant, Grant{l, n})
	}
}

// Deliver adds a message that the system pushed. It ignores messages of a link that has ended: the
// system delivers them again.
func (s *Shelf) Deliver(l *Link, d *tidegate.Delivery, native any, now time.Time) {
	if l.ended {
		return
	}
	src := l.Source
	if l.credit > 0 {
		l.credit--
		s.credit--
	}
	s.seq++
	m := &Message{Delivery: d, Native: native, Link: l, seq: s.seq, size: len(d.Body)}
	m.alarm.message = m
	d.ConsumerGroup, d.Attempt = src.Group, max(d.Attempt, 1)
	l.messages = append(l.messages, m)
	m.place, l.arrived = len(l.messages), now
	s.held++
	s.bytes += m.size
	s.large = max(m.size, s.large-s.large/16)
	switch {
	case src.tags != nil && !slices.Contains(src.tags, d.Tag):
		s.settle(m, Settlement{Outcome: Accepted})
	case l.FIFO && d.MessageGroup != "":
		m.inLine = true
		l.lines[d.MessageGroup] = append(l.lines[d.MessageGroup], m)
		if len(l.lines[d.MessageGroup]) == 1 {
			l.ready.put(m)
		}
	case s.held > s.limits.Messages: // more than it was asked for
		s.settle(m, Settlement{Outcome: Released})
	default:
		l.ready.put(m)
	}
	s.update(src, now)
}

// hand leases ready messages to a receive.
func (s *Shelf) hand(l *Link, r Request, now time.Time) (ds []*tidegate.Delivery) {
	bytes := 0
	ds = make([]*tidegate.Delivery, 0, min(r.Max, l.ready.len()))
	for len(ds) < r.Max && l.ready.len() > 0 {
		m := l.ready.first()
		if bytes += m.size; len(ds) > 0 && r.MaxBytes > 0 && bytes > r.MaxBytes {
			break
		}
		l.ready.remove(m)
		m.set(leased)
		m.push, m.attemptID = r.Push, r.AttemptID
		if m.attemptID != "" {
			result := l.receives[m.attemptID]
			if result == nil {
				result = &received{}
				l.receives[m.attemptID] = result
			}
			m.received = len(result.messages)
			result.messages = append(result.messages, m)
			result.leased++
		}
		m.handle = s.newHandle()
		s.handles[m.handle] = m
		m.until = now.Add(r.Invisible)
		s.wakeAt(&m.alarm, m.until)
		ds = append(ds, m.deliver())
	}
	return ds
}

// deliver returns the current delivery of a leased message.
func (m *Message) deliver() *tidegate.Delivery {
	d := *m.Delivery // the receiver may change all of it
	d.Keys, d.Properties, d.Body = slices.Clone(d.Keys), maps.Clone(d.Properties), slices.Clone(d.Body)
	d.Handle, d.InvisibleUntil = m.handle, m.until
	return &d
}
