package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// retentionTasks remove messages of all topics, and give back their disk.
type retentionTasks struct {
	broker *Broker

	// Held by everything that removes messages. Due when the first topic is.
	task *maintain.Task
	due  []*topic.Topic // those of the last look that had no round yet

	freed   retention.Freed
	reclaim *maintain.Task
}

func newRetentionTasks(b *Broker) *retentionTasks {
	r := &retentionTasks{broker: b}
	r.task = b.maintenance.Add(maintain.TaskConfig{
		Step: r.removeNext, Failed: "messages could not be removed", Pause: time.Second, MaxPause: time.Minute,
	})
	r.reclaim = b.maintenance.Add(maintain.TaskConfig{
		Step: r.reclaimAll, Failed: "the disk of removed messages is not given back yet", Pause: time.Minute, MaxPause: time.Minute,
	})
	return r
}

// removeNext runs the round of one topic that is due, and looks for those that are if none is left.
func (r *retentionTasks) removeNext(ctx context.Context, now time.Time) (next time.Time, err error) {
	if len(r.due) == 0 {
		if r.due, next = r.look(now); len(r.due) == 0 {
			return next, nil
		}
	}
	t := r.due[0]
	r.due = r.due[1:]
	defer r.reclaimSoon()
	if t.Deleted() {
		return now, nil
	}
	if err := r.broker.removeDue(t, now); err != nil && ctx.Err() == nil && !t.Deleted() {
		t.WakeRetention(now.Add(time.Minute))
		return now, fmt.Errorf("topic %q, tried again in a minute: %w", t.Name(), err)
	}
	return now, nil
}

// look returns the topics that are due, and when the first of the others is.
func (r *retentionTasks) look(now time.Time) (due []*topic.Topic, next time.Time) {
	for _, t := range r.broker.topicsByID() {
		switch at, ok := t.NextRound(); {
		case !ok:
		case !at.After(now):
			due = append(due, t)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return due, next
}

// addDeleted notes that a topic was deleted, so that its disk is given back.
func (r *retentionTasks) addDeleted(t *topic.Topic) {
	for _, q := range t.Queues() {
		r.freed.AddDeleted(t.ID(), q.Number(), q.Next().Offset > 0, q.Next().Bytes-q.Low().Bytes)
	}
	if t.Counters().Half.Load() > 0 {
		r.freed.AddPending(store.HalfMessages, 0) // their bytes are not known
	}
}

// reclaimSoon has disk given back if much was removed.
func (r *retentionTasks) reclaimSoon() {
	if r.freed.Enough() {
		r.reclaim.Wake(time.Now())
	}
}

// reclaimAll has the store give back disk if much was removed.
func (r *retentionTasks) reclaimAll(ctx context.Context, now time.Time) (next time.Time, err error) {
	if !r.freed.Enough() {
		return next, nil
	}
	if err := r.freed.Reclaim(ctx, r.broker.store.Reclaim); err != nil {
		return next, err
	}
	return now, nil // more may have been removed meanwhile
}
