package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// recover brings back what the store has. Nothing else runs yet; maintenance is started later.
func (b *Broker) recover() error {
	var err error
	if b.number, err = b.store.LastNumber(); err != nil {
		return err
	}
	if b.idKey, err = b.store.IDKey(); err != nil {
		return err
	}
	if err := b.recoverAddressSettings(); err != nil {
		return err
	}
	topics, groups := map[uint32]*topic{}, map[uint32]*group{}
	if err := b.store.Topics(func(name string, v []byte) error {
		st, err := decodeTopic(name, v)
		if err != nil {
			return err
		}
		t := newTopic(name, st.ID, st.TopicConfig, b.retention)
		t.address.Store(b.addressPolicy(name))
		t.automatic.Store(st.Automatic)
		topics[st.ID], b.topics[name] = t, t
		return nil
	}); err != nil {
		return err
	}
	if err := b.store.AllGroups(func(name string, v []byte) error {
		st, err := decodeGroup(name, v)
		if err != nil {
			return err
		}
		g := newGroup(name, st.ID, st.GroupConfig)
		g.automatic.Store(st.Automatic)
		b.autoGroups += toInt(st.Automatic)
		groups[st.ID], b.groups[name] = g, g
		return nil
	}); err != nil {
		return err
	}
	pendingTopics := b.pendingTopics()
	if err := b.delayed.Recover(pendingTopics); err != nil {
		return err
	}
	now := time.Now()
	for _, t := range topics {
		if err := errors.Join(b.recoverQueues(t), b.recoverIDs(t, now)); err != nil {
			return fmt.Errorf("topic %q: %w", t.name, err)
		}
	}
	if err := b.recoverProgress(topics, groups); err != nil {
		return err
	}
	if err := b.transactions.Recover(pendingTopics, now); err != nil {
		return err
	}
	for _, t := range topics {
		if t.messages.Load() > t.lowMessages.Load() || t.leftovers.Load() > 0 {
			b.retention.wake(t, now)
		}
		if t.automatic.Load() {
			b.autoDelete.Wake(now.Add(autoDeleteDelay))
		}
	}
	return nil
}

// decodeTopic reads the settings of a topic as they are stored.
func decodeTopic(name string, v []byte) (st storedTopic, err error) {
	if err = json.Unmarshal(v, &st); err == nil {
		err = fail.Setting("PutTopic", name, st.TopicConfig.WithDefaults().Validate())
	}
	if err != nil {
		return st, fmt.Errorf("the settings of topic %q: %w", name, err)
	}
	st.TopicConfig = st.TopicConfig.WithDefaults()
	return st, nil
}

// decodeGroup reads the settings of a group as they are stored.
func decodeGroup(name string, v []byte) (st storedGroup, err error) {
	if err = json.Unmarshal(v, &st); err == nil {
		err = fail.Setting("PutGroup", name, st.GroupConfig.WithDefaults().ValidateFor(name))
	}
	if err != nil {
		return st, fmt.Errorf("the settings of group %q: %w", name, err)
	}
	st.GroupConfig = st.GroupConfig.WithDefaults()
	return st, nil
}

