package retention

import (
	"context"
	"maps"
	"slices"
	"sync"
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

const (
	// ReclaimBytes is the number of removed bytes after which their disk space is reclaimed. The
	// disk space of fewer bytes becomes free later, by the compactions of the store.
	ReclaimBytes = 32 << 20

	// ReclaimTopics is the number of deleted topics after which disk space is reclaimed.
	ReclaimTopics = 1024
)

// Freed collects the removed messages until their disk space is reclaimed. Goroutines may share a
// Freed, but only one may call Reclaim at a time. The zero value is ready for use.
type Freed struct {
	mu      sync.Mutex
	bytes   int64               // guarded by mu
	pending store.PendingKind   // guarded by mu: removed messages that were in no queue yet
	ranges  map[queueID]extent  // guarded by mu: in existing topics
	topics  map[uint32]struct{} // guarded by mu: deleted topics that had messages
}

type queueID struct {
	topic uint32
	queue uint16
}

type extent struct{ from, to int64 }

// Add records that messages of a range were removed. The range must not be empty.
func (f *Freed) Add(r store.Range, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes += bytes
	f.join(queueID{r.Topic, r.Queue}, extent{r.From, r.To})
}

// join adds a range. mu is held.
func (f *Freed) join(k queueID, at extent) {
	if was, ok := f.ranges[k]; ok {
		at = extent{min(at.from, was.from), max(at.to, was.to)}
	}
	if f.ranges == nil {
		f.ranges = map[queueID]extent{}
	}
	f.ranges[k] = at
}

// AddDeleted records that a queue was deleted with its topic. used is true if the queue ever had
// messages; bytes is the size of its messages.
func (f *Freed) AddDeleted(topic uint32, queue uint16, used bool, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ranges, queueID{topic, queue})
	if used {
		f.bytes += bytes
		f.joinTopic(topic)
	}
}

func (f *Freed) joinTopic(topic uint32) {
	if f.topics == nil {
		f.topics = map[uint32]struct{}{}
	}
	f.topics[topic] = struct{}{}
}

// AddPending records that messages were removed that were in no queue yet.
func (f *Freed) AddPending(kind store.PendingKind, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes += bytes
	f.pending |= kind
}

// Bytes returns the number of removed bytes whose disk space was not reclaimed.
func (f *Freed) Bytes() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes
}

// Remembered returns the numbers of ranges and of deleted topics that wait for Reclaim.
func (f *Freed) Remembered() (ranges, topics int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ranges), len(f.topics)
}

// Enough reports whether enough was removed to call Reclaim.
func (f *Freed) Enough() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes >= ReclaimBytes || len(f.topics) >= ReclaimTopics
}

// Reclaim calls reclaim with all removed messages, and forgets them. If reclaim fails, Reclaim
// keeps them and returns the error. Callers pass [store.Store.Reclaim], which blocks until the disk
// space is free or ctx ends.
func (f *Freed) Reclaim(ctx context.Context, reclaim func(context.Context, []store.Range, []uint32, store.PendingKind) error) error {
	f.mu.Lock()
	bytes, pending, removed, topics := f.bytes, f.pending, f.ranges, f.topics
	f.bytes, f.pending, f.ranges, f.topics = 0, 0, nil, nil
	f.mu.Unlock()
	var ranges []store.Range
	for k, at := range removed {
		ranges = append(ranges, store.Range{Topic: k.topic, Queue: k.queue, From: at.from, To: at.to})
	}
	err := reclaim(ctx, ranges, slices.Collect(maps.Keys(topics)), pending)
	if err == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes += bytes
	f.pending |= pending
	for k, at := range removed {
		f.join(k, at)
	}
	for t := range topics {
		f.joinTopic(t)
	}
	return err
}
