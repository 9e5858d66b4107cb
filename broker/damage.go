package broker

import "github.com/tidegate/tidegate/broker/internal/store"

// lost tells of messages, from a place up to offset to, that a group does not
// get because they cannot be read any more.
func (s *subscription) lost(from store.Place, to int64, cause error) {
	s.broker.counters.damaged.Add(to - from.Offset)
	s.broker.logger.Error("messages cannot be read from disk any more and are passed over", "group", s.group.name,
		"topic", s.topic.name, "queue", from.Queue, "from_offset", from.Offset, "to_offset", to-1, "error", cause)
}

// lostEnds are the queues that are shorter than groups know them while the broker is
// opened: damage has taken the end of the message log. Such a queue goes on behind
// what groups had received, so that no offset is given twice: no cursor is past what
// is sent next, and no lease is of another message than before.
type lostEnds map[*queue]lostEnd

type lostEnd struct {
	topic *topic
	store.Mark
}

// reach notes that a group is at an offset, and the queue's bytes before it. A
// queue that ends before goes on there.
func (l lostEnds) reach(t *topic, q *queue, next, bytes int64) {
	if next <= q.nextOffset {
		return
	}
	if _, ok := l[q]; !ok {
		l[q] = lostEnd{t, store.Mark{Offset: q.nextOffset, Bytes: q.nextBytes}}
	}
	q.nextOffset, q.nextBytes = next, max(q.nextBytes, bytes)
}

// has reports whether a message is among what was lost.
func (l lostEnds) has(q *queue, offset int64) bool {
	e, ok := l[q]
	return ok && offset >= e.Offset
}

// recoverEnds has every queue end where it goes on, as if what was lost had been
// removed, and says so.
func (b *Broker) recoverEnds(lost lostEnds) {
	if len(lost) == 0 {
		return
	}
	for q, e := range lost {
		messages, bytes := q.nextOffset-e.Offset, q.nextBytes-e.Bytes
		q.end.Store(q.nextOffset)
		e.topic.hasGaps.Store(true)
		q.removedMessages.Add(messages)
		q.removedBytes.Add(bytes)
		e.topic.messages.Add(messages)
		e.topic.bytes.Add(bytes)
		e.topic.opened.Messages += messages
		e.topic.opened.Bytes += bytes
		b.logger.Error("a queue has lost its last messages: groups had received more than the message log has; it goes on behind them",
			"topic", e.topic.name, "queue", q.number, "messages", messages, "from", e.Offset, "next", q.nextOffset)
	}
	b.store.Messages.Add(func(w *store.Batch) {
		for q, e := range lost {
			w.PutRemoved(e.topic.id, q.number, q.removed())
		}
	}, nil)
}
