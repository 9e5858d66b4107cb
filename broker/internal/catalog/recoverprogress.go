package catalog

import (
	"errors"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/heartbeat"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/subscription"
)

// find returns a subscription, and creates it for its first record. It returns nil if the group,
// the topic or the queue does not exist.
func (r *restoration) find(group, topic uint32, queue uint16) *subscription.Subscription {
	g, t := r.groupsByID[group], r.topicsByID[topic]
	if g == nil || t == nil || int(queue) >= len(t.Queues()) {
		return nil
	}
	key := [2]uint32{group, topic}
	if s := r.subs[key]; s != nil {
		return s
	}
	s := subscription.New(r.config.Env, g, t, true)
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
func (r *restoration) lease(s *subscription.Subscription, p store.Place, l store.Lease, marks *store.Marks, now time.Time) {
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
		r.config.Owners.Own(l.Owner, heartbeat.Place{Group: group, Topic: s.Topic().ID()}, now) // the client has a minute to reconnect
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
