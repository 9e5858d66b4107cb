package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A stamp is when the first message at or after an offset was stored.
type stamp struct{ from, stored int64 }

// Oldest returns when the oldest message that the group is not done with was
// stored, and the oldest among those never handed out, in nanoseconds since
// 1970; 0 for none. It reads one message from each queue whose head it does
// not know. It skips a corrupt message; the receive that meets the message logs it.
func (s *subscription) Oldest() (all, fresh int64) {
	type gap struct {
		r         *queueReader
		from, end int64
	}
	var unknown []gap
	s.mu.Lock()
	for i, r := range s.readers {
		all = throttle.Lesser(all, s.progress.Oldest(i))
		next, end := s.progress.Cursor(i).Next, r.queue.End()
		switch {
		case next >= end:
		case r.head.from == next && r.head.stored != 0:
			fresh = throttle.Lesser(fresh, r.head.stored)
		default:
			unknown = append(unknown, gap{r, next, end})
		}
	}
	s.mu.Unlock()
	for i, g := range unknown {
		stored := s.broker.firstStored(s.Topic(), g.r.queue, g.from, g.end)
		fresh = throttle.Lesser(fresh, stored)
		unknown[i].end = stored
	}
	if len(unknown) > 0 {
		s.mu.Lock()
		for _, g := range unknown {
			g.r.head = stamp{from: g.from, stored: g.end}
		}
		s.mu.Unlock()
	}
	return throttle.Lesser(all, fresh), fresh
}

// lookAtAges has the ages up to date that limits of a topic or of its groups ask for.
func (b *Broker) lookAtAges(t *topic.Topic, now time.Time) {
	limit := b.backlogLimit(t).Age
	subs := t.Subscriptions()
	if len(subs) == 0 && limit > 0 {
		t.Throttling.Age.Look(now, time.Duration(limit), func() int64 { return b.oldestOf(t) })
		return
	}
	for _, s := range subs {
		c := s.Consumed()
		if l := throttle.Lesser(limit, c.Group().Settings().MaxBacklog.Age); l > 0 {
			c.Age.Look(now, time.Duration(l), func() int64 { all, _ := s.Oldest(); return all })
		}
	}
}

// oldestOf reads when the oldest message of a topic was stored, in nanoseconds since 1970; 0 for
// none.
func (b *Broker) oldestOf(t *topic.Topic) (oldest int64) {
	for _, q := range t.Queues() {
		if end := q.End(); end > 0 {
			oldest = throttle.Lesser(oldest, b.firstStored(t, q, 0, end))
		}
	}
	return oldest
}

// firstStored returns when the first message of a queue between two offsets
// was stored, in nanoseconds since 1970; 0 if there is none, or it cannot be read.
func (b *Broker) firstStored(t *topic.Topic, q *topic.Queue, from, to int64) int64 {
	m, ok, err := b.store.FirstIn(store.Range{Topic: t.ID(), Queue: q.Number(), From: from, To: to})
	if !ok || err != nil {
		return 0
	}
	return m.At.UnixNano()
}
