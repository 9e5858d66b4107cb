package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// DefaultRetention is how long a message is kept. The messages of dead-letter
// topics are kept for ever unless the topic says otherwise: nobody else has them any more.
const DefaultRetention = 72 * time.Hour

const (
	// readyGrace is how long a message that was delivered, and is ready again,
	// is kept for a consumer to come although its time is over.
	readyGrace = time.Hour

	// sweepPause is the least time between looks at a topic for messages that
	// are consumed, or too many.
	sweepPause = time.Second

	// maxTimePause is the most that passes between looks at a topic for
	// messages that are too old; for short retention times it is less.
	maxTimePause = time.Minute

	// stepOver is how many messages of a queue may be done behind one that is
	// not before it is left standing alone.
	stepOver = 1024

	// reclaimBytes is how much is removed before the store is told to give
	// the disk back. What is less the store gives back by and by.
	reclaimBytes = 32 << 20

	// reclaimTopics is how many deleted topics are remembered until then.
	reclaimTopics = 1024
)

// A Retention says when a topic's messages are removed, the oldest of each queue first. A consumer
// group that has not consumed one until then never will: it counts as overtaken
// (Subscription.Overtaken), and a warning is logged. But no message is removed
//
//   - while it is in flight or waits for a retry of any group, nor within an
//     hour (or Time, if that is less) after it became ready again;
//   - nor while its message group is parked or blocked, and then nothing in its queue from the
//     first message on that waits behind the failed one; what waited there, and the failed one
//     itself, stays, once that ends, until the group is done with it;
//   - within the topic's duplicate window: it is what tells that a message with the same ID is a
//     duplicate. Where more than 524 288 messages of a queue are behind it, it may be;
//   - before its delivery time.
//
// The zero value keeps messages for 72 hours. Groups that begin later begin
// with the oldest message that is left.
type Retention struct {
	// Time is how long a message is kept from when it was stored, consumed or not. It is removed at
	// that age or, so that a stream is not removed one by one, up to a minute (1/64 of Time, if
	// that is less) later. Negative: for ever. 0: 72 hours; for ever in topics of dead letters.
	Time Duration `json:"time,omitempty"`

	// Bytes bounds the bodies that the topic holds. What is above it is
	// removed within about a second, consumed or not. 0: no bound.
	Bytes int64 `json:"bytes,omitempty"`

	// Consumed removes messages that every group of the topic has
	// acknowledged, made dead letters or filtered out, within about a second. A
	// group counts from its first receive on. A topic without any group keeps everything.
	Consumed bool `json:"consumed,omitempty"`
}

func (r Retention) validate() error {
	errs := []error{atMost("retention.time", r.Time)}
	if r.Bytes < 0 {
		errs = append(errs, fmt.Errorf("retention.bytes is %d: it may not be negative; 0 is no bound", r.Bytes))
	}
	return errors.Join(errs...)
}

// keepFor returns how long the topic's messages are kept; math.MaxInt64 for ever.
func (t *topic) keepFor() time.Duration {
	d := time.Duration(t.config.Load().Retention.Time)
	switch {
	case d == 0 && !isDeadLetterTopic(t.name):
		return DefaultRetention
	case d <= 0:
		return math.MaxInt64
	}
	return d
}

// timePause returns how long to wait at least between looks for messages that are older than keep.
func timePause(keep time.Duration) time.Duration {
	return min(max(keep/64, time.Millisecond), maxTimePause)
}

// past returns t plus d, and false if that is beyond what time can say.
func past(t time.Time, d time.Duration) (time.Time, bool) {
	return t.Add(d), d != math.MaxInt64
}

// holds reports whether a lease keeps its message from being removed that
// retention is past.
func (l *lease) holds(keep time.Duration, now time.Time) bool {
	switch {
	case l.Keep || l.Blocked:
		return true
	case l.state() == consume.Held:
		return false
	case l.state() == StateReady:
		return l.Attempt > 0 && now.Before(l.Due.Add(min(readyGrace, keep)))
	}
	return true
}

// retention removes messages of all topics. Its task is due at the first moment at which there may
// be something to remove.
type retention struct {
	broker *Broker

	// Held by everything that removes messages.
	task *maintain.Task
	due  []*topic // those of the last look that are not swept yet

	reclaiming *maintain.Task // gives back the disk of what was removed

	mu       sync.Mutex
	freed    int64                 // guarded by mu: bytes removed since the store was told to reclaim
	unqueued store.Unqueued        // guarded by mu: what was in no queue yet among them
	ranges   map[rangeKey][2]int64 // guarded by mu: where, in topics that are there
	topics   map[uint32]struct{}   // guarded by mu: those that were deleted, and had messages
}

// rangeKey is a topic's and a queue's number.
type rangeKey struct {
	topic uint32
	queue uint16
}

