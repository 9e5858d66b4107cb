package subscription

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A Position is a position of a rewind. One field is set; none means the oldest message.
type Position struct {
	Latest  bool
	Time    time.Time     // of the first message
	Offsets map[int]int64 // by queue number; other queues stay as they are
}

// A Rewound is the result of a rewind in one queue.
type Rewound struct {
	Queue    int
	From, To int64 // offset of the next message before and after the rewind
	Dropped  int64 // unfinished messages that were taken from the group
}

// Rewind moves the group to a position. It waits until no messages are being removed; ctx ends that
// wait. Otherwise a round of retention could remove a message as consumed that the group is to
// consume again, or a target could be before the beginning of its queue. The write is not on disk
// yet.
func (s *Subscription) Rewind(ctx context.Context, to Position) ([]Rewound, *store.PendingWrite, error) {
	t := s.Topic()
	release, err := t.RetentionTask().Hold(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	targets, err := s.targets(to)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	done, write, err := s.rewind(targets, now)
	if err == nil {
		t.GroupConsumed(now) // the messages that were skipped or dropped may have kept others
	}
	return done, write, err
}

// PlanRewind returns the result that Rewind would have now, and changes nothing.
func (s *Subscription) PlanRewind(to Position) (planned []Rewound, err error) {
	targets, err := s.targets(to)
	if err != nil {
		return nil, err
	}
	s.Look(func(p *consume.Progress) {
		for _, t := range targets {
			r := Rewound{Queue: int(t.queue.Number()), From: t.queue.Low().Offset, To: t.at.Offset}
			if r.Queue < p.Queues() {
				r.From, r.Dropped = p.Cursor(r.Queue).Next, p.Unfinished(r.Queue)
			}
			planned = append(planned, r)
		}
	})
	return planned, nil
}

// A target is the new position of a cursor.
type target struct {
	queue *topic.Queue
	at    store.Mark
}

// targets returns the targets of a position.
func (s *Subscription) targets(to Position) ([]target, error) {
	queues := s.Topic().Queues()
	var out []target
	var errs []error
	for _, n := range slices.Sorted(maps.Keys(to.Offsets)) {
		if n < 0 || n >= len(queues) {
			errs = append(errs, fmt.Errorf("queue %d does not exist; topic %q has the queues 0 to %d", n, s.Topic().Name(), len(queues)-1))
			continue
		}
		q, offset := queues[n], to.Offsets[n]
		if first, end := q.Low().Offset, q.End(); offset < first || offset > end {
			errs = append(errs, fmt.Errorf("queue %d has no offset %d; give %d to %d", n, offset, first, end))
		}
		out = append(out, target{queue: q, at: store.Mark{Offset: offset}})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, refusal.New(tidegate.CodeBadRequest, "offsets", "%v", err)
	}
	if len(to.Offsets) == 0 {
		for _, q := range queues {
			out = append(out, target{queue: q, at: store.Mark{Offset: q.Low().Offset}})
		}
	}
	for i := range out {
		if err := s.find(&out[i], to); err != nil {
			return nil, refusal.Store(err)
		}
	}
	return out, nil
}

// find completes a target, whose offset is that of the position or the first one of its queue.
func (s *Subscription) find(t *target, to Position) (err error) {
	first, end := t.queue.Low().Offset, t.queue.End()
	switch {
	case to.Latest:
		t.at.Offset = end
	case !to.Time.IsZero():
		within := store.Range{Topic: s.Topic().ID(), Queue: t.queue.Number(), From: first, To: end}
		t.at.Offset, err = s.env.Store.FirstThat(within, func(m store.Stored) bool { return !m.At.Before(to.Time) })
	}
	if err != nil {
		return err
	}
	t.at.Bytes, err = s.Topic().BytesBefore(s.env.Store, t.queue, t.at.Offset)
	return err
}

// rewind moves cursors and drops all unfinished messages of their queues, in one write. The caller
// holds the task of retention.
func (s *Subscription) rewind(targets []target, now time.Time) (done []Rewound, write *store.PendingWrite, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return nil, nil, s.gone
	}
	s.addQueuesLocked() // the topic may have new queues, and targets in these
	to := make([]consume.Target, len(targets))
	for i, t := range targets {
		to[i] = consume.Target{Queue: int(t.queue.Number()), At: t.at}
	}
	for i, r := range s.progress.Rewind(to, now) {
		done = append(done, Rewound{Queue: to[i].Queue, From: r.From, To: to[i].At.Offset, Dropped: r.Dropped})
	}
	return done, s.apply(now).write, nil
}
