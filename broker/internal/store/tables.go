package store

import (
	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// queueTable is how many messages a queue has from the first key of a table on, so that the table
// ends with the queue. With fewer, for example in a flush of 12 MiB with messages of 1 KiB of eight
// queues, the tables would be small.
const queueTable = 4096

// fewQueues is how many queues may receive messages, so that tables end with their queue. With 500
// queues they would be too small.
const fewQueues = 64

// tablePolicy has Pebble end a table at tableEnd.
func (s *Store) tablePolicy(first []byte) (pebble.SpanPolicy, []byte, error) {
	return pebble.SpanPolicy{}, tableEnd(first, s.tail.next), nil
}

// tableEnd returns the key at which a table of the messages database ends at the latest, from its
// first key. The offsets of a queue only grow, so a table with messages of one queue overlaps no
// older table, and a compaction moves it down without rewriting it. Together with tables of their
// own for messages and for other records, this halves the bytes that compactions rewrite while
// messages are sent. Pebble asks again only after the end, so a queue with few messages before the
// others takes this gain away. next returns the offset of the next message of a queue, if messages
// were sent to it and to few others recently. An empty end means no end.
func tableEnd(first []byte, next func(topic uint32, queue uint16) (int64, bool)) []byte {
	switch {
	case len(first) == 0 || first[0] > record.PrefixMessage:
		return nil
	case first[0] < record.PrefixMessage:
		return []byte{record.PrefixMessage}
	case len(first) == record.MessageKeyLen:
		p := splitMessageKey(first)
		if n, ok := next(p.Topic, p.Queue); ok && n-p.Offset >= queueTable {
			return record.PrefixEnd(record.AppendQueueKey(nil, p.Topic, p.Queue))
		}
	}
	return []byte{record.PrefixMessage + 1}
}
