package held

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
)

// open asks for the link of a source once all earlier ones are closed, because messages that they
// return would come after those that follow.
func (s *shelf) open(src *source) {
	if l := src.link; l != nil && !l.asked && src.closing == 0 {
		l.asked = true
		s.out.Open = append(s.out.Open, l)
	}
}

// Opened reports the end of the opening of a link.
func (s *shelf) Opened(l *link, err error, now time.Time) {
	switch {
	case err != nil:
		s.Lost(l, err, now)
	case l.ended:
		s.close(l)
	default:
		l.open, l.openedAt = true, now
		s.forgetLost(l.Source.key)
		for _, w := range l.Source.waiters {
			s.wake(w) // its end depends on this moment
		}
		s.update(l.Source, now)
	}
}

func (s *shelf) close(l *link) {
	l.Source.closing++
	s.out.Close = append(s.out.Close, l)
}

// Closed reports that a link is closed.
func (s *shelf) Closed(l *link) {
	src := l.Source
	src.closing--
	s.open(src) // for a receive that has come meanwhile
	s.forget(src)
}

// Lost reports that a link has ended, and with it all deliveries: the system has the messages back.
// The receives fail.
func (s *shelf) Lost(l *link, err error, now time.Time) {
	if !l.ended {
		s.drop(l, err)
		s.feed(now)
	}
}

// drop forgets the messages of a link. Its receives fail.
func (s *shelf) drop(l *link, err error) {
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
func (s *shelf) lose(m *message) {
	m.state = lost
	m.Delivery, m.Native = nil, nil
	s.wakeAt(&m.alarm, m.until)
}

// reopen asks for a new link in the place of a lost one, at most once a second.
func (s *shelf) reopen(l *link, now time.Time) {
	src := s.sources[l.Source.key]
	if src == nil {
		src = s.add(l.Source.key)
	}
	if src.link == nil && now.Sub(l.reopened) >= time.Second {
		l.reopened = now
		src.link = newLink(src, l.FIFO, l.maxAttempts)
		s.open(src)
	}
	s.forget(src)
}

// forgetLost ends the validity of the handles that the lost links of a source have left.
func (s *shelf) forgetLost(k key) {
	for handle, m := range s.handles {
		if m.state == lost && m.Link.Source.key == k {
			delete(s.handles, handle)
			s.alarms.remove(&m.alarm)
			m.state = gone
		}
	}
}

// idle returns messages of a source without receives.
func (s *shelf) idle(src *source, now time.Time) {
	l := src.link
	src.full = full{}
	switch {
	case len(src.waiters) > 0 || l == nil || !l.open:
	case l.inHand == 0:
		s.close(l) // the system gets the buffered messages back
		s.drop(l, nil)
		s.feed(now)
	case !l.FIFO:
		list := slices.SortedFunc(slices.Values(l.ready.heap.list), func(a, b *message) int { return cmp.Compare(b.seq, a.seq) })
		for _, m := range list { // the last first: systems put a released message at the front
			l.ready.remove(m)
			s.settle(m, settlement{Outcome: released})
		}
	}
}

// Close ends everything: the receives fail, the links close, and no handle is valid.
func (s *shelf) Close() {
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

// A pile is a heap whose elements know their place in it, so that they can be moved and removed.
type pile[T any] struct{ heap order[T] }

type order[T any] struct {
	list  []T
	less  func(a, b T) bool
	place func(T) *int // from 1; 0 if the element is not in the pile
}

func newPile[T any](less func(a, b T) bool, place func(T) *int) pile[T] {
	return pile[T]{order[T]{less: less, place: place}}
}

func (p *pile[T]) len() int { return len(p.heap.list) }

// first returns the smallest element of a pile that is not empty.
func (p *pile[T]) first() T { return p.heap.list[0] }

// put adds x, or moves it after its order has changed.
func (p *pile[T]) put(x T) {
	if n := *p.heap.place(x); n > 0 {
		heap.Fix(&p.heap, n-1)
		return
	}
	heap.Push(&p.heap, x)
}

// remove removes x if it is there.
func (p *pile[T]) remove(x T) {
	if n := *p.heap.place(x); n > 0 {
		heap.Remove(&p.heap, n-1)
	}
}

// Len is part of heap.Interface.
func (o *order[T]) Len() int { return len(o.list) }

// Less is part of heap.Interface.
func (o *order[T]) Less(i, j int) bool { return o.less(o.list[i], o.list[j]) }

// Swap is part of heap.Interface.
func (o *order[T]) Swap(i, j int) {
	o.list[i], o.list[j] = o.list[j], o.list[i]
	*o.place(o.list[i]), *o.place(o.list[j]) = i+1, j+1
}

// Push is part of heap.Interface.
func (o *order[T]) Push(x any) {
	o.list = append(o.list, x.(T))
	*o.place(x.(T)) = len(o.list)
}

// Pop is part of heap.Interface.
func (o *order[T]) Pop() any {
	var none T
	n := len(o.list) - 1
	x := o.list[n]
	o.list[n] = none
	o.list = o.list[:n]
	*o.place(x) = 0
	return x
}
