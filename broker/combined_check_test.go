package broker

import (
	"slices"
	"testing/synctest"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// audit compares what the broker counts with what is there, in memory and on disk.
func (c *combined) audit() {
	synctest.Wait()
	b := c.b
	release, err := b.retention.task.Hold(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	b.store.Messages.Add(func(*store.Batch) { // what changes there only stands still
		b.mu.RLock()
		defer b.mu.RUnlock()
		c.auditAll(b)
	}, nil)
	release()
	for _, s := range b.Stats().Topics {
		t, err := b.topic(s.Topic)
		if err != nil {
			c.t.Fatal(err)
		}
		if d := b.describe(t); s.Stored != (Backlog{d.Messages, d.Bytes}) {
			c.t.Errorf("%s has %+v in the statistics, and %d messages, %d bytes", s.Topic, s.Stored, d.Messages, d.Bytes)
		}
	}
}

func (c *combined) auditAll(b *Broker) {
	var ahead int64
	leases, cursors, subs := map[copyOf]store.Lease{}, map[copyOf]store.Cursor{}, map[[2]uint32]bool{}
	halves := map[uint32]int64{}
	for _, err := range []error{
		b.store.Leases(func(group uint32, p store.Place, l store.Lease) error { leases[copyOf{group, p}] = l; return nil }),
		b.store.Cursors(func(group, topic uint32, queue uint16, at store.Cursor) error {
			cursors[copyOf{group, store.Place{Topic: topic, Queue: queue}}] = at
			return nil
		}),
		b.store.Subscriptions(func(group, topic uint32) error { subs[[2]uint32{group, topic}] = true; return nil }),
		b.store.HalfMessages(func(id store.HalfID, _ store.HalfState) error { halves[id.Topic]++; return nil }),
	} {
		if err != nil {
			c.t.Fatal(err)
		}
	}
	for _, t := range b.topics {
		c.auditTopic(t)
		if t.pending.Half.Load() != halves[t.id] {
			c.t.Errorf("%s counts %d half messages; there are %d", t.name, t.pending.Half.Load(), halves[t.id])
		}
		for _, s := range *t.subs.Load() {
			if b.subs[[2]uint32{s.group.id, t.id}] != s || b.groups[s.group.name] != s.group {
				c.t.Errorf("%s has the subscription of %s, which is not there", t.name, s.group.name)
			}
		}
	}
	for k, s := range b.subs {
		if !slices.Contains(*s.topic.subs.Load(), s) || b.topics[s.topic.name] != s.topic {
			c.t.Errorf("the subscription of %s to %s is not its topic's", s.group.name, s.topic.name)
		}
		if !subs[k] {
			c.t.Errorf("the subscription of %s to %s is not on disk", s.group.name, s.topic.name)
		}
		delete(subs, k)
		s.mu.Lock()
		ahead += c.auditSubscription(s, leases, cursors)
		s.mu.Unlock()
	}
	if len(leases) > 0 || len(cursors) > 0 || len(subs) > 0 {
		c.t.Errorf("left on disk: leases %v, cursors %v, subscriptions %v", leases, cursors, subs)
	}
	if got := b.readAhead.Load(); got != ahead {
		c.t.Errorf("%d bytes are counted as read ahead, %d are", got, ahead)
	}
}

// auditTopic reads every queue of a topic.
func (c *combined) auditTopic(t *topic) {
	var all, low, kept Backlog
	for _, q := range *t.queues.Load() {
		at := *q.low.Load()
		st, err := c.b.store.Queue(t.id, q.number)
		if err != nil {
			c.t.Fatal(err)
		}
		if st.First != at || st.End.Offset != q.end.Load() || st.End.Offset != q.nextOffset || st.End.Bytes != q.nextBytes {
			c.t.Errorf("%s/%d: on disk from %+v to %+v, in memory from %+v to %d (%d bytes)", t.name, q.number, st.First, st.End, at, q.nextOffset, q.nextBytes)
		}
		if len(st.Leftovers) != len(q.retention.Leftovers) {
			c.t.Errorf("%s/%d: %d are kept on disk, %d in memory", t.name, q.number, len(st.Leftovers), len(q.retention.Leftovers))
		}
		for o, m := range st.Leftovers {
			kept.Messages++
			kept.Bytes += m.Size
			needed := false
			for _, s := range *t.subs.Load() {
				s.mu.Lock()
				needed = needed || int(q.number) < s.progress.Queues() && s.progress.Lease(int(q.number), o) != nil
				s.mu.Unlock()
			}
			if !needed && t.retentionDue.Load() == 0 {
				c.t.Errorf("%s/%d: offset %d is kept for nobody, and nothing will remove it", t.name, q.number, o)
			}
		}
		for o := at.Offset; o < q.nextOffset; o++ {
			if _, ok, err := c.b.store.Get(store.Place{Topic: t.id, Queue: q.number, Offset: o}); !ok || err != nil {
				c.t.Errorf("%s/%d: offset %d of %d to %d is not there: %v", t.name, q.number, o, at.Offset, q.nextOffset, err)
			}
		}
		all.Messages, all.Bytes = all.Messages+q.nextOffset, all.Bytes+q.nextBytes
		low.Messages, low.Bytes = low.Messages+at.Offset, low.Bytes+at.Bytes
	}
	if got := (Backlog{t.messages.Load(), t.bytes.Load()}); got != all {
		c.t.Errorf("%s counts %+v in all; it is %+v", t.name, got, all)
	}
	var delayed Backlog
	waiting, err := c.b.store.DelayedOf(t.id, store.StoredDelayed{}, 1<<20)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, m := range waiting {
		delayed.Messages, delayed.Bytes = delayed.Messages+1, delayed.Bytes+m.Size
	}
	if got := t.delayedBacklog(); got != delayed {
		c.t.Errorf("%s counts %+v delayed; it is %+v", t.name, got, delayed)
	}
	if got := (Backlog{t.lowMessages.Load(), t.lowBytes.Load()}); got != low {
		c.t.Errorf("%s counts %+v removed; it is %+v", t.name, got, low)
	}
	if got := (Backlog{t.leftovers.Load(), t.leftoverBytes.Load()}); got != kept {
		c.t.Errorf("%s counts %+v kept; it is %+v", t.name, got, kept)
	}
}

// auditSubscription takes what it finds from what is on disk, and returns the
// bytes that are read ahead. s.mu is held.
func (c *combined) auditSubscription(s *subscription, leases map[copyOf]store.Lease, cursors map[copyOf]store.Cursor) (ahead int64) {
	who := s.group.name + " in " + s.topic.name
	var want Backlog
	var leased int64
	for i, r := range s.readers {
		q, cur := r.queue, s.progress.Cursor(i)
		ahead += r.ahead.bytes
		if low := q.low.Load(); cur.Next < low.Offset || cur.Next > q.nextOffset || s.progress.Claimed(i) {
			c.t.Errorf("%s is at %d, from %d to %d; claimed %v", who, cur.Next, low.Offset, q.nextOffset, s.progress.Claimed(i))
		}
		want.Messages += q.nextOffset - cur.Next
		want.Bytes += q.nextBytes - cur.Bytes
		at := copyOf{s.group.id, store.Place{Topic: s.topic.id, Queue: q.number}}
		if on, ok := cursors[at]; ok && (on.Next > cur.Next || on.Next == cur.Next && on.Bytes != cur.Bytes) || ok && on.Next < cur.Next && cur.Next != q.low.Load().Offset {
			c.t.Errorf("%s: the cursor of queue %d is %d, %d bytes, and %+v on disk", who, q.number, cur.Next, cur.Bytes, on)
		}
		delete(cursors, at)
		oldest := int64(0)
		for o, l := range s.progress.Leases(i) {
			at.place.Offset = o
			leased += l.Size
			want.Messages++
			oldest = throttle.Lesser(oldest, l.Stored/throttle.AgeTick)
			switch l.State() {
			case StateInflight, StateWaitingRetry, StateReady, consume.Held:
			default:
				c.t.Errorf("%s: offset %d is %v, and nothing is under way", who, o, l.State())
			}
			m, there, err := c.b.store.FirstIn(store.Range{Topic: at.place.Topic, Queue: at.place.Queue, From: o, To: o + 1})
			if err != nil || !there || m.Size != l.Size || m.At.UnixNano() != l.Stored || o >= cur.Next {
				c.t.Errorf("%s has a lease of offset %d of queue %d, %+v (next is %d): %+v, %v", who, o, q.number, l.Lease, cur.Next, m, err)
			}
			if on, ok := leases[at]; !ok || on.Attempt != l.Attempt || on.Serial != l.Serial {
				c.t.Errorf("%s: the lease of offset %d of queue %d is %+v, on disk %+v", who, o, q.number, l.Lease, on)
			}
			delete(leases, at)
		}
		if got := s.progress.Oldest(i) / throttle.AgeTick; got != oldest {
			c.t.Errorf("%s: its oldest lease is of %d, and of %d", who, got, oldest)
		}
	}
	want.Bytes += leased
	if got := s.backlog(); got != want {
		c.t.Errorf("%s counts a backlog of %+v; it is %+v", who, got, want)
	}
	if s.leasedBytes.Load() != leased {
		c.t.Errorf("%s counts %d bytes; it is %d", who, s.leasedBytes.Load(), leased)
	}
	if err := s.progress.Audit(); err != nil {
		c.t.Errorf("%s: %v", who, err)
	}
	if due, ok := s.progress.NextDue(); ok && (s.armed.IsZero() || s.armed.After(due)) {
		c.t.Errorf("%s: its timer is set to %v, the first lease is due at %v", who, s.armed, due)
	}
	if e := s.progress.Effects(); len(e.Writes) > 0 || e.Done != (consume.Amount{}) || e.LeasedBytes != 0 {
		c.t.Errorf("%s: effects were not applied: %+v", who, e)
	}
	return ahead
}
