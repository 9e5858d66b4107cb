package broker

import (
	"strconv"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/status"
)

// queuesFrom returns the queues of a page, and the position of the next one.
func queuesFrom(t *engine.Topic, after string, limit int) (page []*engine.Queue, next string, err error) {
	if limit, err = pageLimit(limit); err != nil {
		return nil, "", err
	}
	first := 0
	if after != "" {
		last, perr := strconv.ParseUint(after, 10, 16)
		if perr != nil {
			return nil, "", refusal.New(tidegate.CodeBadRequest, "after", "%.40q is not the position of a page; give the value next of the previous page, or nothing for the first page", after)
		}
		first = int(last) + 1
	}
	all := t.Queues()
	page = all[min(first, len(all)):]
	if len(page) > limit {
		page, next = page[:limit], strconv.Itoa(int(page[limit-1].Number()))
	}
	return page, next, nil
}

// QueuesPage returns a page of the queues of a topic. It reads two messages of each queue. The
// error is 40402 if there is no such topic, and 40000 if after or limit is invalid.
func (b served) QueuesPage(name, after string, limit int) (status.QueuePage, error) {
	if !b.calls.Begin() {
		return status.QueuePage{}, refusal.Closed()
	}
	defer b.calls.End()
	t, err := b.catalog.Topic(name)
	if err != nil {
		return status.QueuePage{}, err
	}
	page, next, err := queuesFrom(t, after, limit)
	out := status.QueuePage{Queues: make([]status.Queue, len(page)), Next: next}
	for i, q := range page {
		s := status.Queue{Queue: int(q.Number()), Begin: q.Low().Offset, End: q.End()}
		s.Messages = s.End - s.Begin - q.Gaps().Messages
		stored := store.Range{Topic: t.ID(), Queue: q.Number(), From: s.Begin, To: s.End}
		if s.Oldest, err = storedAt(b.store.FirstIn(stored)); err != nil {
			return out, err
		}
		if s.Newest, err = storedAt(b.store.LastIn(stored)); err != nil {
			return out, err
		}
		out.Queues[i] = s
	}
	return out, err
}

func storedAt(m store.Stored, ok bool, err error) (time.Time, error) {
	if err != nil {
		return time.Time{}, refusal.Store(err)
	}
	if !ok {
		return time.Time{}, nil
	}
	return m.At, nil
}

// GroupQueues returns a page of the progress of a group in a topic. It reads a message of each
// queue. The errors are those of Leases and QueuesPage.
func (b served) GroupQueues(group, name, after string, limit int) (status.GroupQueuePage, error) {
	if !b.calls.Begin() {
		return status.GroupQueuePage{}, refusal.Closed()
	}
	defer b.calls.End()
	s, err := b.subscriptionOf(group, name)
	if err != nil {
		return status.GroupQueuePage{}, err
	}
	page, next, err := queuesFrom(s.Topic(), after, limit)
	out := status.GroupQueuePage{Queues: make([]status.GroupQueue, len(page)), Next: next}
	s.Look(func(p *consume.Progress) {
		for i, q := range page {
			g := &out.Queues[i]
			g.Queue, g.Begin, g.End = int(q.Number()), q.Low().Offset, q.End()
			g.Cursor = g.Begin
			if g.Queue < p.Queues() {
				g.Cursor, g.Unfinished = p.Cursor(g.Queue).Next, p.Unfinished(g.Queue)
			}
			g.Undelivered = max(g.End-g.Cursor, 0)
		}
	})
	for i := range out.Queues {
		g := &out.Queues[i]
		first := store.Range{Topic: s.Topic().ID(), Queue: uint16(g.Queue), From: g.Cursor, To: g.End}
		if g.Oldest, err = storedAt(b.store.FirstIn(first)); err != nil {
			return out, err
		}
	}
	return out, err
}

// PlanRewind returns the result that Rewind would have, and changes nothing. The errors are those
// of Rewind, and 40403 if the group has not received from the topic.
func (b served) PlanRewind(group, name string, to status.Position) ([]status.QueueRewind, error) {
	if !b.calls.Begin() {
		return nil, refusal.Closed()
	}
	defer b.calls.End()
	if err := validate(to); err != nil {
		return nil, err
	}
	s, err := b.subscriptionOf(group, name)
	if err != nil {
		return nil, err
	}
	planned, err := s.PlanRewind(engine.Position{Latest: to.Latest, Time: to.Time, Offsets: to.Offsets})
	if err != nil {
		return nil, err
	}
	out := make([]status.QueueRewind, len(planned))
	for i, r := range planned {
		out[i] = status.QueueRewind(r)
	}
	return out, nil
}

// CountPurge returns the messages that PurgeTopic would remove, and changes nothing. The bytes are
// without those of half messages. The error is 40402 if there is no such topic.
func (b served) CountPurge(name string) (status.Backlog, error) {
	t, err := b.catalog.Topic(name)
	if err != nil {
		return status.Backlog{}, err
	}
	all, delayed := t.Stored(), t.Delayed()
	return status.Backlog{Messages: all.Messages + delayed.Messages + t.Counters().Half.Load(), Bytes: all.Bytes + delayed.Bytes}, nil
}
