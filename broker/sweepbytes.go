package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A cut is a span's part within which planBytes looks for its bound: what is
// before lo is removed, what is from hi on is not.
type cut struct {
	first            int64 // lo at the beginning
	lo, hi           int64
	loBytes, hiBytes int64 // of the bodies before them
}

// planBytes removes the oldest messages of all queues, to a millisecond, until
// need bytes are gone: it looks for the time up to which that is. What was taken
// out of the middle before frees nothing.
func (w *sweep) planBytes(b *Broker, need int64) error {
	cuts := make([]cut, len(w.spans))
	var from, to time.Time
	for i := range w.spans {
		s, c := &w.spans[i], &cuts[i]
		c.lo, c.hi = max(s.old, s.consumed), max(s.old, s.consumed, s.floor)
		c.first = c.lo
		var err error
		if c.loBytes, err = w.bytesBefore(b, s, c.lo); err != nil {
			return err
		}
		if c.hiBytes, err = w.bytesBefore(b, s, c.hi); err != nil {
			return err
		}
		freed, err := w.bytesIn(b, s, s.swept, store.Mark{Offset: c.lo, Bytes: c.loBytes}, need)
		if err != nil {
			return err
		}
		need -= freed
		if c.lo == c.hi {
			continue
		}
		first, some, err := b.store.FirstIn(w.rangeOf(s, c.lo, c.hi))
		if err != nil {
			return err
		}
		last, _, err := b.store.LastIn(w.rangeOf(s, c.lo, c.hi))
		if err != nil {
			return err
		}
		if !some {
			continue
		}
		if from.IsZero() || first.At.Before(from) {
			from = first.At
		}
		to = latest(to, last.At)
	}
	if need <= 0 {
		return nil
	}
	var most int64 // that can be removed
	for i, c := range cuts {
		part, err := w.bytesIn(b, &w.spans[i], store.Mark{Offset: c.lo, Bytes: c.loBytes}, store.Mark{Offset: c.hi, Bytes: c.hiBytes}, need+1-most)
		if err != nil {
			return err
		}
		most += part
	}
	if most <= need {
		for i := range cuts {
			s := &w.spans[i]
			s.cutTo(&cuts[i], cuts[i].hi)
			s.blocked = s.blocked || most < need && cuts[i].hi < s.end
		}
		return nil
	}
	for from = from.Add(-1); to.Sub(from) > time.Millisecond; {
		mid := from.Add(to.Sub(from) / 2)
		parts, freed, err := w.cutAt(b, cuts, mid, need)
		if err != nil {
			return err
		}
		if freed >= need {
			to = mid
			for i := range cuts {
				cuts[i].hi, cuts[i].hiBytes = parts[i].Offset, parts[i].Bytes
			}
			continue
		}
		from = mid
		need -= freed
		for i := range cuts {
			cuts[i].lo, cuts[i].loBytes = parts[i].Offset, parts[i].Bytes
		}
	}
	return w.cutRest(b, cuts, need)
}

// cutTo bounds a span at an offset. Where nothing is cut, what all groups have
// consumed stays the only reason to remove something.
func (sp *span) cutTo(c *cut, offset int64) {
	if offset > c.first {
		sp.many = offset
	}
}

// bytesIn returns the bytes of the bodies that a queue still has between two
// places, or, once that is enough, maybe less.
func (w *sweep) bytesIn(b *Broker, s *span, from, to store.Mark, enough int64) (int64, error) {
	if from.Offset == to.Offset || enough <= 0 {
		return 0, nil
	}
	if s.queue.removedMessages.Load() == 0 {
		return to.Bytes - from.Bytes, nil
	}
	bytes, _, err := b.store.Live(w.rangeOf(s, from.Offset, to.Offset), enough)
	return bytes, err
}

// cutAt returns, for each queue, where the messages stored up to at end, and
// how many bytes these have beyond what is cut already, or that it is enough.
func (w *sweep) cutAt(b *Broker, cuts []cut, at time.Time, enough int64) (parts []store.Mark, freed int64, err error) {
	parts = make([]store.Mark, len(cuts))
	for i, c := range cuts {
		s := &w.spans[i]
		offset, err := w.firstAfter(b, s, c.lo, c.hi, at)
		if err != nil {
			return nil, 0, err
		}
		parts[i] = store.Mark{Offset: c.lo, Bytes: c.loBytes}
		if offset > c.lo {
			bytes, err := w.bytesBefore(b, s, offset)
			if err != nil {
				return nil, 0, err
			}
			parts[i] = store.Mark{Offset: offset, Bytes: bytes}
		}
		part, err := w.bytesIn(b, s, store.Mark{Offset: c.lo, Bytes: c.loBytes}, parts[i], enough-freed)
		if err != nil {
			return nil, 0, err
		}
		freed += part
	}
	return parts, freed, nil
}

// cutRest cuts messages that were stored at the same time until need bytes are gone.
func (w *sweep) cutRest(b *Broker, cuts []cut, need int64) error {
	for i, c := range cuts {
		s := &w.spans[i]
		if need <= 0 || c.lo == c.hi {
			s.cutTo(&cuts[i], c.lo)
			continue
		}
		to, freed, err := w.cutIn(b, s, c, need)
		if err != nil {
			return err
		}
		s.cutTo(&cuts[i], to)
		need -= freed
	}
	return nil
}

// cutIn returns where need bytes of a cut end, and how many it has up to there.
func (w *sweep) cutIn(b *Broker, s *span, c cut, need int64) (to, freed int64, err error) {
	within := w.rangeOf(s, c.lo, c.hi)
	if s.queue.removedMessages.Load() > 0 {
		freed, to, err = b.store.Live(within, need)
		return to, freed, err
	}
	enough := c.loBytes + need
	last, err := b.store.FirstThat(within, func(m store.Stored) bool { return m.Cumulative >= enough })
	if err != nil {
		return 0, 0, err
	}
	to = min(last+1, c.hi)
	bytes, err := w.bytesBefore(b, s, to)
	return to, bytes - c.loBytes, err
}
