package broker_test

import (
	"slices"
	"testing/synctest"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/status"
)

// audit compares the counters of the broker with its content in memory and on disk.
func (c *combined) audit() {
	synctest.Wait()
	b := c.b
	release := holdRetention(c.t, b)
	inLog(b, func(*store.Batch) { c.auditAll(b.Engine().Parts()) })
	release()
	for _, s := range serve(b).Stats().Topics {
		d, err := b.Topic(s.Name)
		if err != nil {
			c.t.Fatal(err)
		}
		if s.Stored != (status.Backlog{Messages: d.StoredMessages, Bytes: d.StoredBytes}) {
			c.t.Errorf("%s has %+v in the statistics, and %d messages, %d bytes", s.Name, s.Stored, d.StoredMessages, d.StoredBytes)
		}
	}
}

func (c *combined) auditAll(p engine.Parts) {
	var ahead int64
	leases, cursors, subs := map[copyOf]store.Lease{}, map[copyOf]store.Cursor{}, map[[2]uint32]bool{}
	halfMessages := map[uint32]int64{}
	for _, err := range []error{
		p.Store.Leases(func(group uint32, p store.Place, l store.Lease) error { leases[copyOf{group, p}] = l; return nil }),
		p.Store.Cursors(func(group, topic uint32, queue uint16, at store.Cursor) error {
			cursors[copyOf{group, store.Place{Topic: topic, Queue: queue}}] = at
			return nil
		}),
		p.Store.Subscriptions(func(group, topic uint32) error { subs[[2]uint32{group, topic}] = true; return nil }),
		p.Store.HalfMessages(func(id store.HalfID, _ store.HalfState) error { halfMessages[id.Topic]++; return nil }),
	} {
		if err != nil {
			c.t.Fatal(err)
		}
	}
	topics, all := p.Catalog.All()
	for _, t := range topics {
		c.auditTopic(p.Store, t)
		if t.Counters().Half.Load() != halfMessages[t.ID()] {
			c.t.Errorf("%s counts %d half messages; there are %d", t.Name(), t.Counters().Half.Load(), halfMessages[t.ID()])
		}
		for _, of := range t.Subscriptions() {
			s := of.(*engine.Subscription)
			if p.Catalog.Find(s.Group().ID(), t.ID()) != s || p.Catalog.FindGroup(s.Group().Name()) != s.Group() {
				c.t.Errorf("%s has the subscription of %s, which is not there", t.Name(), s.Group().Name())
			}
		}
	}
	for _, s := range all {
		k := [2]uint32{s.Group().ID(), s.Topic().ID()}
		if !slices.Contains(s.Topic().Subscriptions(), engine.TopicSubscription(s)) || p.Catalog.FindTopic(s.Topic().Name()) != s.Topic() {
			c.t.Errorf("the subscription of %s to %s is not its topic's", s.Group().Name(), s.Topic().Name())
		}
		if !subs[k] {
			c.t.Errorf("the subscription of %s to %s is not on disk", s.Group().Name(), s.Topic().Name())
		}
		delete(subs, k)
		ahead += c.auditSubscription(p.Store, s, leases, cursors)
	}
	if len(leases) > 0 || len(cursors) > 0 || len(subs) > 0 {
		c.t.Errorf("left on disk: leases %v, cursors %v, subscriptions %v", leases, cursors, subs)
	}
	if got := p.Env.Reads.Ahead(); got != ahead {
		c.t.Errorf("%d bytes are counted as read ahead, %d are", got, ahead)
	}
}

// auditTopic reads every queue of a topic.
func (c *combined) auditTopic(st *store.Store, t *engine.Topic) {
	var all, low, leftovers status.Backlog
	for _, q := range t.Queues() {
		at := q.Low()
		disk, err := st.Queue(t.ID(), q.Number())
		if err != nil {
			c.t.Fatal(err)
		}
		if disk.First != at || disk.End.Offset != q.End() || disk.End.Offset != q.Next().Offset || disk.End.Bytes != q.Next().Bytes {
			c.t.Errorf("%s/%d: on disk from %+v to %+v, in memory from %+v to %d (%d bytes)", t.Name(), q.Number(), disk.First, disk.End, at, q.Next().Offset, q.Next().Bytes)
		}
		if len(disk.Leftovers) != len(q.Retention.Leftovers) {
			c.t.Errorf("%s/%d: %d are kept on disk, %d in memory", t.Name(), q.Number(), len(disk.Leftovers), len(q.Retention.Leftovers))
		}
		for o, m := range disk.Leftovers {
			leftovers.Messages++
			leftovers.Bytes += m.Size
			needed := false
			for _, of := range t.Subscriptions() {
				s := of.(*engine.Subscription)
				s.Look(func(p *consume.Progress) {
					needed = needed || int(q.Number()) < p.Queues() && p.Lease(int(q.Number()), o) != nil
				})
			}
			if !needed && !t.RoundIsSet() {
				c.t.Errorf("%s/%d: offset %d is kept without a reader, and no round will remove it", t.Name(), q.Number(), o)
			}
		}
		for o := at.Offset; o < q.Next().Offset; o++ {
			if _, ok, err := st.Get(store.Place{Topic: t.ID(), Queue: q.Number(), Offset: o}); !ok || err != nil {
				c.t.Errorf("%s/%d: offset %d of %d to %d is not there: %v", t.Name(), q.Number(), o, at.Offset, q.Next().Offset, err)
			}
		}
		all.Messages, all.Bytes = all.Messages+q.Next().Offset, all.Bytes+q.Next().Bytes
		low.Messages, low.Bytes = low.Messages+at.Offset, low.Bytes+at.Bytes
	}
	if got := (status.Backlog{Messages: t.Written().Messages, Bytes: t.Written().Bytes}); got != all {
		c.t.Errorf("%s counts %+v in all; it is %+v", t.Name(), got, all)
	}
	var delayed status.Backlog
	waiting, err := st.DelayedOf(t.ID(), store.StoredDelayed{}, 1<<20)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, m := range waiting {
		delayed.Messages, delayed.Bytes = delayed.Messages+1, delayed.Bytes+m.Size
	}
	if got := status.Backlog(t.Delayed()); got != delayed {
		c.t.Errorf("%s counts %+v delayed; it is %+v", t.Name(), got, delayed)
	}
	if got := (status.Backlog{Messages: t.Before().Messages, Bytes: t.Before().Bytes}); got != low {
		c.t.Errorf("%s counts %+v removed; it is %+v", t.Name(), got, low)
	}
	if got := (status.Backlog{Messages: t.Leftovers().Messages, Bytes: t.Leftovers().Bytes}); got != leftovers {
		c.t.Errorf("%s counts %+v kept; it is %+v", t.Name(), got, leftovers)
	}
}

