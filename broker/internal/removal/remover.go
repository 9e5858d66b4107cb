package removal

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/internal/wallclock"
)

// A Config has the parts of the broker that a Remover needs.
type Config struct {
	Store        *store.Store
	Loop         *maintain.Loop
	Logger       *slog.Logger
	Clock        *wallclock.Clock
	Delayed      *pending.Delayed
	Transactions *pending.Transactions

	Directory interface {
		// TopicsByID returns all topics by number.
		TopicsByID() map[uint32]*topic.Topic
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
	Config

	task *maintain.Task // its token is held while messages are removed; due when the first topic is
	due  []*topic.Topic // topics of the last look that had no round yet; used by the task

	freed   retention.Freed
	reclaim *maintain.Task
}

// New returns a Remover, and adds its tasks to the loop.
func New(c Config) *Remover {
	r := &Remover{Config: c}
	r.task = c.Loop.Add(maintain.TaskConfig{
		Step: r.removeNext, Failed: "expired messages not removed", Pause: time.Second, MaxPause: time.Minute,
	})
	r.reclaim = c.Loop.Add(maintain.TaskConfig{
		Step: r.reclaimAll, Failed: "disk space of removed messages not freed yet", Pause: time.Minute, MaxPause: time.Minute,
	})
	return r
}

// Task returns the task of retention. Its token excludes the removal of messages.
func (r *Remover) Task() *maintain.Task { return r.task }

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
func (r *Remover) look(now time.Time) (due []*topic.Topic, next time.Time) {
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
func (r *Remover) removeDue(ctx context.Context, t *topic.Topic, now time.Time) error {
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
func (r *Remover) TopicDeleted(t *topic.Topic) {
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