func newRetention(b *Broker) *retention {
	r := &retention{broker: b, ranges: map[rangeKey][2]int64{}, topics: map[uint32]struct{}{}}
	r.task = b.maintenance.Add(maintain.TaskConfig{
		Step: r.sweepNext, Failed: "messages could not be removed", Pause: time.Second, MaxPause: time.Minute,
	})
	r.reclaiming = b.maintenance.Add(maintain.TaskConfig{
		Step: r.reclaim, Failed: "the disk of removed messages is not given back yet", Pause: time.Minute, MaxPause: time.Minute,
	})
	return r
}

// arm has somebody look at the topic then, or earlier.
func (r *retention) arm(t *topic, at time.Time) {
	want := at.UnixNano()
	for {
		before := t.sweepAt.Load()
		if before != 0 && before <= want {
			return
		}
		if t.sweepAt.CompareAndSwap(before, want) {
			break
		}
	}
	r.task.Wake(at.Round(0)) // stored times are of the wall clock
}

// stored is told of new messages of a topic that nothing is due for, or that
// holds more than it should.
func (t *topic) stored() {
	c := t.config.Load()
	over := c.Retention.Bytes > 0 && t.heldBytes() > c.Retention.Bytes
	if t.sweepAt.Load() != 0 && !over {
		return
	}
	now := time.Now()
	if at, ok := past(now, t.keepFor()); ok {
		t.retention.arm(t, at)
	} else {
		t.sweepAt.CompareAndSwap(0, math.MaxInt64) // nothing is ever due
	}
	if over {
		t.retention.arm(t, t.soon(now))
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

// soon returns now, or a little later if the topic was looked at just before.
func (t *topic) soon(now time.Time) time.Time {
	if at := time.Unix(0, t.sweptAt.Load()).Add(sweepPause); at.After(now) {
		return at
	}
	return now
}

// sweepNext sweeps one topic that is due, and looks for those that are if there is none left.
func (r *retention) sweepNext(ctx context.Context, now time.Time) (next time.Time, err error) {
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
	t.sweepAt.Store(0)
	if err := r.broker.sweep(t, now); err != nil && ctx.Err() == nil && !t.deleted.Load() {
		r.arm(t, now.Add(time.Minute))
		return now, fmt.Errorf("topic %q, tried again in a minute: %w", t.name, err)
	}
	return now, nil
}

// look returns the topics that are due, and when the first of the others is.
func (r *retention) look(now time.Time) (due []*topic, next time.Time) {
	for _, t := range r.broker.topicsByID() {
		switch at := time.Unix(0, t.sweepAt.Load()); {
		case at.UnixNano() == 0 || at.UnixNano() == math.MaxInt64:
		case !at.After(now):
			due = append(due, t)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return due, next
}

// note remembers what was removed, for reclaim. to is above from.
func (r *retention) note(topic uint32, queue uint16, from, to, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.freed += bytes
	r.join(rangeKey{topic, queue}, [2]int64{from, to})
}

// join adds a range to ranges. mu is held.
func (r *retention) join(k rangeKey, at [2]int64) {
	if was, ok := r.ranges[k]; ok {
		at = [2]int64{min(at[0], was[0]), max(at[1], was[1])}
	}
	r.ranges[k] = at
}

// noteTopic is note for all queues of a topic, which is deleted.
func (r *retention) noteTopic(t *topic) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range *t.queues.Load() {
		delete(r.ranges, rangeKey{t.id, q.number})
		if q.nextOffset > 0 {
			r.freed += q.nextBytes - q.low.Load().Bytes
			r.topics[t.id] = struct{}{}
		}
	}
}

// noteUnqueued is note for messages that were in no queue yet.
func (r *retention) noteUnqueued(kind store.Unqueued, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.freed += bytes
	r.unqueued |= kind
}

// reclaimSoon has disk given back if much was removed.
func (r *retention) reclaimSoon() {
	r.mu.Lock()
	enough := r.enough()
	r.mu.Unlock()
	if enough {
		r.reclaiming.Wake(time.Now())
	}
}

// enough reports whether so much was removed that the disk is to be given back. mu is held.
func (r *retention) enough() bool { return r.freed >= reclaimBytes || len(r.topics) >= reclaimTopics }

// reclaim has the store give back disk if much was removed.
func (r *retention) reclaim(ctx context.Context, now time.Time) (next time.Time, err error) {
	r.mu.Lock()
	if !r.enough() {
		r.mu.Unlock()
		return next, nil
	}
	var ranges []store.Range
	for k, at := range r.ranges {
		ranges = append(ranges, store.Range{Topic: k.topic, Queue: k.queue, From: at[0], To: at[1]})
	}
	freed, unqueued, removed, topics := r.freed, r.unqueued, r.ranges, r.topics
	r.freed, r.ranges, r.topics, r.unqueued = 0, map[rangeKey][2]int64{}, map[uint32]struct{}{}, 0
	r.mu.Unlock()
	err = r.broker.store.Reclaim(ctx, ranges, slices.Collect(maps.Keys(topics)), unqueued)
	if err == nil {
		return now, nil // for what was removed meanwhile
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.topics, topics)
	r.freed += freed
	r.unqueued |= unqueued
	for k, at := range removed {
		r.join(k, at)
	}
	return time.Time{}, err
}
