package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// Recover restores the topics, groups and subscriptions of the store, with their messages, message
// IDs and progress. Nothing else runs yet: the caller starts the loop afterwards.
func (c *Catalog) Recover() error {
	st := c.config.Store
	var err error
	if c.number, err = st.LastNumber(); err != nil {
		return err
	}
	if c.idKey, err = st.IDKey(); err != nil {
		return err
	}
	if err := c.recoverAddresses(); err != nil {
		return err
	}
	topics, groups, err := c.recoverSettings()
	if err != nil {
		return err
	}
	pendingTopics := c.PendingTopics()
	if err := c.config.Delayed.Recover(pendingTopics); err != nil {
		return err
	}
	now := time.Now()
	for _, t := range topics {
		newest, err := t.Restore(st)
		c.noteTime(newest)
		if err == nil && t.Delayed().Messages > 0 && newest.After(now) {
			err = c.config.Delayed.AdvanceRetries(t, now)
		}
		if err := errors.Join(err, c.recoverIDs(t, now)); err != nil {
			return fmt.Errorf("topic %q: %w", t.Name(), err)
		}
	}
	if err := st.Classes(func(id, class uint32, lc *store.LetterClass) error {
		if t := topics[id]; t != nil {
			t.Classes().Restore(class, lc)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := c.recoverProgress(topics, groups); err != nil {
		return err
	}
	newest, err := c.config.Transactions.Recover(pendingTopics, now)
	if err != nil {
		return err
	}
	c.noteTime(newest)
	for _, t := range topics {
		if t.Written().Messages > t.Before().Messages || t.Leftovers().Messages > 0 {
			t.WakeRetention(now)
		}
		if t.Automatic() {
			c.autoDelete.Wake(now.Add(autoDeleteDelay))
		}
	}
	return nil
}

// noteTime notes a time in the data directory, for Newest.
func (c *Catalog) noteTime(at time.Time) {
	if at.After(c.newest) {
		c.newest = at
	}
}

// Newest returns the newest time that Recover has read: of the last messages of queues, of delayed
// and half messages, and of deliveries that are not settled. Zero means that there is none.
func (c *Catalog) Newest() time.Time { return c.newest }

// ClockChanged starts the work that the verdict about the wall clock decides: rounds of retention
// in all topics, and the delivery of postponed messages.
func (c *Catalog) ClockChanged(now time.Time) {
	topics, subs := c.All()
	for _, t := range topics {
		if t.Written().Messages > t.Before().Messages || t.Leftovers().Messages > 0 {
			t.WakeRetention(now)
		}
	}
	for _, s := range subs {
		s.EndPostponed()
	}
}

// recoverSettings restores the topics and groups with their settings, and returns them by number.
func (c *Catalog) recoverSettings() (topics map[uint32]*Topic, groups map[uint32]*Group, err error) {
	topics, groups = map[uint32]*Topic{}, map[uint32]*Group{}
	if err := c.config.Store.Topics(func(name string, v []byte) error {
		r, err := decodeRecord(name, v)
		if err != nil {
			return err
		}
		t := c.newTopic(name, r.ID, r.Topic)
		t.SetAddress(c.addressPolicy(name))
		t.SetAutomatic(r.Automatic)
		topics[r.ID] = t
		c.AddTopic(t)
		if t.lite() {
			return t.restoreLite(c.config.Store, time.Now())
		}
		return nil
	}); err != nil {
		return nil, nil, err
	}
	err = c.config.Store.AllGroups(func(name string, v []byte) error {
		r, err := decodeGroupRecord(name, v)
		if err != nil {
			return err
		}
		g := newGroup(name, r.ID, r.Group)
		g.SetAutomatic(r.Automatic)
		c.autoGroups += toInt(r.Automatic)
		groups[r.ID] = g
		c.addGroup(g)
		return nil
	})
	return topics, groups, err
}

// recoverProgress restores the subscriptions, and removes records that have no effect any more.
func (c *Catalog) recoverProgress(topics map[uint32]*Topic, groups map[uint32]*Group) error {
	r := restoration{
		Catalog: c, topicsByID: topics, groupsByID: groups,
		subs: map[[2]uint32]*Subscription{}, orphans: map[[2]uint32]bool{}, lost: lostEnds{}, texts: map[string]string{},
	}
	// Leases come after the cursors, and the records of parked and spilled messages after the
	// leases.
	for _, restore := range []func() error{r.subscriptions, r.cursors, r.leases, r.parked, r.spilled} {
		if err := restore(); err != nil {
			return err
		}
	}
	r.lost.Restore(c.config.Store, c.config.Logger)
	r.removeStrays()
	for _, s := range r.subs {
		s.Resume()
	}
	return nil
}

// A restoration restores the subscriptions of a broker. Nothing else runs yet.
type restoration struct {
	*Catalog
	topicsByID map[uint32]*Topic
	groupsByID map[uint32]*Group
	subs       map[[2]uint32]*Subscription

	lost lostEnds

	// orphans are pairs of group and topic with records, whose value is true if the group or the
	// topic does not exist. A power failure during a deletion leaves such records.
	orphans map[[2]uint32]bool

	texts map[string]string // owners and message groups of leases, each once

	strays []func(*store.Batch) // remove records of messages that the group does not have any more
}

// find returns a subscription, and creates it for its first record. It returns nil if the group,
// the topic or the queue does not exist.
func (r *restoration) find(group, topic uint32, queue uint16) *Subscription {
	g, t := r.groupsByID[group], r.topicsByID[topic]
	if g == nil || t == nil || int(queue) >= len(t.Queues()) {
		return nil
	}
	key := [2]uint32{group, topic}
	if s := r.subs[key]; s != nil {
		return s
	}
	s := newSubscription(r.config.Env, g, t, true)
	r.subs[key] = s
	r.restoreSubscription(s)
	return s
}

// gone reports whether the group or the topic does not exist.
func (r *restoration) gone(group, topic uint32) bool {
	return r.groupsByID[group] == nil || r.topicsByID[topic] == nil
}

// subscriptions restores the subscriptions without progress.
func (r *restoration) subscriptions() error {
	return r.config.Store.Subscriptions(func(group, topic uint32) error {
		s := r.find(group, topic, 0)
		if s == nil {
			r.orphans[[2]uint32{group, topic}] = true
			return nil
		}
		marks, err := r.config.Store.HasDeadLetterMarks(group, topic)
		if marks {
			s.Mark()
		}
		return err
	})
}

// cursors restores the cursors of all queues.
func (r *restoration) cursors() error {
	return r.config.Store.Cursors(func(group, topic uint32, queue uint16, at store.Cursor) error {
		s := r.find(group, topic, queue)
		if s == nil {
			r.orphans[[2]uint32{group, topic}] = r.gone(group, topic)
			return nil
		}
		r.lost.Reach(s.Topic(), s.Topic().Queues()[queue], at.Next, at.Bytes)
		s.Update(func(p *consume.Progress) { p.RestoreCursor(int(queue), at) })
		return nil
	})
}

// leases restores the leases. If the memory does not suffice for all, it counts the rest and
// returns an error.
func (r *restoration) leases() error {
	marks, err := r.config.Store.Marks()
	if err != nil {
		return err
	}
	now, count, most := time.Now(), int64(0), r.config.Env.Leases.Restorable()
	err = r.config.Store.Leases(func(group uint32, p store.Place, l store.Lease) error {
		if count++; count > most { // the rest is only counted
			return nil
		}
		if r.gone(group, p.Topic) {
			r.orphans[[2]uint32{group, p.Topic}] = true
		} else if s := r.find(group, p.Topic, p.Queue); s != nil {
			r.lease(s, p, l, marks, now)
		}
		return nil
	})
	return errors.Join(err, marks.Close(), r.config.Env.Leases.CanRestore(count))
}

// lease restores a lease, unless its message was removed or lost, or became a dead letter whose
// lease was not removed before the process ended.
func (r *restoration) lease(s *Subscription, p store.Place, l store.Lease, marks *store.Marks, now time.Time) {
	group := s.Group().ID()
	q, rewound := s.Topic().Queues()[p.Queue], int64(0)
	s.Look(func(at *consume.Progress) { rewound = at.Cursor(int(p.Queue)).Rewound })
	r.lost.Reach(s.Topic(), q, p.Offset+1, 0)
	if p.Offset < q.Low().Offset && q.Retention.Leftovers[p.Offset] == nil || r.lost.Has(q, p.Offset) || marks.Has(group, p, rewound) {
		r.strays = append(r.strays, func(w *store.Batch) {
			w.DeleteLease(group, p)
			if consume.State(l.State) == consume.Parked {
				w.DeleteParked(group, p)
			}
		})
		return
	}
	r.noteTime(l.Since)
	l.Owner, l.Group = r.once(l.Owner), r.once(l.Group)
	fifo := s.Group().Settings().FIFO
	s.Update(func(to *consume.Progress) { to.RestoreLease(int(p.Queue), p.Offset, l, fifo, now) })
	if l.Owner != "" {
		r.config.Owners.Own(l.Owner, OwnerPlace{Group: group, Topic: s.Topic().ID()}, now) // the client has a minute to reconnect
	}
}

// once returns one copy of equal texts: clients and message groups have many leases.
func (r *restoration) once(text string) string {
	if have, ok := r.texts[text]; ok {
		return have
	}
	r.texts[text] = text
	return text
}

// parked restores the reasons of parked messages.
func (r *restoration) parked() error {
	return r.config.Store.AllParked(func(group uint32, p store.Place, reason string) error {
		switch s := r.find(group, p.Topic, p.Queue); {
		case s == nil:
		case r.lost.Has(s.Topic().Queues()[p.Queue], p.Offset):
			r.strays = append(r.strays, func(w *store.Batch) { w.DeleteParked(group, p) })
		default:
			s.Update(func(to *consume.Progress) { to.RestoreReason(int(p.Queue), p.Offset, reason) })
		}
		return nil
	})
}

// spilled restores the successors of parked and blocked messages.
func (r *restoration) spilled() error {
	return r.config.Store.AllSpilled(func(group uint32, p store.Place, messageGroup string, l store.Lease) error {
		switch s := r.find(group, p.Topic, p.Queue); {
		case s == nil:
		case r.lost.Has(s.Topic().Queues()[p.Queue], p.Offset):
			r.strays = append(r.strays, func(w *store.Batch) { w.DeleteSpilled(group, p, messageGroup) })
		default:
			s.Update(func(to *consume.Progress) { to.RestoreSpilled(int(p.Queue), p.Offset, messageGroup, l.Size) })
		}
		return nil
	})
}

// removeStrays removes the records of strays and orphans.
func (r *restoration) removeStrays() {
	if len(r.strays)+len(r.orphans) == 0 {
		return
	}
	r.config.Store.Groups.Add(func(w *store.Batch) {
		for _, remove := range r.strays {
			remove(w)
		}
		for k, gone := range r.orphans {
			if gone {
				w.DeleteSubscription(k[0], k[1])
			}
		}
	}, nil)
	r.config.Store.Messages.Add(func(w *store.Batch) {
		for k, gone := range r.orphans {
			if gone {
				w.DeleteSubscriptionOfTopic(k[0], k[1])
			}
		}
	}, nil)
}

// Restore reads the state of the queues from the store, and returns when the newest message was
// stored; zero if there is none. No other goroutine uses the topic yet.
func (t *Topic) Restore(st *store.Store) (newest time.Time, err error) {
	if waiting, _ := t.pending.Delayed(); waiting > 0 {
		if err := st.NewestDelayed(t.config.ID, time.Time{}, func(d *store.StoredDelayed) bool {
			newest = d.Stored
			return false
		}); err != nil {
			return newest, err
		}
	}
	for _, q := range t.Queues() {
		state, err := st.Queue(t.config.ID, q.number)
		if err != nil {
			return newest, err
		}
		if state.Newest.After(newest) {
			newest = state.Newest
		}
		q.low.Store(&state.First)
		q.Retention = retention.Restore(state.First, state.Leftovers)
		q.nextOffset, q.nextBytes = state.End.Offset, state.End.Bytes
		q.removedMessages.Store(state.Removed.Messages)
		q.removedBytes.Store(state.Removed.Bytes)
		if state.Removed.Messages > 0 {
			t.hasGaps.Store(true)
		}
		q.end.Store(state.End.Offset)
		t.messages.Add(state.End.Offset)
		t.bytes.Add(state.End.Bytes)
		t.lowMessages.Add(state.First.Offset)
		t.lowBytes.Add(state.First.Bytes)
		for _, m := range state.Leftovers {
			t.leftovers.Add(1)
			t.leftoverBytes.Add(m.Size)
		}
	}
	if t.lite() {
		t.sortLite()
	}
	t.Watch()
	t.opened = t.Written()
	return newest, nil
}

// lostEnds are queues that are shorter than the progress of groups shows, because the end of the
// message log is damaged. Such a queue continues after the last message that a group has received.
// No offset is then assigned twice: no cursor is past the next message, and no lease applies to
// another message than before.
type lostEnds map[*Queue]lostEnd

type lostEnd struct {
	topic *Topic
	store.Mark
}

// Reach notes that a group has reached an offset, and the size of the bodies before it. A queue
// that ends before the offset continues there.
func (l lostEnds) Reach(t *Topic, q *Queue, next, bytes int64) {
	if next <= q.nextOffset {
		return
	}
	if _, ok := l[q]; !ok {
		l[q] = lostEnd{t, store.Mark{Offset: q.nextOffset, Bytes: q.nextBytes}}
	}
	q.nextOffset, q.nextBytes = next, max(q.nextBytes, bytes)
}

// Has reports whether a message is lost.
func (l lostEnds) Has(q *Queue, offset int64) bool {
	e, ok := l[q]
	return ok && offset >= e.Offset
}

// Restore counts the lost messages as removed, logs them and writes the new counts.
func (l lostEnds) Restore(st *store.Store, logger *slog.Logger) {
	if len(l) == 0 {
		return
	}
	for q, e := range l {
		messages, bytes := q.nextOffset-e.Offset, q.nextBytes-e.Bytes
		q.end.Store(q.nextOffset)
		e.topic.hasGaps.Store(true)
		q.removedMessages.Add(messages)
		q.removedBytes.Add(bytes)
		e.topic.messages.Add(messages)
		e.topic.bytes.Add(bytes)
		e.topic.opened.Messages += messages
		e.topic.opened.Bytes += bytes
		logger.Error("queue has lost its last messages; groups had received later offsets, and new messages continue after these",
			"topic", e.topic.Name(), "queue", q.number, "messages", messages, "from_offset", e.Offset, "to_offset", q.nextOffset-1)
	}
	st.Messages.Add(func(w *store.Batch) {
		for q, e := range l {
			w.PutRemoved(e.topic.config.ID, q.number, q.Removed())
		}
	}, nil)
}

// recoverIDs restores the message IDs of a topic's duplicate window. Nothing else runs yet.
func (c *Catalog) recoverIDs(t *Topic, now time.Time) error {
	from := duplicatesSource{Store: c.config.Store, Logger: c.config.Logger, Topic: t.Name(), Window: t.Settings().IDWindow(), Now: now}
	for _, q := range t.Queues() {
		from.Ends = append(from.Ends, q.Next().Offset)
	}
	if err := t.IDs().Restore(from); err != nil {
		return err
	}
	if at := t.IDs().ExpiresAt(from.Window, now); !at.IsZero() {
		c.forgetting.Wake(at)
	}
	return nil
}

// IndexRest writes the message IDs that the index on disk does not have yet. The broker closes, and
// nothing else runs any more. It writes nothing to a full disk: the next Open then reads the
// messages instead.
func (c *Catalog) IndexRest() {
	if c.config.Store.DiskFull() != nil {
		return
	}
	now := time.Now()
	c.config.Store.Messages.Add(func(w *store.Batch) {
		for _, t := range c.TopicsByID() {
			t.IDs().WriteRest(w, t.Settings().IDWindow(), now)
		}
	}, nil) // closing the store commits it
}

// ForgetsAt returns the time at which message IDs are next forgotten, and zero if there is none.
func (c *Catalog) ForgetsAt() time.Time { return c.forgetting.Due() }

// forget forgets the message IDs of all topics that are older than the duplicate window. Topics
// that receive no messages free their memory and disk space in this way.
func (c *Catalog) forget(context.Context, time.Time) (next time.Time, err error) {
	topics := c.TopicsByID()
	clock := c.config.Env.Clock.Look()
	now := clock.Ages()
	if err := c.config.Store.Messages.Add(func(w *store.Batch) {
		for _, t := range topics {
			if t.Deleted() {
				continue
			}
			if at := t.IDs().Expire(w, t.Settings().IDWindow(), now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}, nil).Wait(); err != nil {
		return time.Time{}, nil //nolint:nilerr // the store is broken: it accepts no message any more
	}
	if clock.Distrusted && !next.IsZero() {
		next = clock.Until // until then no ID is older than it was
	}
	return next, nil
}
