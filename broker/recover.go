package broker

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
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
	topics, groups := map[uint32]*topic.Topic{}, map[uint32]*topic.Group{}
	if err := b.store.Topics(func(name string, v []byte) error {
		st, err := topic.DecodeRecord(name, v)
		if err != nil {
			return err
		}
		t := b.newTopic(name, st.ID, st.Topic)
		t.SetAddress(b.addressPolicy(name))
		t.SetAutomatic(st.Automatic)
		topics[st.ID], b.topics[name] = t, t
		return nil
	}); err != nil {
		return err
	}
	if err := b.store.AllGroups(func(name string, v []byte) error {
		st, err := topic.DecodeGroupRecord(name, v)
		if err != nil {
			return err
		}
		g := topic.NewGroup(name, st.ID, st.Group)
		g.SetAutomatic(st.Automatic)
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
		if err := errors.Join(t.Restore(b.store), b.recoverIDs(t, now)); err != nil {
			return fmt.Errorf("topic %q: %w", t.Name(), err)
		}
	}
	if err := b.recoverProgress(topics, groups); err != nil {
		return err
	}
	if err := b.transactions.Recover(pendingTopics, now); err != nil {
		return err
	}
	for _, t := range topics {
		if t.Written().Messages > t.Before().Messages || t.Leftovers().Messages > 0 {
			t.WakeRetention(now)
		}
		if t.Automatic() {
			b.autoDelete.Wake(now.Add(autoDeleteDelay))
		}
	}
	return nil
}

func (b *Broker) recoverProgress(topics map[uint32]*topic.Topic, groups map[uint32]*topic.Group) error {
	// What was deleted may have left something when the power failed: it is passed over, and
	// deleted now.
	orphans := map[[2]uint32]bool{}
	find := func(group, topic uint32, queue uint16) *subscription.Subscription {
		g, t := groups[group], topics[topic]
		if g == nil || t == nil || int(queue) >= len(t.Queues()) {
			return nil
		}
		if s := b.subs[[2]uint32{group, topic}]; s != nil {
			return s
		}
		s := subscription.New(b.env, g, t, true)
		b.addSubscription(s)
		return s
	}
	if err := b.store.Subscriptions(func(group, topic uint32) error {
		s := find(group, topic, 0)
		if s == nil {
			orphans[[2]uint32{group, topic}] = true
			return nil
		}
		marks, err := b.store.HasDeadLetterMarks(group, topic)
		if marks {
			s.Mark()
		}
		return err
	}); err != nil {
		return err
	}
	lost := topic.LostEnds{}
	if err := b.store.Cursors(func(group, topic uint32, queue uint16, at store.Cursor) error {
		s := find(group, topic, queue)
		if s == nil {
			orphans[[2]uint32{group, topic}] = groups[group] == nil || topics[topic] == nil
			return nil
		}
		lost.Reach(s.Topic(), s.Topic().Queues()[queue], at.Next, at.Bytes)
		s.Update(func(p *consume.Progress) { p.RestoreCursor(int(queue), at) })
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
		} else if s := find(group, p.Topic, p.Queue); s != nil {
			// Its message was removed, or lost, or the process ended between the dead letter and
			// the removal of the lease.
			q, rewound := s.Topic().Queues()[p.Queue], int64(0)
			s.Look(func(at *consume.Progress) { rewound = at.Cursor(int(p.Queue)).Rewound })
			lost.Reach(s.Topic(), q, p.Offset+1, 0)
			if p.Offset < q.Low().Offset && q.Retention.Leftovers[p.Offset] == nil || lost.Has(q, p.Offset) || marks.Has(group, p, rewound) {
				strays = append(strays, func(w *store.Batch) {
					w.DeleteLease(group, p)
					if State(l.State) == StateParked {
						w.DeleteParked(group, p)
					}
				})
				return nil
			}
			fifo := s.Group().Settings().FIFO
			s.Update(func(to *consume.Progress) { to.RestoreLease(int(p.Queue), p.Offset, l, fifo) })
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
		switch s := find(group, p.Topic, p.Queue); {
		case s == nil:
		case lost.Has(s.Topic().Queues()[p.Queue], p.Offset):
			strays = append(strays, func(w *store.Batch) { w.DeleteParked(group, p) })
		default:
			s.Update(func(to *consume.Progress) { to.RestoreReason(int(p.Queue), p.Offset, reason) })
		}
		return nil
	}); err != nil {
		return err
	}
	if err := b.store.AllSpilled(func(group uint32, p store.Place, messageGroup string, l store.Lease) error {
		switch s := find(group, p.Topic, p.Queue); {
		case s == nil:
		case lost.Has(s.Topic().Queues()[p.Queue], p.Offset):
			strays = append(strays, func(w *store.Batch) { w.DeleteSpilled(group, p, messageGroup) })
		default:
			s.Update(func(to *consume.Progress) { to.RestoreSpilled(int(p.Queue), p.Offset, messageGroup, l.Size) })
		}
		return nil
	}); err != nil {
		return err
	}
	lost.Restore(b.store, b.logger)
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
		s.Resume()
	}
	return nil
}