// auditSubscription removes the records that it finds from those on disk, and returns the bytes
// that are read ahead.
func (c *combined) auditSubscription(st *store.Store, s *engine.Subscription, leases map[copyOf]store.Lease, cursors map[copyOf]store.Cursor) (ahead int64) {
	who := s.Group().Name() + " in " + s.Topic().Name()
	var want status.Backlog
	var leased int64
	s.Look(func(p *consume.Progress) { want, leased = c.auditProgress(st, s, p, leases, cursors) })
	want.Bytes += leased
	if got := status.Backlog(s.Backlog()); got != want {
		c.t.Errorf("%s counts a backlog of %+v; it is %+v", who, got, want)
	}
	if s.LeasedBytes() != leased {
		c.t.Errorf("%s counts %d bytes; it is %d", who, s.LeasedBytes(), leased)
	}
	a, err := s.Audit()
	if err != nil {
		c.t.Errorf("%s: %v", who, err)
	}
	return a.Ahead
}

// auditProgress is the part of auditSubscription under the lock. It returns the messages after the
// cursors and under leases, without the bytes of the latter, and these bytes.
func (c *combined) auditProgress(st *store.Store, s *engine.Subscription, p *consume.Progress, leases map[copyOf]store.Lease, cursors map[copyOf]store.Cursor) (want status.Backlog, leased int64) {
	who := s.Group().Name() + " in " + s.Topic().Name()
	for i, q := range s.Topic().Queues()[:p.Queues()] {
		cur := p.Cursor(i)
		if low := q.Low(); cur.Next < low.Offset || cur.Next > q.Next().Offset || p.Claimed(i) {
			c.t.Errorf("%s is at %d, from %d to %d; claimed %v", who, cur.Next, low.Offset, q.Next().Offset, p.Claimed(i))
		}
		want.Messages += q.Next().Offset - cur.Next
		want.Bytes += q.Next().Bytes - cur.Bytes
		at := copyOf{s.Group().ID(), store.Place{Topic: s.Topic().ID(), Queue: q.Number()}}
		if on, ok := cursors[at]; ok && (on.Next > cur.Next || on.Next == cur.Next && on.Bytes != cur.Bytes) || ok && on.Next < cur.Next && cur.Next != q.Low().Offset {
			c.t.Errorf("%s: the cursor of queue %d is %d, %d bytes, and %+v on disk", who, q.Number(), cur.Next, cur.Bytes, on)
		}
		delete(cursors, at)
		oldest := int64(0)
		for o, l := range p.Leases(i) {
			at.place.Offset = o
			leased += l.Size
			want.Messages++
			oldest = throttle.Lesser(oldest, l.Stored/throttle.AgeTick)
			switch l.State() {
			case consume.Inflight, consume.WaitingRetry, consume.Ready, consume.Held:
			default:
				c.t.Errorf("%s: offset %d is %v, and nothing is under way", who, o, l.State())
			}
			m, there, err := st.FirstIn(store.Range{Topic: at.place.Topic, Queue: at.place.Queue, From: o, To: o + 1})
			if err != nil || !there || m.Size != l.Size || m.At.UnixNano() != l.Stored || o >= cur.Next {
				c.t.Errorf("%s has a lease of offset %d of queue %d, %+v (next is %d): %+v, %v", who, o, q.Number(), l.Lease, cur.Next, m, err)
			}
			if on, ok := leases[at]; !ok || on.Attempt != l.Attempt || on.Serial != l.Serial {
				c.t.Errorf("%s: the lease of offset %d of queue %d is %+v, on disk %+v", who, o, q.Number(), l.Lease, on)
			}
			delete(leases, at)
		}
		if got := p.Oldest(i) / throttle.AgeTick; got != oldest {
			c.t.Errorf("%s: its oldest lease is of %d, and of %d", who, got, oldest)
		}
	}
	return want, leased
}
