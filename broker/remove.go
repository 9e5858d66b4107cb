package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A RemovalCause is why messages were removed.
type RemovalCause string

// The causes.
const (
	RemovedTime     RemovalCause = "time"     // Retention.Time
	RemovedBytes    RemovalCause = "bytes"    // Retention.Bytes
	RemovedConsumed RemovalCause = "consumed" // Retention.Consumed, or the last group that held one back is done
	RemovedPurge    RemovalCause = "purge"    // Broker.PurgeTopic
)

var removalCauses = [retention.Causes]RemovalCause{
	retention.TooOld: RemovedTime, retention.TooMany: RemovedBytes, retention.Consumed: RemovedConsumed, retention.Purged: RemovedPurge,
}

// A round removes messages of one topic as planned.
type round struct {
	*retention.Plan
	topic  *topic
	queues []*queue // those of the plan
	bytes  int64    // of all bodies that the topic ever had, when it began
}

// removeDue removes what retention is past, and sets when the next round is due. The caller holds
// the task.
func (b *Broker) removeDue(t *topic, now time.Time) error {
	t.retentionRan.Store(now.UnixNano())
	r, err := b.beginRound(t, now, false)
	if err == nil {
		err = r.run(b)
	}
	if err != nil {
		return err
	}
	t.watch()
	if at, ok, err := r.Next(func(queue uint16) int64 { return r.queues[queue].end.Load() }); err != nil {
		return err
	} else if ok {
		b.retention.wake(t, at)
	}
	if t.retentionDue.Load() == 0 || t.bytes.Load() != r.bytes || r.Waits() {
		t.stored() // messages may have come meanwhile, or what is parked holds more than there should be
	}
	return nil
}

// watch notes whether a round is due when a group is done with messages of the topic.
func (t *topic) watch() {
	t.watched.Store(t.config.Load().Retention.Consumed || t.leftovers.Load() > 0)
}

// beginRound plans a round up to where the queues' beginnings are to be, and moves them there: from
// then on no group begins before it. If the round fails after that, the next one removes what this
// one did not.
func (b *Broker) beginRound(t *topic, now time.Time, purge bool) (*round, error) {
	for {
		subs := t.subs.Load()
		r, err := b.plan(t, *subs, now, purge)
		if err != nil {
			return nil, err
		}
		if r.begin(b, subs) {
			return r, nil
		}
	}
}

// plan decides how far each queue is removed.
func (b *Broker) plan(t *topic, subs []*subscription, now time.Time, purge bool) (*round, error) {
	r := &round{topic: t, queues: *t.queues.Load(), bytes: t.bytes.Load()}
	p := retention.Plan{Policy: t.retentionPolicy(), Topic: t.id, Now: now, Purge: purge}
	for _, q := range r.queues {
		plan := retention.QueuePlan{Queue: &q.retention, Number: q.number, Begin: *q.low.Load(), End: q.end.Load(), HasGaps: q.removedMessages.Load() > 0}
		if !purge {
			for _, sub := range subs { // nothing that waits behind a parked or blocked message is removed
				if first := max(plan.Begin.Offset, sub.firstSpilled(q)); first < plan.End {
					plan.End, plan.Waiting = first, true
				}
			}
		}
		if p.Consumed && !purge {
			plan.Done = consumedBefore(subs, &plan)
		}
		p.Queues = append(p.Queues, plan)
	}
	var err error
	r.Plan, err = retention.New(p, t.heldBytes(), storedMessages{b.store, b, t})
	return r, err
}

// retentionPolicy returns what the settings of the topic say now.
func (t *topic) retentionPolicy() retention.Policy {
	c := t.config.Load()
	return retention.Policy{
		MaxAge: t.maxAge(), MaxBytes: c.Retention.Bytes, Consumed: c.Retention.Consumed,
		Window: c.IDWindow(), WindowMessages: 2 * recent.Capacity,
	}
}

// storedMessages are the stored messages of a topic.
type storedMessages struct {
	*store.Store
	broker *Broker
	topic  *topic
}

// BodiesBefore is that of retention.Messages.
func (m storedMessages) BodiesBefore(queue uint16, offset int64) (int64, error) {
	return m.broker.bytesBefore(m.topic, (*m.topic.queues.Load())[queue], offset)
}

