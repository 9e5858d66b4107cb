package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A Position is where in a topic a group is to go on consuming. Exactly one
// field is set.
type Position struct {
	Earliest bool // with the oldest message that is there
	Latest   bool // with the next message that is stored

	// Time: with the first message of each queue that was stored at that time
	// or later. The messages of a queue are in the order of these times as long
	// as the broker's clock does not go back.
	Time time.Time

	// Offsets, by queue number: with that offset. Other queues stay as they
	// are. A queue or an offset that is not there, from the oldest message's to
	// the one after the last, is an error.
	Offsets map[int]int64
}

// A QueueRewind is what Broker.Rewind did in one queue.
type QueueRewind struct {
	Queue int   `json:"queue"`
	From  int64 `json:"from"` // the offset that would have been read next
	To    int64 `json:"to"`   // the offset that is read next

	// Dropped is how many messages that the group had not finished were taken
	// from it: in flight, waiting for a retry or for their turn, parked. Those
	// at To or behind it come anew.
	Dropped int64 `json:"dropped"`
}

// Rewind makes a group go on consuming a topic from another position, which may also lie ahead, and
// returns what that did, by queue, when it is written, all at once. What the group has not finished
// is dropped in those queues: older handles are refused (40013), attempts count from 1 again,
// message groups are not parked any more, and a message that became a dead letter can become
// another one. Dead letters stay where they are. The group's backlog follows at once, and with it
// throttling; its measured drain rate does not count what is skipped. It waits while messages are
// being removed, by retention or a purge; ctx ends that wait.
//
// A group that is not there is an error (40403), as are a topic (40402) and a
// position that is not one (40000); a group that never received from the
// topic begins at the position. The process may end at any moment after it; a
// power failure within a few ten milliseconds may take it back as a whole.
func (b *Broker) Rewind(ctx context.Context, group, topic string, to Position) ([]QueueRewind, error) {
	done, err := b.rewind(ctx, group, topic, to)
	return done, fail.WithOp("Rewind", err)
}

func (b *Broker) rewind(ctx context.Context, group, topic string, to Position) ([]QueueRewind, error) {
	if !b.begin() {
		return nil, fail.Closed()
	}
	defer b.end()
	if err := to.validate(); err != nil {
		return nil, err
	}
	if _, err := b.Group(group); err != nil {
		return nil, err
	}
	s, err := b.subscribe(ctx, group, topic)
	if err != nil {
		return nil, err
	}
	done, write, err := s.rewindTo(ctx, to)
	if err != nil {
		return nil, err
	}
	if err := write.Wait(); err != nil {
		return nil, fail.Store(err)
	}
	b.logger.Info("a group was rewound", "group", group, "topic", topic, "queues", len(done))
	return done, nil
}

// rewindTo finds a position's offsets and moves the cursors there while nothing
// is removed: what the group has again is not among what a round of it takes for consumed, and no
// target is before its queue's beginning.
func (s *subscription) rewindTo(ctx context.Context, to Position) ([]QueueRewind, *store.PendingWrite, error) {
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

func (p Position) validate() error {
	var set []string
	for name, isSet := range map[string]bool{"earliest": p.Earliest, "latest": p.Latest, "a time": !p.Time.IsZero(), "offsets": len(p.Offsets) > 0} {
		if isSet {
			set = append(set, name)
		}
	}
	slices.Sort(set)
	if len(set) != 1 {
		return fail.New(tidegate.CodeBadRequest, "position", "it has %d of earliest, latest, a time and offsets %q: give one", len(set), set)
	}
	return nil
}

// A target is where a cursor is to be.
type target struct {
	queue       *topic.Queue
	next, bytes int64
}

// targets finds a position's offsets.
func (s *subscription) targets(to Position) ([]target, error) {
	queues := s.Topic().Queues()
	var out []target
	var errs []error
	for _, n := range slices.Sorted(maps.Keys(to.Offsets)) {
		if n < 0 || n >= len(queues) {
			errs = append(errs, fmt.Errorf("there is no queue %d: topic %q has 0 to %d", n, s.Topic().Name(), len(queues)-1))
			continue
		}
		q, offset := queues[n], to.Offsets[n]
		if first, end := q.Low().Offset, q.End(); offset < first || offset > end {
			errs = append(errs, fmt.Errorf("queue %d has no offset %d: give %d to %d", n, offset, first, end))
		}
		out = append(out, target{queue: q, next: offset})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fail.New(tidegate.CodeBadRequest, "offsets", "%v", err)
	}
	if len(to.Offsets) == 0 {
		for _, q := range queues {
			out = append(out, target{queue: q, next: q.Low().Offset})
		}
	}
	for i := range out {
		t := &out[i]
		first, end := t.queue.Low().Offset, t.queue.End()
		var err error
		switch {
		case to.Latest:
			t.next = end
		case !to.Time.IsZero():
			t.next, err = s.broker.store.FirstThat(store.Range{Topic: s.Topic().ID(), Queue: t.queue.Number(), From: first, To: end},
				func(m store.Stored) bool { return !m.At.Before(to.Time) })
		}
		if err != nil {
			return nil, fail.Store(err)
		}
		if t.bytes, err = s.broker.bytesBefore(s.Topic(), t.queue, t.next); err != nil {
			return nil, fail.Store(err)
		}
	}
	return out, nil
}

// bytesBefore returns the bytes of a queue before an offset. Where nothing is
// stored any more, all that ever was is before it.
func (b *Broker) bytesBefore(t *topic.Topic, q *topic.Queue, offset int64) (int64, error) {
	st := b.store
	if low := q.Low(); low.Offset == offset {
		return low.Bytes, nil
	}
	bytes, ok, err := st.BytesBefore(t.ID(), q.Number(), offset)
	if ok || err != nil {
		return bytes, err
	}
	var all int64
	if err := st.Messages.Add(func(*store.Batch) { all = q.Next().Bytes }, nil).Wait(); err != nil {
		return 0, err
	}
	if bytes, ok, err = st.BytesBefore(t.ID(), q.Number(), offset); ok || err != nil { // on its way to the disk before
		return bytes, err
	}
	return all, nil
}

// rewind moves cursors and drops what is before and behind them, in one write. The
// caller has the token of retention.
func (s *subscription) rewind(targets []target, now time.Time) (done []QueueRewind, write *store.PendingWrite, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, nil, s.goneError()
	}
	s.addQueuesLocked() // targets may be in queues that the topic got just now
	to := make([]consume.Target, len(targets))
	for i, t := range targets {
		to[i] = consume.Target{Queue: int(t.queue.Number()), At: store.Mark{Offset: t.next, Bytes: t.bytes}}
	}
	for i, r := range s.progress.Rewind(to, now) {
		done = append(done, QueueRewind{Queue: to[i].Queue, From: r.From, To: to[i].At.Offset, Dropped: r.Dropped})
	}
	return done, s.apply(now).write, nil
}
