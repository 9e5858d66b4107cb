package broker

import (
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// remove writes the removal.
func (w *sweep) remove(b *Broker, subs []*subscription) error {
	t := w.topic
	if t.holed.Load() {
		select {
		case b.redriving <- struct{}{}:
			defer func() { <-b.redriving }()
		case <-b.life.Done():
			return closedError()
		}
		if err := w.countHoles(b); err != nil {
			return err
		}
	}
	deleted := false
	if err := b.store.Messages.Add(func(batch *store.Batch) {
		if deleted = t.deleted.Load(); deleted {
			return
		}
		for i := range w.spans {
			w.write(batch, &w.spans[i], subs)
		}
	}, nil).Wait(); err != nil || deleted {
		return err
	}
	for i := range w.spans {
		w.count(b, &w.spans[i])
	}
	return nil
}

func (w *sweep) write(batch *store.Batch, s *span, subs []*subscription) {
	for o := range s.queue.kept {
		if s.kept[o] == nil {
			p := store.Place{Topic: w.topic.id, Queue: s.queue.number, Offset: o}
			batch.DeleteMessage(p)
			for _, sub := range subs {
				if sub.marked.Load() {
					batch.DeleteDeadLetterMarks(sub.group.id, w.rangeOf(s, o, o+1))
				}
			}
		}
	}
	if s.to == s.swept {
		return
	}
	for _, r := range w.rangeOf(s, s.swept.Offset, s.to.Offset).Without(slices.Sorted(maps.Keys(s.kept))) {
		batch.DeleteMessages(r)
		for _, sub := range subs {
			if sub.marked.Load() {
				batch.DeleteDeadLetterMarks(sub.group.id, r)
			}
		}
	}
	batch.PutMark(w.topic.id, s.queue.number, s.to)
	if s.holes != (store.Removed{}) {
		q := s.queue
		q.removedMessages.Add(-s.holes.Messages)
		q.removedBytes.Add(-s.holes.Bytes)
		batch.PutRemoved(w.topic.id, q.number, q.removed())
	}
}

// countHoles finds what was taken out before of what is removed now. The
// token of redriving is held.
func (w *sweep) countHoles(b *Broker) (err error) {
	for i := range w.spans {
		s := &w.spans[i]
		if s.to == s.swept || s.queue.removedMessages.Load() == 0 {
			continue
		}
		if s.holes, err = b.store.Holes(w.rangeOf(s, s.swept.Offset, s.to.Offset), s.to.Bytes-s.swept.Bytes); err != nil {
			return err
		}
	}
	return nil
}

// causeOf returns why a message is removed.
func (w *sweep) causeOf(s *span, o int64) RemovalCause {
	switch {
	case w.purge:
		return RemovedPurge
	case o < s.low.Offset:
		return s.queue.why
	case o < s.consumed:
		return RemovedConsumed
	case o < s.old:
		return RemovedTime
	}
	return RemovedBytes
}

// count notes what was removed.
func (w *sweep) count(b *Broker, s *span) {
	t := w.topic
	var removed [len(removalCauses)]int64
	at := s.swept.Offset
	upTo := func(to int64, cause RemovalCause) {
		if to > at {
			removed[slices.Index(removalCauses[:], cause)] += to - at
			at = to
		}
	}
	if w.purge {
		upTo(s.to.Offset, RemovedPurge)
	}
	upTo(s.low.Offset, s.queue.why)
	upTo(s.consumed, RemovedConsumed)
	upTo(s.old, RemovedTime)
	upTo(s.to.Offset, RemovedBytes)
	for i, left := 0, s.holes.Messages; i < len(removed); i++ {
		n := min(left, removed[i])
		removed[i], left = removed[i]-n, left-n
	}
	bytes := s.to.Bytes - s.swept.Bytes - s.holes.Bytes
	for o, k := range s.kept {
		if s.queue.kept[o] == nil { // newly kept
			removed[slices.Index(removalCauses[:], w.causeOf(s, o))]--
			bytes -= k.Size
			t.keptMessages.Add(1)
			t.keptBytes.Add(k.Size)
		}
	}
	from := s.swept.Offset
	for o, k := range s.queue.kept {
		if s.kept[o] != nil {
			continue
		}
		from = min(from, o)
		cause := RemovedConsumed
		if w.purge {
			cause = RemovedPurge
		}
		removed[slices.Index(removalCauses[:], cause)]++
		bytes += k.Size
		t.keptMessages.Add(-1)
		t.keptBytes.Add(-k.Size)
	}
	t.lowMessages.Add(s.to.Offset - s.swept.Offset)
	t.lowBytes.Add(s.to.Bytes - s.swept.Bytes)
	s.queue.kept, s.queue.swept = s.kept, s.to
	for i, n := range removed {
		t.removed[i].Add(n)
	}
	if from < s.to.Offset {
		b.retention.note(t.id, s.queue.number, from, s.to.Offset, bytes)
	}
}

// oldest returns when the first message of a queue was stored; the far future if it is empty.
func (q *queue) oldest(b *Broker, t *topic, end int64) (time.Time, error) {
	low := q.low.Load().Offset
	if low >= end {
		return farFuture, nil
	}
	if q.headAt.IsZero() || q.head != low {
		m, ok, err := b.store.FirstIn(store.Range{Topic: t.id, Queue: q.number, From: low, To: end})
		if err != nil || !ok {
			return farFuture, err
		}
		q.head, q.headAt = low, m.At
	}
	return q.headAt, nil
}

var farFuture = time.Unix(1<<40, 0)

// consumedBefore returns the offset before which every group is done with all
// messages of the queue, or all but a few among many.
func consumedBefore(subs []*subscription, s *span) int64 {
	if len(subs) == 0 {
		return s.low.Offset
	}
	done, next := s.end, s.end
	for _, sub := range subs {
		known := false
		sub.locked(func() {
			if known = int(s.queue.number) < len(sub.cursors); !known {
				return
			}
			c := sub.cursors[s.queue.number]
			next = min(next, c.next)
			for o := range c.leases {
				if o >= s.low.Offset {
					done = min(done, o)
				}
			}
		})
		if !known {
			return s.low.Offset
		}
	}
	done = min(done, next)
	if next-done >= stepOver {
		done = next
	}
	return max(done, s.low.Offset)
}
