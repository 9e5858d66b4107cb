package broker

import (
	"math"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A RemovalCause is why messages were removed.
type RemovalCause string

// The causes.
const (
	RemovedTime     RemovalCause = "time"     // Retention.Time
	RemovedBytes    RemovalCause = "bytes"    // Retention.Bytes
	RemovedConsumed RemovalCause = "consumed" // Retention.Consumed, or the last group that held one back is done
	RemovedPurge    RemovalCause = "purge"    // Broker.PurgeTopic
)

var removalCauses = [...]RemovalCause{RemovedTime, RemovedBytes, RemovedConsumed, RemovedPurge}

const removedByPurge = 3 // in removalCauses

// A span is what a sweep does to one queue.
type span struct {
	queue *queue
	swept store.Mark // how far it was removed
	low   store.Mark // where the queue began: behind swept if the sweep before failed
	end   int64      // the offset after its last message on disk
	floor int64      // from here on the duplicate window keeps messages

	blocked bool // by floor: but for it, more would be removed now
	aside   bool // end is where a parked or blocked message is, not that of the queue

	// Messages before these are past retention: too old, too old or too many, consumed by all
	// groups.
	old, many, consumed int64

	to    store.Mark    // where it begins now
	holes store.Removed // what was taken out between swept and to before
	kept  map[int64]*kept
}

// A kept is a message before the beginning of its queue that a group is not done with.
type kept struct {
	store.Stored
	known bool      // whether Stored is
	until time.Time // when to look again; zero if it is enough to be told that it is done
}

// A sweep removes messages of one topic.
type sweep struct {
	topic  *topic
	now    time.Time
	keep   time.Duration
	bytes  int64         // of all bodies that the topic ever had, when it began
	window time.Duration // the duplicate window
	purge  bool
	spans  []span
}

// sweep removes what retention is past, and arms for the next time. The
// caller has the token.
func (b *Broker) sweep(t *topic, now time.Time) error {
	t.sweptAt.Store(now.UnixNano())
	w, err := b.sweepOf(t, now, false)
	if err == nil {
		err = w.run(b)
	}
	if err != nil {
		return err
	}
	t.watch()
	if at, ok, err := w.next(b); err != nil {
		return err
	} else if ok {
		b.retention.arm(t, at)
	}
	aside := slices.ContainsFunc(w.spans, func(s span) bool { return s.aside })
	if t.sweepAt.Load() == 0 || t.bytes.Load() != w.bytes || aside {
		t.stored() // messages may have come meanwhile, or what is parked holds more than there should be
	}
	return nil
}

// watch notes whether the topic is to be looked at when a group is done with messages.
func (t *topic) watch() {
	t.watched.Store(t.config.Load().Retention.Consumed || t.keptMessages.Load() > 0)
}

// sweepOf plans a sweep up to where the queues' beginnings are to be, and moves
// them there: from then on no group begins before it. If the sweep fails after
// that, the next one removes what this one did not.
func (b *Broker) sweepOf(t *topic, now time.Time, purge bool) (*sweep, error) {
	for {
		subs := t.subs.Load()
		w := &sweep{topic: t, now: now, keep: t.keepFor(), bytes: t.bytes.Load(), window: t.config.Load().duplicateWindow(), purge: purge}
		if err := w.plan(b, *subs); err != nil {
			return nil, err
		}
		if w.begin(b, subs) {
			return w, nil
		}
	}
}

// begin has the queues begin where the sweep leaves them, and reports whether it
// could: the topic's subscriptions are the same as when it was planned.
func (w *sweep) begin(b *Broker, subs *[]*subscription) bool {
	b.mu.Lock() // a group that comes now is among subs, or begins at the new beginning
	defer b.mu.Unlock()
	if w.topic.subs.Load() != subs {
		return false
	}
	for i := range w.spans {
		s := &w.spans[i]
		s.queue.low.Store(&s.to)
		if s.to != s.low {
			s.queue.why = w.causeOf(s, s.to.Offset-1)
		}
	}
	return true
}

// plan decides how far each queue is removed.
func (w *sweep) plan(b *Broker, subs []*subscription) error {
	t := w.topic
	for _, q := range *t.queues.Load() {
		s := span{queue: q, swept: q.swept, low: *q.low.Load(), end: q.end.Load()}
		s.old, s.many, s.consumed, s.floor = s.low.Offset, s.low.Offset, s.low.Offset, s.end
		w.spans = append(w.spans, s)
	}
	config := t.config.Load()
	if w.purge {
		for i := range w.spans {
			w.spans[i].many = w.spans[i].end
		}
	} else if err := w.planRetention(b, config, subs); err != nil {
		return err
	}
	for i := range w.spans {
		s := &w.spans[i]
		s.to = s.low
		if to := max(s.old, s.many, s.consumed); to > s.low.Offset {
			bytes, err := w.bytesBefore(b, s, to)
			if err != nil {
				return err
			}
			s.to = store.Mark{Offset: to, Bytes: bytes}
		}
	}
	return nil
}

func (w *sweep) planRetention(b *Broker, config *TopicConfig, subs []*subscription) error {
	for i := range w.spans {
		s := &w.spans[i]
		for _, sub := range subs { // nothing that waits behind a parked or blocked message is removed
			if first := max(s.low.Offset, sub.firstAside(s.queue)); first < s.end {
				s.end, s.aside = first, true
			}
		}
		s.floor = s.end
		oldest, err := s.queue.oldest(b, w.topic, s.end)
		if err != nil {
			return err
		}
		if w.keep != math.MaxInt64 && w.now.Sub(oldest) >= w.keep {
			if s.old, err = w.firstAfter(b, s, s.low.Offset, s.end, w.now.Add(-w.keep)); err != nil {
				return err
			}
		}
		if config.Retention.Consumed {
			s.consumed = consumedBefore(subs, s)
		}
		if max(s.old, s.consumed) > s.low.Offset || config.Retention.Bytes > 0 {
			if err := w.limitToFloor(b, s); err != nil {
				return err
			}
		}
		s.many = s.old
	}
	if config.Retention.Bytes > 0 {
		return w.planBytes(b, w.topic.heldBytes()-config.Retention.Bytes)
	}
	return nil
}

// limitToFloor finds where the duplicate window keeps messages from being removed.
func (w *sweep) limitToFloor(b *Broker, s *span) error {
	if w.window > 0 {
		floor, err := w.firstAfter(b, s, max(s.low.Offset, s.end-2*recent.Capacity), s.end, w.now.Add(-w.window))
		if err != nil {
			return err
		}
		s.floor = floor
	}
	s.blocked = s.consumed > s.floor
	s.old, s.consumed = min(s.old, s.floor), min(s.consumed, s.floor)
	return nil
}

// firstAfter returns the offset of the first message that was stored after at, among those between
// the two offsets.
func (w *sweep) firstAfter(b *Broker, s *span, from, to int64, at time.Time) (int64, error) {
	return b.store.FirstThat(w.rangeOf(s, from, to), func(m store.Stored) bool { return m.At.After(at) })
}

func (w *sweep) rangeOf(s *span, from, to int64) store.Range {
	return store.Range{Topic: w.topic.id, Queue: s.queue.number, From: from, To: to}
}

// bytesBefore returns the bytes of the queue's bodies before an offset that is not before its
// beginning.
func (w *sweep) bytesBefore(b *Broker, s *span, offset int64) (int64, error) {
	if offset == s.low.Offset {
		return s.low.Bytes, nil
	}
	return b.bytesBefore(w.topic, s.queue, offset)
}

// run takes from the groups what they will not see any more, then removes it.
func (w *sweep) run(b *Broker) error {
	changed := false
	for i := range w.spans {
		s := &w.spans[i]
		s.kept = map[int64]*kept{}
		changed = changed || s.to != s.swept || len(s.queue.kept) > 0
	}
	if !changed {
		return nil
	}
	subs := *w.topic.subs.Load()
	for _, sub := range subs {
		if lost := sub.pass(w); lost.Messages > 0 && !w.purge {
			b.logger.Warn("messages were removed before a consumer group consumed them: retention is past them",
				"topic", w.topic.name, "group", sub.group.name, "messages", lost.Messages, "bytes", lost.Bytes)
		}
	}
	if w.keepsMore() {
		// Nothing but the groups' progress knows what is kept, so it is on disk first.
		if err := b.store.Groups.Add(func(*store.Batch) {}, nil).Wait(); err != nil {
			return err
		}
	}
	for i := range w.spans {
		s := &w.spans[i]
		for o, k := range s.kept {
			m, ok, err := k.Stored, true, error(nil)
			if !k.known {
				m, ok, err = b.store.FirstIn(w.rangeOf(s, o, o+1))
			}
			if err != nil {
				return err
			}
			if !ok { // taken out of the queue: there is nothing to keep
				delete(s.kept, o)
				continue
			}
			k.Stored, k.known = m, true
			if at, ok := past(m.At, w.keep); ok {
				k.until = latest(k.until, at)
			} else {
				k.until = time.Time{}
			}
		}
	}
	return w.remove(b, subs)
}

// keepsMore reports whether a message is kept that was not kept before.
func (w *sweep) keepsMore() bool {
	for i := range w.spans {
		for o := range w.spans[i].kept {
			if w.spans[i].queue.kept[o] == nil {
				return true
			}
		}
	}
	return false
}

// expired reports whether retention is past a message, be it consumed or not.
func (w *sweep) expired(s *span, offset int64) bool {
	if offset >= s.low.Offset {
		return offset < max(s.old, s.many)
	}
	k := s.queue.kept[offset]
	return k != nil && w.now.Sub(k.At) >= w.keep
}

// next returns when the topic is to be looked at again, if anything is due at
// a known time.
func (w *sweep) next(b *Broker) (next time.Time, ok bool, err error) {
	due := func(at time.Time) {
		if !ok || at.Before(next) {
			next, ok = at, true
		}
	}
	for i := range w.spans {
		s := &w.spans[i]
		end := s.end
		if s.aside { // nobody tells when what is there can be removed
			end = s.queue.end.Load()
		}
		oldest, err := s.queue.oldest(b, w.topic, end)
		if err != nil {
			return next, false, err
		}
		if at, ok := past(oldest, w.keep); ok && oldest != farFuture {
			due(latest(at, oldest.Add(w.window), w.now.Add(timePause(w.keep))))
		}
		if s.blocked && oldest != farFuture {
			due(latest(oldest.Add(w.window), w.now.Add(sweepPause)))
		}
		for _, k := range s.kept {
			if !k.until.IsZero() {
				due(latest(k.until, w.now.Add(timePause(w.keep))))
			}
		}
	}
	return next, ok, nil
}

func latest(ts ...time.Time) time.Time { return slices.MaxFunc(ts, time.Time.Compare) }
