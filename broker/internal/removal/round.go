package removal

import (
	"context"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/classes"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A Round removes messages of one topic according to a plan.
type Round struct {
	*retention.Plan
	remover *Remover
	topic   *topic.Topic
	queues  []*topic.Queue // those of the plan
	bytes   int64          // of all bodies that were ever written to the topic, at the beginning
}

// Begin plans a round and moves the beginnings of the queues to where the plan ends. From then on
// no group starts before them. A purge plans to remove all messages. If the round fails after
// Begin, the next one removes the rest. The caller holds the token.
func (r *Remover) Begin(t *topic.Topic, now time.Time, purge bool) (*Round, error) {
	for {
		subs := t.Subscriptions()
		round, err := r.plan(t, subs, now, purge)
		if err != nil {
			return nil, err
		}
		if round.begin(subs) {
			return round, nil
		}
	}
}

// plan decides how far each queue is removed.
func (r *Remover) plan(t *topic.Topic, subs []topic.Subscription, now time.Time, purge bool) (*Round, error) {
	round := &Round{remover: r, topic: t, queues: t.Queues(), bytes: t.Written().Bytes}
	clock := r.Clock.At(now)
	p := retention.Plan{
		Policy: t.RetentionPolicy(), Topic: t.ID(), Now: clock.Ages(), Purge: purge, Distrusted: clock.Distrusted, Wall: now,
	}
	for _, q := range round.queues {
		plan := retention.QueuePlan{Queue: &q.Retention, Number: q.Number(), Begin: q.Low(), End: q.End(), HasGaps: q.Gaps().Messages > 0}
		if !purge {
			for _, sub := range subs { // messages behind a parked or blocked one stay
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
	round.Plan, err = retention.New(p, t.HeldBytes(), storedMessages{r.Store, t})
	return round, err
}

// storedMessages are the stored messages of a topic.
type storedMessages struct {
	*store.Store
	topic *topic.Topic
}

// BodiesBefore implements retention.Messages.
func (m storedMessages) BodiesBefore(queue uint16, offset int64) (int64, error) {
	return m.topic.BytesBefore(m.Store, m.topic.Queues()[queue], offset)
}

// consumedBefore returns the offset before which every group has consumed all messages of the
// queue, or all except a few among many.
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

// begin moves the beginnings of the queues according to the plan. It returns false if the topic has
// other subscriptions than at the time of the plan.
func (r *Round) begin(subs []topic.Subscription) bool {
	r.remover.Subscriptions.Lock() // a new group is in subs, or starts at the new beginning
	defer r.remover.Subscriptions.Unlock()
	if !slices.Equal(r.topic.Subscriptions(), subs) {
		return false
	}
	for i := range r.Queues {
		r.queues[i].SetLow(&r.Queues[i].To)
	}
	r.Begun()
	return true
}

// Run moves the groups over the messages that are removed, and then removes these from the store.
// It returns when the removal is on disk. ctx bounds the wait for redrives that are moving dead
// letters.
func (r *Round) Run(ctx context.Context) error {
	if !r.Changes() {
		return nil
	}
	subs := r.topic.Subscriptions()
	for _, sub := range subs {
		if lost := sub.SkipRemoved(r.Plan); lost.Messages > 0 && !r.Purge {
			r.remover.Logger.Warn("messages removed by retention before the group consumed them",
				"topic", r.topic.Name(), "group", sub.Consumed().Group().Name(), "messages", lost.Messages, "bytes", lost.Bytes)
		}
	}
	if r.AddsLeftovers() {
		// Only the progress of the groups refers to the leftovers, so the progress is on disk
		// first.
		if err := r.remover.Store.Groups.Barrier().Wait(); err != nil {
			return err
		}
	}
	if err := r.Complete(); err != nil {
		return err
	}
	return r.remove(ctx, subs)
}

// remove writes the removal.
func (r *Round) remove(ctx context.Context, subs []topic.Subscription) error {
	t := r.topic
	if t.HasGaps() {
		release, err := r.remover.Letters.Hold(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return context.Cause(ctx)
		default:
			return refusal.Closed()
		}
		defer release()
		for i, q := range r.queues {
			r.Queues[i].HasGaps = q.Gaps().Messages > 0
		}
		if err := r.FindGaps(); err != nil {
			return err
		}
	}
	counted, err := r.countedLetters()
	if err != nil {
		return err
	}
	deleted := false
	if err := r.remover.Store.Messages.Add(func(batch *store.Batch) {
		if deleted = t.Deleted(); deleted {
			return
		}
		for i, q := range r.queues {
			r.write(batch, q, &r.Queues[i], subs, counted != nil)
		}
		t.Classes().Remove(batch, counted)
	}, nil).Wait(); err != nil || deleted {
		return err
	}
	for i := range r.queues {
		r.count(&r.Queues[i])
	}
	return nil
}

// countedLetters returns the number of removed dead letters by class, and nil if the topic has
// none. It reads a small record of each of them, and no message.
func (r *Round) countedLetters() (classes.Removal, error) {
	if r.topic.Classes().Empty() {
		return nil, nil //nolint:nilnil // no letter is counted
	}
	counted := classes.Removal{}
	add := func(_ int64, class uint32) { counted[class]++ }
	for i, q := range r.queues {
		p := &r.Queues[i]
		ranges := []store.Range{}
		for _, o := range p.Finished() {
			ranges = append(ranges, store.Range{Topic: r.topic.ID(), Queue: q.Number(), From: o, To: o + 1})
		}
		if p.Moves() {
			ranges = append(ranges, p.Ranges(r.topic.ID())...)
		}
		for _, removed := range ranges {
			if err := r.remover.Store.ClassesOf(removed, add); err != nil {
				return nil, err
			}
		}
	}
	return counted, nil
}

// write writes the removal in a queue. letters means that the topic has counted dead letters.
func (r *Round) write(batch *store.Batch, q *topic.Queue, p *retention.QueuePlan, subs []topic.Subscription, letters bool) {
	deleteMarks := func(removed store.Range) {
		if letters {
			batch.DeleteClassesOf(removed)
		}
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

// count counts the removed messages of a queue.
func (r *Round) count(q *retention.QueuePlan) {
	t := r.topic
	c := r.Commit(q)
	t.CountRound(c)
	if c.From < c.To {
		r.remover.freed.Add(store.Range{Topic: t.ID(), Queue: q.Number, From: c.From, To: c.To}, c.Bytes)
	}
}
