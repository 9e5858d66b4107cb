package topic

import (
	"hash/fnv"
	"time"

	"github.com/tidegate/tidegate/broker/internal/classes"
	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
)

const _ = uint(recent.MaxQueues - settings.MaxQueues) // the memory of IDs has all queue numbers

// Pick returns the queue for a message. Messages of one message group have the same queue. Without
// a message group, the calls take the queues in turn.
func (t *Topic) Pick(messageGroup string) *Queue {
	queues := t.Queues()
	if messageGroup == "" {
		return queues[t.RoundRobin.Add(1)%uint32(len(queues))]
	}
	h := fnv.New32a()
	h.Write([]byte(messageGroup))
	return queues[h.Sum32()%uint32(len(queues))]
}

// Put writes a message as the next one of a queue, and returns its offset. It remembers the message
// ID for the duplicate window. Only called within the message log's Add.
func (t *Topic) Put(w *store.Batch, q *Queue, m *store.Message, now time.Time) int64 {
	offset := q.nextOffset
	q.nextOffset++
	q.nextBytes += int64(len(m.Body))
	clock := t.config.Clock.At(now)
	now = clock.Stamp()
	m.Cumulative, m.StoredAt = q.nextBytes, now
	t.messages.Add(1)
	t.bytes.Add(int64(len(m.Body)))
	t.config.Activity.Note()
	w.PutMessage(store.Place{Topic: t.config.ID, Queue: q.number, Offset: offset}, m)
	t.config.IDs.Put(w, m, q.number, offset, t.Settings().IDWindow(), now)
	return offset
}

// PutLetter is Put for a dead letter, which it also counts. All letters in the dead letter topic of
// a group count for this group.
func (t *Topic) PutLetter(w *store.Batch, q *Queue, m *store.Message, l classes.Letter, now time.Time) {
	if group, ok := deadLetterGroup(t.config.Name); ok {
		l.Group = group
	}
	offset := t.Put(w, q, m, now)
	t.config.Classes.Add(w, store.Place{Topic: t.config.ID, Queue: q.number, Offset: offset}, l, now)
}

// Publish returns a function that makes the next message of a queue visible to groups, if it is
// called without an error.
func (t *Topic) Publish(q *Queue) func(error) {
	return func(err error) {
		if err == nil {
			q.end.Add(1)
			t.Wake(q, 1)
		}
	}
}

// Wake ends the wait of receives for n new messages of a queue, and sets the time of the next round
// of retention.
func (t *Topic) Wake(q *Queue, n int64) {
	for _, s := range t.Subscriptions() {
		s.Wake(n, q.number)
	}
	t.Added()
}

// Remove removes a message from the middle of a queue. size is that of its body. Only called within
// the message log's Add, at most once for a message.
func (t *Topic) Remove(w *store.Batch, queue int, offset, size int64) {
	q := t.Queues()[queue]
	q.removedMessages.Add(1)
	q.removedBytes.Add(size)
	w.DeleteMessage(store.Place{Topic: t.config.ID, Queue: q.number, Offset: offset})
	w.PutRemoved(t.config.ID, q.number, q.Removed())
	t.config.Activity.Note()
}

// NextOffset returns the offset of the next message of a queue, and 0 if there is no such queue.
// Only called within the message log's Add.
func (t *Topic) NextOffset(queue uint16) int64 {
	if queues := t.Queues(); int(queue) < len(queues) {
		return queues[queue].nextOffset
	}
	return 0
}
