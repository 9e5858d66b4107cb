package engine

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/wallclock"
)

// PurgeTopic executes the method of broker.Broker.
func (e *Engine) PurgeTopic(ctx context.Context, name string) (status.Backlog, error) {
	removed, err := e.purgeTopic(ctx, name)
	return removed, refusal.WithOp("PurgeTopic", err)
}

func (e *Engine) purgeTopic(ctx context.Context, name string) (removed status.Backlog, err error) {
	if !e.calls.Begin() {
		return removed, refusal.Closed()
	}
	defer e.calls.End()
	if err := e.catalog.LockAdmin(ctx); err != nil { // a topic that is purged is not deleted meanwhile
		return removed, err
	}
	defer e.catalog.UnlockAdmin()
	t, err := e.catalog.Topic(name)
	if err != nil {
		return removed, err
	}
	all, err := e.retention.Purge(ctx, t)
	return status.Backlog(all), err
}

// Rewind executes the method of broker.Broker.
func (e *Engine) Rewind(ctx context.Context, group, topic string, to status.Position) ([]status.QueueRewind, error) {
	done, err := e.rewind(ctx, group, topic, to)
	return done, refusal.WithOp("Rewind", err)
}

func (e *Engine) rewind(ctx context.Context, group, topic string, to status.Position) ([]status.QueueRewind, error) {
	if !e.calls.Begin() {
		return nil, refusal.Closed()
	}
	defer e.calls.End()
	if err := validate(to); err != nil {
		return nil, err
	}
	if _, err := e.catalog.Group(group); err != nil {
		return nil, err
	}
	s, err := e.catalog.Subscribe(ctx, group, topic)
	if err != nil {
		return nil, err
	}
	rewound, write, err := s.Rewind(ctx, Position{Latest: to.Latest, Time: to.Time, Offsets: to.Offsets})
	if err != nil {
		return nil, err
	}
	if err := write.Wait(); err != nil {
		return nil, refusal.Store(err)
	}
	done := make([]status.QueueRewind, len(rewound))
	for i, r := range rewound {
		done[i] = status.QueueRewind(r)
	}
	e.logger.Info("group rewound", "group", group, "topic", topic, "queues", len(done))
	return done, nil
}

func validate(p status.Position) error {
	var set []string
	for name, isSet := range map[string]bool{"earliest": p.Earliest, "latest": p.Latest, "a time": !p.Time.IsZero(), "offsets": len(p.Offsets) > 0} {
		if isSet {
			set = append(set, name)
		}
	}
	slices.Sort(set)
	if len(set) != 1 {
		return refusal.New(tidegate.CodeBadRequest, "position", "it has %d of earliest, latest, a time and offsets %q; give one", len(set), set)
	}
	return nil
}

// A RemovalConfig has the parts of the broker that a Remover needs.
type RemovalConfig struct {
	Store        *store.Store
	Loop         *maintenance
	Logger       *slog.Logger
	Clock        *wallclock.Clock
	Delayed      *delayed
	Transactions *transactions

	Directory interface {
		// TopicsByID returns all topics by number.
		TopicsByID() map[uint32]*Topic
	}

	// Subscriptions is held while the subscriptions of a topic change.
	Subscriptions sync.Locker

	Letters interface {
		// Hold waits until no dead letter is moved or removed, and prevents that until release. An
		// error means that ctx has ended or that the broker closes.
		Hold(ctx context.Context) (release func(), err error)
	}
}

// A Remover removes messages of all topics, and returns their disk space. Several goroutines can
// call its methods at the same time, except those whose comment names the token.
type Remover struct {
	RemovalConfig

	task *Task    // its token is held while messages are removed; due when the first topic is
	due  []*Topic // topics of the last look that had no round yet; used by the task

	freed   retention.Freed
	reclaim *Task
}

// NewRemoval returns a Remover, and adds its tasks to the loop.
func NewRemoval(c RemovalConfig) *Remover {
	r := &Remover{RemovalConfig: c}
	r.task = c.Loop.Add(taskConfig{
		Step: r.removeNext, Failed: "expired messages not removed", Pause: time.Second, MaxPause: time.Minute,
	})
	r.reclaim = c.Loop.Add(taskConfig{
		Step: r.reclaimAll, Failed: "disk space of removed messages not freed yet", Pause: time.Minute, MaxPause: time.Minute,
	})
	return r
}

// Task returns the task of retention. Its token excludes the removal of messages.
func (r *Remover) Task() *Task { return r.task }

// Freed returns the removed messages whose disk space was not returned yet.
func (r *Remover) Freed() *retention.Freed { return &r.freed }

