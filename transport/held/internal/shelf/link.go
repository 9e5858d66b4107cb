package shelf

import (
	"cmp"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
)

// open asks for the link of a source once all earlier ones are closed, because messages that they
// return would come after those that follow.
func (s *Shelf) open(src *Source) {
	if l := src.link; l != nil && !l.asked && src.closing == 0 {
		l.asked = true
		s.out.Open = append(s.out.Open, l)
	}
}

// Opened reports the end of the opening of a link.
func (s *Shelf) Opened(l *Link, err error, now time.Time) {
	switch {
	case err != nil:
		s.Lost(l, err, now)
	case l.ended:
		s.close(l)
	default:
		l.open, l.openedAt = true, now
		s.forgetLost(l.Source.Key)
		for _, w := range l.Source.waiters {
			s.wake(w) // its end depends on this moment
		}
		s.update(l.Source, now)
	}
}

func (s *Shelf) close(l *Link) {
	l.Source.closing++
	s.out.Close = append(s.out.Close, l)
}

// Closed reports that a link is closed.
func (s *Shelf) Closed(l *Link) {
	src := l.Source
	src.closing--
	s.open(src) // for a receive that has come meanwhile
	s.forget(src)
}

// Lost reports that a link has ended, and with it all deliveries: the system has the messages back.
// The receives fail.
func (s *Shelf) Lost(l *Link, err error, now time.Time) {
	if !l.ended {
		s.drop(l, err)
		s.feed(now)
	}
}

// drop forgets the messages of a link. Its receives fail.
func (s *Shelf) drop(l *Link, err error) {
	src := l.Source
	l.ended, l.open, l.err = true, false, err
	s.credit -= l.credit
	l.credit = 0
	for _, m := range l.messages {
		s.held--
		s.bytes -= m.size
		switch m.state {
		case settling: // Finish follows
		case leased:
			s.lose(m)
		default:
			if m.state == postponed {
				s.postponed--
			}
			s.alarms.remove(&m.alarm)
			m.state = gone
		}
	}
	l.messages, l.ready.heap.list = nil, nil // lost handles keep the link
	clear(l.lines)
	clear(l.receives)
	src.link = nil
	s.alarms.remove(&src.alarm)
	for _, w := range src.waiters {
		w.err = err
		s.wake(w)
	}
	s.forget(src)
}

// lose keeps the handle of a delivery whose link has ended until the end of its lease or the next
// link, so that its settlement fails for the lost connection.
func (s *Shelf) lose(m *Message) {
	m.state = lost
	m.Delivery, m.Native = nil, nil
	s.wakeAt(&m.alarm, m.until)
}

// reopen asks for a new link in the place of a lost one, at most once a second.
func (s *Shelf) reopen(l *Link, now time.Time) {
	src := s.sources[l.Source.Key]
	if src == nil {
		src = s.add(l.Source.Key)
	}
	if src.link == nil && now.Sub(l.reopened) >= time.Second {
		l.reopened = now
		src.link = newLink(src, l.FIFO, l.maxAttempts)
		s.open(src)
	}
	s.forget(src)
}

// forgetLost ends the validity of the handles that the lost links of a source have left.
func (s *Shelf) forgetLost(k Key) {
	for handle, m := range s.handles {
		if m.state == lost && m.Link.Source.Key == k {
			delete(s.handles, handle)
			s.alarms.remove(&m.alarm)
			m.state = gone
		}
	}
}

// idle returns messages of a source without receives.
func (s *Shelf) idle(src *Source, now time.Time) {
	l := src.link
	src.full = full{}
	switch {
	case len(src.waiters) > 0 || l == nil || !l.open:
	case l.inHand == 0:
		s.close(l) // the system gets the buffered messages back
		s.drop(l, nil)
		s.feed(now)
	case !l.FIFO:
		list := slices.SortedFunc(slices.Values(l.ready.heap.list), func(a, b *Message) int { return cmp.Compare(b.seq, a.seq) })
		for _, m := range list { // the last first: systems put a released message at the front
			l.ready.remove(m)
			s.settle(m, Settlement{Outcome: Released})
		}
	}
}

// Close ends everything: the receives fail, the links close, and no handle is valid.
func (s *Shelf) Close() {
	s.closed = true
	for _, src := range s.sources {
		l := src.link
		if l == nil {
			continue
		}
		if l.open {
			s.close(l)
		}
		s.drop(l, tidegate.ErrClosed)
	}
	clear(s.handles)
	s.starved, s.buried, s.out.Settle = nil, nil, nil
	s.alarms = pile[*alarm]{order[*alarm]{less: s.alarms.heap.less, place: s.alarms.heap.place}}
}
