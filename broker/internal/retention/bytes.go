package retention

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A cut is the part of a queue in which planBytes searches for the new beginning. Messages before
// lo are removed; messages from hi on are not.
type cut struct {
	first            int64 // lo at the beginning
	lo, hi           int64
	loBytes, hiBytes int64 // bytes of the bodies before lo and hi
}

// planBytes plans to remove the oldest messages of all queues, at least need bytes. It keeps the
// messages that the duplicate window needs. By bisection, it searches for the time up to which
// messages must be removed, exact to a millisecond. Messages that were removed before free no
// bytes.
func (p *Plan) planBytes(need int64) error {
	cuts := make([]cut, len(p.Queues))
	var from, to time.Time
	for i := range p.Queues {
		q, c := &p.Queues[i], &cuts[i]
		c.lo, c.hi = max(q.old, q.consumed), max(q.old, q.consumed, q.floor)
		c.first = c.lo
		var err error
		if c.loBytes, err = p.bodiesBefore(q, c.lo); err != nil {
			return err
		}
		if c.hiBytes, err = p.bodiesBefore(q, c.hi); err != nil {
			return err
		}
		freed, err := p.bytesIn(q, q.Removed, store.Mark{Offset: c.lo, Bytes: c.loBytes}, need)
		if err != nil {
			return err
		}
		need -= freed
		if c.lo == c.hi {
			continue
		}
		first, some, err := p.read.FirstIn(q.in(p.Topic, c.lo, c.hi))
		if err != nil {
			return err
		}
		last, _, err := p.read.LastIn(q.in(p.Topic, c.lo, c.hi))
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
	var most int64 // bytes that can be removed
	for i, c := range cuts {
		part, err := p.bytesIn(&p.Queues[i], store.Mark{Offset: c.lo, Bytes: c.loBytes}, store.Mark{Offset: c.hi, Bytes: c.hiBytes}, need+1-most)
		if err != nil {
			return err
		}
		most += part
	}
	if most <= need {
		for i := range cuts {
			q := &p.Queues[i]
			q.cutTo(&cuts[i], cuts[i].hi)
			q.blocked = q.blocked || most < need && cuts[i].hi < q.End
		}
		return nil
	}
	for from = from.Add(-1); to.Sub(from) > time.Millisecond; {
		mid := from.Add(to.Sub(from) / 2)
		parts, freed, err := p.cutAt(cuts, mid, need)
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
	return p.cutRest(cuts, need)
}

// cutTo sets the offset before which the queue has too many messages. If that removes no message,
// cutTo changes nothing, so that the cause of a removal stays that of consumed or old messages.
func (q *QueuePlan) cutTo(c *cut, offset int64) {
	if offset > c.first {
		q.many = offset
	}
}

// bytesIn returns the bytes of the bodies that a queue still has between two marks. When the sum
// has reached enough, bytesIn may stop reading.
func (p *Plan) bytesIn(q *QueuePlan, from, to store.Mark, enough int64) (int64, error) {
	if from.Offset == to.Offset || enough <= 0 {
		return 0, nil
	}
	if !q.HasGaps {
		return to.Bytes - from.Bytes, nil
	}
	bytes, _, err := p.read.Live(q.in(p.Topic, from.Offset, to.Offset), enough)
	return bytes, err
}

// cutAt returns, for each queue, the mark after the messages that were stored up to at. freed is
// the number of bytes between the beginnings of the cuts and these marks. When freed has reached
// enough, cutAt may stop reading.
func (p *Plan) cutAt(cuts []cut, at time.Time, enough int64) (parts []store.Mark, freed int64, err error) {
	parts = make([]store.Mark, len(cuts))
	for i, c := range cuts {
		q := &p.Queues[i]
		offset, err := p.firstAfter(q, c.lo, c.hi, at)
		if err != nil {
			return nil, 0, err
		}
		parts[i] = store.Mark{Offset: c.lo, Bytes: c.loBytes}
		if offset > c.lo {
			bytes, err := p.bodiesBefore(q, offset)
			if err != nil {
				return nil, 0, err
			}
			parts[i] = store.Mark{Offset: offset, Bytes: bytes}
		}
		part, err := p.bytesIn(q, store.Mark{Offset: c.lo, Bytes: c.loBytes}, parts[i], enough-freed)
		if err != nil {
			return nil, 0, err
		}
		freed += part
	}
	return parts, freed, nil
}

// cutRest cuts messages that were stored at the same time, queue by queue, until need bytes are
// removed.
func (p *Plan) cutRest(cuts []cut, need int64) error {
	for i, c := range cuts {
		q := &p.Queues[i]
		if need <= 0 || c.lo == c.hi {
			q.cutTo(&cuts[i], c.lo)
			continue
		}
		to, freed, err := p.cutIn(q, c, need)
		if err != nil {
			return err
		}
		q.cutTo(&cuts[i], to)
		need -= freed
	}
	return nil
}

// cutIn returns the offset up to which a cut must be removed to free need bytes, and the bytes that
// this frees.
func (p *Plan) cutIn(q *QueuePlan, c cut, need int64) (to, freed int64, err error) {
	within := q.in(p.Topic, c.lo, c.hi)
	if q.HasGaps {
		freed, to, err = p.read.Live(within, need)
		return to, freed, err
	}
	enough := c.loBytes + need
	last, err := p.read.FirstThat(within, func(m store.Stored) bool { return m.Cumulative >= enough })
	if err != nil {
		return 0, 0, err
	}
	to = min(last+1, c.hi)
	bytes, err := p.bodiesBefore(q, to)
	return to, bytes - c.loBytes, err
}