// removeNext runs the round of one topic that is due. If there is none left, it looks for topics
// that are due.
func (r *Remover) removeNext(ctx context.Context, now time.Time) (next time.Time, err error) {
	if len(r.due) == 0 {
		if r.due, next = r.look(now); len(r.due) == 0 {
			return next, nil
		}
	}
	t := r.due[0]
	r.due = r.due[1:]
	defer r.ReclaimSoon()
	if t.Deleted() {
		return now, nil
	}
	if err := r.removeDue(ctx, t, now); err != nil && ctx.Err() == nil && !t.Deleted() {
		t.WakeRetention(now.Add(time.Minute))
		return now, fmt.Errorf("topic %q (retry in a minute): %w", t.Name(), err)
	}
	return now, nil
}

// look returns the topics that are due, and the time when the first of the others is.
func (r *Remover) look(now time.Time) (due []*Topic, next time.Time) {
	for _, t := range r.Directory.TopicsByID() {
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

// removeDue runs a round of retention, and sets the time of the next one. The caller holds the
// token.
func (r *Remover) removeDue(ctx context.Context, t *Topic, now time.Time) error {
	r.Clock.Look() // Begin has its verdict
	t.BeginRound(now)
	round, err := r.Begin(t, now, false)
	if err == nil {
		err = round.Run(ctx)
	}
	if err != nil {
		return err
	}
	t.Watch()
	if kept := t.KeepExpired(round.Kept); round.Kept > 0 && kept == 0 {
		r.Logger.Warn("messages are older than the retention, but are kept until the time of the wall clock is accepted",
			"topic", t.Name(), "messages", round.Kept, "until", r.Clock.At(now).Until)
	}
	if round.Distrusted {
		t.WakeRetention(r.Clock.At(now).Until)
	} else if at, ok, err := round.Next(func(queue uint16) int64 { return round.queues[queue].End() }); err != nil {
		return err
	} else if ok {
		t.WakeRetention(at)
	}
	if !t.RoundIsSet() || t.Written().Bytes != round.bytes || round.Waits() {
		t.Added() // messages may have been added, or parked message groups keep more than Retention.Bytes
	}
	return nil
}

// TopicDeleted notes that a topic was deleted, and returns its disk space with the next
// ReclaimSoon.
func (r *Remover) TopicDeleted(t *Topic) {
	for _, q := range t.Queues() {
		r.freed.AddDeleted(t.ID(), q.Number(), q.Next().Offset > 0, q.Next().Bytes-q.Low().Bytes)
	}
	if t.Counters().Half.Load() > 0 {
		r.freed.AddPending(store.HalfMessages, 0) // their bytes are not known
	}
}

// ReclaimSoon starts the return of disk space if much was removed.
func (r *Remover) ReclaimSoon() {
	if r.freed.Enough() {
		r.reclaim.Wake(time.Now())
	}
}

// reclaimAll returns disk space through the store if much was removed.
func (r *Remover) reclaimAll(ctx context.Context, now time.Time) (next time.Time, err error) {
	if !r.freed.Enough() {
		return next, nil
	}
	if err := r.freed.Reclaim(ctx, r.Store.Reclaim); err != nil {
		return next, err
	}
	return now, nil // more may have been removed meanwhile
}

// A Round removes messages of one topic according to a plan.
type Round struct {
	*retention.Plan
	remover *Remover
	topic   *Topic
	queues  []*Queue // those of the plan
	lost    int64    // messages that a group had not consumed
	bytes   int64    // of all bodies that were ever written to the topic, at the beginning
}

// Begin plans a round and moves the beginnings of the queues to where the plan ends. From then on
// no group starts before them. A purge plans to remove all messages. If the round fails after
// Begin, the next one removes the rest. The caller holds the token.
func (r *Remover) Begin(t *Topic, now time.Time, purge bool) (*Round, error) {
	return r.beginIn(t, t.Queues(), now, purge)
}

// beginIn is Begin for some queues. A round that is no purge has all.
func (r *Remover) beginIn(t *Topic, queues []*Queue, now time.Time, purge bool) (*Round, error) {
	for {
		subs := t.Subscriptions()
		round, err := r.plan(t, queues, subs, now, purge)
		if err != nil {
			return nil, err
		}
		if round.begin(subs) {
			return round, nil
		}
	}
}

// plan decides how far each queue is removed.
func (r *Remover) plan(t *Topic, queues []*Queue, subs []TopicSubscription, now time.Time, purge bool) (*Round, error) {
	round := &Round{remover: r, topic: t, queues: queues, bytes: t.Written().Bytes}
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
	topic *Topic
}

// BodiesBefore implements retention.Messages.
func (m storedMessages) BodiesBefore(queue uint16, offset int64) (int64, error) {
	return m.topic.BytesBefore(m.Store, m.topic.Queues()[queue], offset)
}

// consumedBefore returns the offset before which every group has consumed all messages of the
// queue, or all except a few among many.
func consumedBefore(subs []TopicSubscription, q *retention.QueuePlan) int64 {
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
func (r *Round) begin(subs []TopicSubscription) bool {
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
		lost := sub.SkipRemoved(r.Plan)
		r.lost += lost.Messages
		if lost.Messages > 0 && !r.Purge {
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
func (r *Round) remove(ctx context.Context, subs []TopicSubscription) error {
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
func (r *Round) countedLetters() (deadletter.ClassRemoval, error) {
	if r.topic.Classes().Empty() {
		return nil, nil //nolint:nilnil // no letter is counted
	}
	counted := deadletter.ClassRemoval{}
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
func (r *Round) write(batch *store.Batch, q *Queue, p *retention.QueuePlan, subs []TopicSubscription, letters bool) {
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

// Purge removes all messages of a topic that were stored before the call, including delayed and
// half messages. It returns their number and bytes once the removal is on disk. The caller prevents
// that the topic is deleted meanwhile. The end of ctx ends the wait; a part of the messages may be
// removed then.
func (r *Remover) Purge(ctx context.Context, t *Topic) (removed Contents, err error) {
	release, err := r.task.Hold(ctx)
	if err != nil {
		return removed, err
	}
	defer release()
	// The IDs are forgotten first, so that the IDs of later messages, which stay, are remembered.
	var last, lastDelayed uint64
	if err := r.Store.Messages.Add(func(w *store.Batch) {
		last, lastDelayed = r.Transactions.Last(), r.Delayed.Last()
		t.IDs().ForgetAll(w)
	}, nil).WaitContext(ctx); err != nil {
		return removed, refusal.StoreUnless(ctx, err)
	}
	var waiting Contents
	// The half messages are removed first, so a message that is committed meanwhile is in a queue.
	if err := r.Transactions.Remove(ctx, t, last, r.counting(store.HalfMessages, &waiting)); err != nil {
		return removed, refusal.StoreUnless(ctx, err)
	}
	if err := r.RemoveDelayed(ctx, t, lastDelayed, &waiting); err != nil {
		return removed, err
	}
	// All earlier writes are on disk, and visible, from then on.
	if err := r.Store.Messages.Barrier().WaitContext(ctx); err != nil {
		return removed, refusal.StoreUnless(ctx, err)
	}
	before := removalStored(t)
	round, err := r.Begin(t, time.Now(), true)
	if err != nil {
		return removed, refusal.Store(err)
	}
	if err := round.Run(ctx); err != nil {
		t.WakeRetention(time.Now().Add(time.Minute)) // removes the rest
		return removed, refusal.StoreUnless(ctx, err)
	}
	t.Watch()
	after := removalStored(t)
	removed.Messages = before.Messages - after.Messages + waiting.Messages
	removed.Bytes = before.Bytes - after.Bytes + waiting.Bytes
	for i := range round.Queues {
		removed.Messages -= round.Queues[i].Gaps.Messages
		removed.Bytes -= round.Queues[i].Gaps.Bytes
	}
	t.CountRemoved(retention.Purged, waiting.Messages)
	r.Logger.Info("topic purged", "topic", t.Name(), "messages", removed.Messages, "bytes", removed.Bytes)
	r.ReclaimSoon()
	return removed, nil
}

// PurgeQueues removes the messages of some queues, to which nothing is sent meanwhile. It returns the
// number of messages that a group had not consumed, once the removal is on disk. Otherwise it is like
// Purge.
func (r *Remover) PurgeQueues(ctx context.Context, t *Topic, numbers []uint16) (lost int64, err error) {
	release, err := r.task.Hold(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	if err := r.Store.Messages.Barrier().WaitContext(ctx); err != nil {
		return 0, refusal.StoreUnless(ctx, err)
	}
	queues := make([]*Queue, len(numbers))
	for i, n := range numbers {
		queues[i] = t.Queues()[n]
	}
	round, err := r.beginIn(t, queues, time.Now(), true)
	if err != nil {
		return 0, refusal.Store(err)
	}
	if err := round.Run(ctx); err != nil {
		return round.lost, refusal.StoreUnless(ctx, err)
	}
	t.Watch()
	r.ReclaimSoon()
	return round.lost, nil
}

// removalStored returns the messages in the queues of a topic, minus all messages that were ever
// written to it. The difference of two results is the number of removed messages, even if messages
// are sent in between.
func removalStored(t *Topic) Contents {
	left, before := t.Leftovers(), t.Before()
	return Contents{Messages: left.Messages - before.Messages, Bytes: left.Bytes - before.Bytes}
}

// RemoveDelayed removes the delayed messages of a topic up to a number, and adds them to removed.
func (r *Remover) RemoveDelayed(ctx context.Context, t *Topic, last uint64, removed *Contents) error {
	return refusal.StoreUnless(ctx, r.Delayed.Remove(ctx, t, last, r.counting(store.DelayedMessages, removed)))
}

// counting returns a function that counts removed messages of a kind, for removed and for the disk
// space to return.
func (r *Remover) counting(kind store.PendingKind, removed *Contents) func(messages, bytes int64) {
	return func(messages, bytes int64) {
		removed.Messages += messages
		removed.Bytes += bytes
		r.freed.AddPending(kind, bytes)
	}
}
