package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Watch stays behind when a receive has taken all messages that it could take. It reports once
// that another receive may find one. It takes no message, and the wake-ups of waiting receives do
// not count it.
//
// Liveness: the events that wake a waiting receive wake all watches. Each watch is woken once. A
// watch of a receive whose sources have changed is woken when the receive ends.
type Watch struct {
	ready func()

	mu   sync.Mutex      // acquired after Subscription.mu; no lock is acquired under it
	at   []*Subscription // where the last look of the receive has left it; it can be woken since
	left bool            // the last look of the receive left it at all sources, or it was woken
	over bool
}

// NewWatch returns a watch that calls ready once, unless it ends before. ready runs under locks of
// the engine: it must neither block nor call the engine.
func NewWatch(ready func()) *Watch { return &Watch{ready: ready} }

// Left reports, after the receive with this watch, whether the receive has left it: the receive
// found no further message in any of its sources. The watch may already have called ready.
func (w *Watch) Left() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left
}

// Over reports whether the watch has been woken or has ended. If it has been woken, ready may still
// be about to be called.
func (w *Watch) Over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over
}

// End ends the watch and removes it from the subscriptions. It is called after the receive with
// this watch has returned. The caller holds no lock of the engine.
func (w *Watch) End() {
	w.mu.Lock()
	at := w.at
	w.at, w.over = nil, true
	w.mu.Unlock()
	for _, s := range at {
		s.mu.Lock()
		s.removeWatch(w)
		s.mu.Unlock()
	}
}

// leave leaves the watch at a queue of the subscription, or at all with transport.AnyQueue. s.mu is
// held.
func (w *Watch) leave(s *Subscription, queue int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	if s.watches == nil {
		s.watches = map[*Watch]int{}
	}
	s.watches[w] = queue
	w.at = append(w.at, s)
}

// lift takes the watch away from the subscription, because its receive looks for messages again.
// s.mu is held.
func (w *Watch) lift(s *Subscription) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(s.watches, w)
	w.at = slices.DeleteFunc(w.at, func(at *Subscription) bool { return at == s })
}

// looked records whether a look of the receive at its sources has left the watch at all of them. A
// watch that was woken counts as left: its report is on the way.
func (w *Watch) looked(sources []subscriptionSource, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	missing := func(src subscriptionSource) bool { return !slices.Contains(w.at, src.sub) }
	w.left = err == nil && (w.over || !slices.ContainsFunc(sources, missing))
}

// wake calls ready, unless the watch is over.
func (w *Watch) wake() {
	w.mu.Lock()
	over := w.over
	w.over = true
	w.mu.Unlock()
	if !over {
		w.ready()
	}
}

// wakeWatches wakes the watches of a queue and forgets them. mu is held.
func (s *Subscription) wakeWatches(queue uint16) {
	for w, of := range s.watches {
		if of < 0 || of == int(queue) {
			w.wake()
			s.removeWatch(w)
		}
	}
}

// removeWatch forgets a watch, which counts as a look for messages until now. mu is held.
func (s *Subscription) removeWatch(w *Watch) {
	if _, ok := s.watches[w]; ok {
		delete(s.watches, w)
		s.lastTake = time.Now()
	}
}

// ParkedGroups returns the message groups that are parked or blocked, in no order, after a look
// ahead.
func (s *Subscription) ParkedGroups() []consume.ParkedGroup {
	s.LookAhead(new(int64(MaxLook)))
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress.ParkedGroups()
}

// RedriveParked sends parked message groups on, in order, the failed message first or, with
// deadLetter, without it: it leaves as a dead letter. messageGroup names the only one; empty means
// all. It returns the number of message groups and messages when this is on disk. With an error
// these are the ones that were sent on.
func (s *Subscription) RedriveParked(messageGroup string, deadLetter bool) (groups, messages int64, err error) {
	s.LookAhead(new(int64(MaxLook)))
	groups, messages, behind, rest := s.redriveUnsynced(messageGroup, deadLetter)
	if groups > 0 {
		s.Topic().WakeRetention(time.Now()) // it kept the messages of parked message groups
	}
	for i, derr := range s.writeDepartures(rest.leaving) {
		if derr != nil { // its message group stays parked
			err = derr
			groups--
			messages -= 1 + behind[i]
		}
	}
	if rest.write == nil {
		rest.write = s.env.Store.Groups.Barrier()
	}
	if werr := rest.write.Wait(); werr != nil {
		err = refusal.Store(werr)
	}
	return groups, messages, err
}

// redriveUnsynced also returns the number of messages behind each one that leaves.
func (s *Subscription) redriveUnsynced(messageGroup string, deadLetter bool) (groups, messages int64, behind []int64, out remaining) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return 0, 0, nil, remaining{}
	}
	now := time.Now()
	groups, messages, behind = s.progress.Redrive(messageGroup, deadLetter, now)
	return groups, messages, behind, s.apply(now)
}

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
	queue *Queue
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
