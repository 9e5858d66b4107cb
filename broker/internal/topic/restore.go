package topic

import (
	"log/slog"
	"time"

	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// Restore reads the state of the queues from the store, and returns when the newest message was
// stored; zero if there is none. No other goroutine uses the topic yet.
func (t *Topic) Restore(st *store.Store) (newest time.Time, err error) {
	if waiting, _ := t.pending.Delayed(); waiting > 0 {
		if err := st.NewestDelayed(t.config.ID, time.Time{}, func(d *store.StoredDelayed) bool {
			newest = d.Stored
			return false
		}); err != nil {
			return newest, err
		}
	}
	for _, q := range t.Queues() {
		state, err := st.Queue(t.config.ID, q.number)
		if err != nil {
			return newest, err
		}
		if state.Newest.After(newest) {
			newest = state.Newest
		}
		q.low.Store(&state.First)
		q.Retention = retention.Restore(state.First, state.Leftovers)
		q.nextOffset, q.nextBytes = state.End.Offset, state.End.Bytes
		q.removedMessages.Store(state.Removed.Messages)
		q.removedBytes.Store(state.Removed.Bytes)
		if state.Removed.Messages > 0 {
			t.hasGaps.Store(true)
		}
		q.end.Store(state.End.Offset)
		t.messages.Add(state.End.Offset)
		t.bytes.Add(state.End.Bytes)
		t.lowMessages.Add(state.First.Offset)
		t.lowBytes.Add(state.First.Bytes)
		for _, m := range state.Leftovers {
			t.leftovers.Add(1)
			t.leftoverBytes.Add(m.Size)
		}
	}
	t.Watch()
	t.opened = t.Written()
	return newest, nil
}

// LostEnds are queues that are shorter than the progress of groups shows, because the end of the
// message log is damaged. Such a queue continues after the last message that a group has received.
// No offset is then assigned twice: no cursor is past the next message, and no lease applies to
// another message than before.
type LostEnds map[*Queue]lostEnd

type lostEnd struct {
	topic *Topic
	store.Mark
}

// Reach notes that a group has reached an offset, and the size of the bodies before it. A queue
// that ends before the offset continues there.
func (l LostEnds) Reach(t *Topic, q *Queue, next, bytes int64) {
	if next <= q.nextOffset {
		return
	}
	if _, ok := l[q]; !ok {
		l[q] = lostEnd{t, store.Mark{Offset: q.nextOffset, Bytes: q.nextBytes}}
	}
	q.nextOffset, q.nextBytes = next, max(q.nextBytes, bytes)
}

// Has reports whether a message is lost.
func (l LostEnds) Has(q *Queue, offset int64) bool {
	e, ok := l[q]
	return ok && offset >= e.Offset
}

// Restore counts the lost messages as removed, logs them and writes the new counts.
func (l LostEnds) Restore(st *store.Store, logger *slog.Logger) {
	if len(l) == 0 {
		return
	}
	for q, e := range l {
		messages, bytes := q.nextOffset-e.Offset, q.nextBytes-e.Bytes
		q.end.Store(q.nextOffset)
		e.topic.hasGaps.Store(true)
		q.removedMessages.Add(messages)
		q.removedBytes.Add(bytes)
		e.topic.messages.Add(messages)
		e.topic.bytes.Add(bytes)
		e.topic.opened.Messages += messages
		e.topic.opened.Bytes += bytes
		logger.Error("queue has lost its last messages; groups had received later offsets, and new messages continue after these",
			"topic", e.topic.Name(), "queue", q.number, "messages", messages, "from_offset", e.Offset, "to_offset", q.nextOffset-1)
	}
	st.Messages.Add(func(w *store.Batch) {
		for q, e := range l {
			w.PutRemoved(e.topic.config.ID, q.number, q.Removed())
		}
	}, nil)
}
