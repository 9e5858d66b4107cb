package broker

import (
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
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
	topic  *topic.Topic
	queues []*topic.Queue // those of the plan
	bytes  int64          // of all bodies that the topic ever had, when it began
}

// removeDue removes what retention is past, and sets when the next round is due. The caller holds
// the task.
func (b *Broker) removeDue(t *topic.Topic, now time.Time) error {
	t.BeginRound(now)
	r, err := b.beginRound(t, now, false)
	if err == nil {
		err = r.run(b)
	}
	if err != nil {
		return err
	}
	t.Watch()
	if at, ok, err := r.Next(func(queue uint16) int64 { return r.queues[queue].End() }); err != nil {
		return err
	} else if ok {
		t.WakeRetention(at)
	}
	if !t.RoundIsSet() || t.Written().Bytes != r.bytes || r.Waits() {
		t.Added() // messages may have come meanwhile, or what is parked holds more than there should be
	}
	return nil
}

// beginRound plans a round up to where the queues' beginnings are to be, and moves them there: from
// then on no group begins before it. If the round fails after that, the next one removes what this
// one did not.
func (b *Broker) beginRound(t *topic.Topic, now time.Time, purge bool) (*round, error) {
	for {
		subs := t.Subscriptions()
		r, err := b.plan(t, subs, now, purge)
		if err != nil {
			return nil, err
		}
		if r.begin(b, subs) {
			return r, nil
		}
	}
}

// plan decides how far each queue is removed.
func (b *Broker) plan(t *topic.Topic, subs []topic.Subscription, now time.Time, purge bool) (*round, error) {
	r := &round{topic: t, queues: t.Queues(), bytes: t.Written().Bytes}
	p := retention.Plan{Policy: t.RetentionPolicy(), Topic: t.ID(), Now: now, Purge: purge}
	for _, q := range r.queues {
		plan := retention.QueuePlan{Queue: &q.Retention, Number: q.Number(), Begin: q.Low(), End: q.End(), HasGaps: q.Gaps().Messages > 0}
		if !purge {
			for _, sub := range subs { // nothing that waits behind a parked or blocked message is removed
				if first := max(plan.Begin.Offset, sub.FirstSpilled(q)); first < plan.End {
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
	r.Plan, err = retention.New(p, t.HeldBytes(), storedMessages{b.store, b, t})
	return r, err
}

// storedMessages are the stored messages of a topic.
type storedMessages struct {
	*store.Store
	broker *Broker
	topic  *topic.Topic
}

// BodiesBefore is that of retention.Messages.
func (m storedMessages) BodiesBefore(queue uint16, offset int64) (int64, error) {
	return m.broker.bytesBefore(m.topic, m.topic.Queues()[queue], offset)
}

// consumedBefore returns the offset before which every group is done with all
// messages of the queue, or all but a few among many.
func consumedBefore(subs []topic.Subscription, q *retention.QueuePlan) int64 {
	undone, next := q.End, q.End
	for _, sub := range subs {
		first, to, ok := sub.Unconsumed(q.Number, q.Begin.Offset, q.End)
		if !ok {
			return q.Begin.Offset
		}
		undone, next = min(undone, first), min(next, to)
	}
	if len(subs) == 0 {
		return q.Begin.Offset
	}
	return retention.ConsumedBefore(q.Begin.Offset, undone, next)
}

// begin has the queues begin where the plan says, and reports whether it
// could: the topic's subscriptions are the same as when it was planned.
func (r *round) begin(b *Broker, subs []topic.Subscription) bool {
	b.mu.Lock() // a group that comes now is among subs, or begins at the new beginning
	defer b.mu.Unlock()
	if !slices.Equal(r.topic.Subscriptions(), subs) {
		return false
	}
	for i := range r.Queues {
		r.queues[i].SetLow(&r.Queues[i].To)
	}
	r.Begun()
	return true
}

// run takes from the groups the messages that are removed, and then removes these.
func (r *round) run(b *Broker) error {
	if !r.Changes() {
		return nil
	}
	subs := r.topic.Subscriptions()
	for _, sub := range subs {
		if lost := sub.SkipRemoved(r.Plan); lost.Messages > 0 && !r.Purge {
			b.logger.Warn("messages were removed before a consumer group consumed them: retention is past them",
				"topic", r.topic.Name(), "group", sub.Consumed().Group().Name(), "messages", lost.Messages, "bytes", lost.Bytes)
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
func (r *round) remove(b *Broker, subs []topic.Subscription) error {
	t := r.topic
	if t.HasGaps() {
		release, err := b.letters.Hold(b.life)
		if err != nil {
			return fail.Closed()
		}
		defer release()
		for i, q := range r.queues {
			r.Queues[i].HasGaps = q.Gaps().Messages > 0
		}
		if err := r.FindGaps(); err != nil {
			return err
		}
	}
	deleted := false
	if err := b.store.Messages.Add(func(batch *store.Batch) {
		if deleted = t.Deleted(); deleted {
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

func (r *round) write(batch *store.Batch, q *topic.Queue, p *retention.QueuePlan, subs []topic.Subscription) {
	deleteMarks := func(removed store.Range) {
		for _, sub := range subs {
			if sub.Marked() {
				batch.DeleteDeadLetterMarks(sub.Consumed().Group().ID(), removed)
			}
		}
	}
	for _, o := range p.Finished() {
		batch.DeleteMessage(store.Place{Topic: r.topic.ID(), Queue: q.Number(), Offset: o})
		deleteMarks(store.Range{Topic: r.topic.ID(), Queue: q.Number(), From: o, To: o + 1})
	}
	if !p.Moves() {
		return
	}
	for _, removed := range p.Ranges(r.topic.ID()) {
		batch.DeleteMessages(removed)
		deleteMarks(removed)
	}
	batch.PutMark(r.topic.ID(), q.Number(), p.To)
	if p.Gaps != (store.Removed{}) {
		q.CloseGaps(p.Gaps)
		batch.PutRemoved(r.topic.ID(), q.Number(), q.Removed())
	}
}

// count notes what was removed.
func (r *round) count(b *Broker, q *retention.QueuePlan) {
	t := r.topic
	c := r.Commit(q)
	t.CountRound(c)
	if c.From < c.To {
		b.retention.freed.Add(store.Range{Topic: t.ID(), Queue: q.Number, From: c.From, To: c.To}, c.Bytes)
	}
}