func (b *Broker) recoverQueues(t *topic) error {
	for _, q := range *t.queues.Load() {
		state, err := b.store.Queue(t.id, q.number)
		if err != nil {
			return err
		}
		q.low.Store(&state.First)
		q.retention = retention.Restore(state.First, state.Leftovers)
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
	t.watch()
	t.opened = Backlog{Messages: t.messages.Load(), Bytes: t.bytes.Load()}
	return nil
}

func (b *Broker) recoverProgress(topics map[uint32]*topic, groups map[uint32]*group) error {
	// What was deleted may have left something when the power failed: it is passed over, and
	// deleted now.
	orphans := map[[2]uint32]bool{}
	subscription := func(group, topic uint32, queue uint16) *subscription {
		g, t := groups[group], topics[topic]
		if g == nil || t == nil || int(queue) >= len(*t.queues.Load()) {
			return nil
		}
		if s := b.subs[[2]uint32{group, topic}]; s != nil {
			return s
		}
		s := newSubscription(b, g, t)
		s.restoring = true
		b.addSubscription(s)
		return s
	}
	if err := b.store.Subscriptions(func(group, topic uint32) error {
		s := subscription(group, topic, 0)
		if s == nil {
			orphans[[2]uint32{group, topic}] = true
			return nil
		}
		marks, err := b.store.HasDeadLetterMarks(group, topic)
		s.marked.Store(marks)
		return err
	}); err != nil {
		return err
	}
	lost := lostEnds{}
	if err := b.store.Cursors(func(group, topic uint32, queue uint16, at store.Cursor) error {
		s := subscription(group, topic, queue)
		if s == nil {
			orphans[[2]uint32{group, topic}] = groups[group] == nil || topics[topic] == nil
			return nil
		}
		lost.reach(s.topic, s.readers[queue].queue, at.Next, at.Bytes)
		s.restore(func(p *consume.Progress) { p.RestoreCursor(int(queue), at) })
		return nil
	}); err != nil {
		return err
	}
	now := time.Now()
	marks, err := b.store.Marks()
	if err != nil {
		return err
	}
	var strays []func(*store.Batch)
	if err := b.store.Leases(func(group uint32, p store.Place, l store.Lease) error {
		if groups[group] == nil || topics[p.Topic] == nil {
			orphans[[2]uint32{group, p.Topic}] = true
		} else if s := subscription(group, p.Topic, p.Queue); s != nil {
			// Its message was removed, or lost, or the process ended between the dead letter and
			// the removal of the lease.
			q, rewound := s.readers[p.Queue].queue, s.progress.Cursor(int(p.Queue)).Rewound
			lost.reach(s.topic, q, p.Offset+1, 0)
			if p.Offset < q.low.Load().Offset && q.retention.Leftovers[p.Offset] == nil || lost.has(q, p.Offset) || marks.Has(group, p, rewound) {
				strays = append(strays, func(w *store.Batch) {
					w.DeleteLease(group, p)
					if State(l.State) == StateParked {
						w.DeleteParked(group, p)
					}
				})
				return nil
			}
			fifo := s.group.config.Load().FIFO
			s.restore(func(to *consume.Progress) { to.RestoreLease(int(p.Queue), p.Offset, l, fifo) })
			if l.Owner != "" {
				b.owners.own(l.Owner, now) // a minute to come back
			}
		}
		return nil
	}); err != nil {
		return errors.Join(err, marks.Close())
	}
	if err := marks.Close(); err != nil {
		return err
	}
	if err := b.store.AllParked(func(group uint32, p store.Place, reason string) error {
		switch s := subscription(group, p.Topic, p.Queue); {
		case s == nil:
		case lost.has(s.readers[p.Queue].queue, p.Offset):
			strays = append(strays, func(w *store.Batch) { w.DeleteParked(group, p) })
		default:
			s.restore(func(to *consume.Progress) { to.RestoreReason(int(p.Queue), p.Offset, reason) })
		}
		return nil
	}); err != nil {
		return err
	}
	if err := b.store.AllSpilled(func(group uint32, p store.Place, messageGroup string, l store.Lease) error {
		switch s := subscription(group, p.Topic, p.Queue); {
		case s == nil:
		case lost.has(s.readers[p.Queue].queue, p.Offset):
			strays = append(strays, func(w *store.Batch) { w.DeleteSpilled(group, p, messageGroup) })
		default:
			s.restore(func(to *consume.Progress) { to.RestoreSpilled(int(p.Queue), p.Offset, messageGroup, l.Size) })
		}
		return nil
	}); err != nil {
		return err
	}
	b.recoverEnds(lost)
	if len(strays)+len(orphans) > 0 {
		b.store.Groups.Add(func(w *store.Batch) {
			for _, remove := range strays {
				remove(w)
			}
			for k, gone := range orphans {
				if gone {
					w.DeleteSubscription(k[0], k[1])
				}
			}
		}, nil)
		b.store.Messages.Add(func(w *store.Batch) {
			for k, gone := range orphans {
				if gone {
					w.DeleteSubscriptionOfTopic(k[0], k[1])
				}
			}
		}, nil)
	}
	for _, s := range b.subs.all() {
		s.restore(func(p *consume.Progress) { p.Resume(); s.restoring = false })
	}
	return nil
}

// restore takes a record of the store.
func (s *subscription) restore(take func(*consume.Progress)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	take(s.progress)
	s.apply(time.Now())
}