// consumedBefore returns the offset before which every group is done with all
// messages of the queue, or all but a few among many.
func consumedBefore(subs []*subscription, q *retention.QueuePlan) int64 {
	undone, next, known := q.End, q.End, len(subs) > 0
	for _, sub := range subs {
		sub.locked(func() {
			queue := int(q.Number)
			if queue >= sub.progress.Queues() {
				known = false
				return
			}
			next = min(next, sub.progress.Cursor(queue).Next)
			for o := range sub.progress.Leases(queue) {
				if o >= q.Begin.Offset {
					undone = min(undone, o)
				}
			}
		})
	}
	if !known {
		return q.Begin.Offset
	}
	return retention.ConsumedBefore(q.Begin.Offset, undone, next)
}

// begin has the queues begin where the plan says, and reports whether it
// could: the topic's subscriptions are the same as when it was planned.
func (r *round) begin(b *Broker, subs *[]*subscription) bool {
	b.mu.Lock() // a group that comes now is among subs, or begins at the new beginning
	defer b.mu.Unlock()
	if r.topic.subs.Load() != subs {
		return false
	}
	for i := range r.Queues {
		r.queues[i].low.Store(&r.Queues[i].To)
	}
	r.Begun()
	return true
}

// run takes from the groups the messages that are removed, and then removes these.
func (r *round) run(b *Broker) error {
	if !r.Changes() {
		return nil
	}
	subs := *r.topic.subs.Load()
	for _, sub := range subs {
		if lost := sub.skipRemoved(r); lost.Messages > 0 && !r.Purge {
			b.logger.Warn("messages were removed before a consumer group consumed them: retention is past them",
				"topic", r.topic.name, "group", sub.group.name, "messages", lost.Messages, "bytes", lost.Bytes)
		}
	}
	if r.KeepsMore() {
		// Only the progress of the groups has the leftovers, so it is on disk first.
		if err := b.store.Groups.Add(func(*store.Batch) {}, nil).Wait(); err != nil {
			return err
		}
	}
	if err := r.Complete(); err != nil {
		return err
	}
	return r.remove(b, subs)
}

// remove writes the removal.
func (r *round) remove(b *Broker, subs []*subscription) error {
	t := r.topic
	if t.hasGaps.Load() {
		select {
		case b.redriving <- struct{}{}:
			defer func() { <-b.redriving }()
		case <-b.life.Done():
			return fail.Closed()
		}
		for i, q := range r.queues {
			r.Queues[i].HasGaps = q.removedMessages.Load() > 0
		}
		if err := r.FindGaps(); err != nil {
			return err
		}
	}
	deleted := false
	if err := b.store.Messages.Add(func(batch *store.Batch) {
		if deleted = t.deleted.Load(); deleted {
			return
		}
		for i, q := range r.queues {
			r.write(batch, q, &r.Queues[i], subs)
		}
	}, nil).Wait(); err != nil || deleted {
		return err
	}
	for i := range r.queues {
		r.count(b, &r.Queues[i])
	}
	return nil
}

func (r *round) write(batch *store.Batch, q *queue, p *retention.QueuePlan, subs []*subscription) {
	deleteMarks := func(removed store.Range) {
		for _, sub := range subs {
			if sub.marked.Load() {
				batch.DeleteDeadLetterMarks(sub.group.id, removed)
			}
		}
	}
	for _, o := range p.Finished() {
		batch.DeleteMessage(store.Place{Topic: r.topic.id, Queue: q.number, Offset: o})
		deleteMarks(store.Range{Topic: r.topic.id, Queue: q.number, From: o, To: o + 1})
	}
	if !p.Moves() {
		return
	}
	for _, removed := range p.Ranges(r.topic.id) {
		batch.DeleteMessages(removed)
		deleteMarks(removed)
	}
	batch.PutMark(r.topic.id, q.number, p.To)
	if p.Gaps != (store.Removed{}) {
		q.removedMessages.Add(-p.Gaps.Messages)
		q.removedBytes.Add(-p.Gaps.Bytes)
		batch.PutRemoved(r.topic.id, q.number, q.removed())
	}
}

// count notes what was removed.
func (r *round) count(b *Broker, q *retention.QueuePlan) {
	t := r.topic
	c := r.Commit(q)
	t.leftovers.Add(c.Leftovers)
	t.leftoverBytes.Add(c.LeftoversBytes)
	t.lowMessages.Add(c.Advanced)
	t.lowBytes.Add(c.AdvancedBytes)
	for i, n := range c.Removed {
		t.removed[i].Add(n)
	}
	if c.From < c.To {
		b.retention.freed.Add(store.Range{Topic: t.id, Queue: q.Number, From: c.From, To: c.To}, c.Bytes)
	}
}
