package broker

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// maxAge returns how long the topic's messages are kept; retention.Forever for ever.
func (t *topic) maxAge() time.Duration {
	d := time.Duration(t.config.Load().Retention.Time)
	switch {
	case d == 0 && !isDeadLetterTopic(t.name):
		return DefaultRetention
	case d <= 0:
		return retention.Forever
	}
	return d
}

// retentionTasks remove messages of all topics, and give back their disk.
type retentionTasks struct {
	broker *Broker

	// Held by everything that removes messages. Due when the first topic is.
	task *maintain.Task
	due  []*topic // those of the last look that had no round yet

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

// wake has the topic's next round run then, or earlier.
func (r *retentionTasks) wake(t *topic, at time.Time) {
	want := at.UnixNano()
	for {
		before := t.retentionDue.Load()
		if before != 0 && before <= want {
			return
		}
		if t.retentionDue.CompareAndSwap(before, want) {
			break
		}
	}
	r.task.Wake(at.Round(0)) // stored times are of the wall clock
}

// stored is called with new messages of a topic. It sets when the next round is due if none is, or
// the topic holds more than it should.
func (t *topic) stored() {
	c := t.config.Load()
	over := c.Retention.Bytes > 0 && t.heldBytes() > c.Retention.Bytes
	if t.retentionDue.Load() != 0 && !over {
		return
	}
	now := time.Now()
	if at, ok := t.retentionPolicy().Expires(now); ok {
		t.retention.wake(t, at)
	} else {
		t.retentionDue.CompareAndSwap(0, math.MaxInt64) // nothing is ever due
	}
	if over {
		t.retention.wake(t, t.soon(now))
	}
}

// heldBytes returns the bytes of the bodies that the topic holds from its queues' beginnings on.
func (t *topic) heldBytes() int64 {
	n := t.bytes.Load() - t.lowBytes.Load()
	for _, q := range *t.queues.Load() {
		n -= q.removedBytes.Load()
	}
	return n
}

// soon returns now, or a little later if the last round was just before.
func (t *topic) soon(now time.Time) time.Time {
	if at := time.Unix(0, t.retentionRan.Load()).Add(retention.Pause); at.After(now) {
		return at
	}
	return now
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
	if t.deleted.Load() {
		return now, nil
	}
	t.retentionDue.Store(0)
	if err := r.broker.removeDue(t, now); err != nil && ctx.Err() == nil && !t.deleted.Load() {
		r.wake(t, now.Add(time.Minute))
		return now, fmt.Errorf("topic %q, tried again in a minute: %w", t.name, err)
	}
	return now, nil
}

// look returns the topics that are due, and when the first of the others is.
func (r *retentionTasks) look(now time.Time) (due []*topic, next time.Time) {
	for _, t := range r.broker.topicsByID() {
		switch at := time.Unix(0, t.retentionDue.Load()); {
		case at.UnixNano() == 0 || at.UnixNano() == math.MaxInt64:
		case !at.After(now):
			due = append(due, t)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return due, next
}

// addDeleted notes that a topic was deleted, so that its disk is given back.
func (r *retentionTasks) addDeleted(t *topic) {
	for _, q := range *t.queues.Load() {
		r.freed.AddDeleted(t.id, q.number, q.nextOffset > 0, q.nextBytes-q.low.Load().Bytes)
	}
	if t.pending.Half.Load() > 0 {
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
