package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// endOf returns where a queue ends, what is on its way to the disk included.
func (b *Broker) endOf(q *queue) (end store.Mark) {
	b.store.Messages.Add(func(*store.Batch) { end = store.Mark{Offset: q.nextOffset, Bytes: q.nextBytes} }, nil)
	return end
}

// passHole moves a cursor up to an offset over messages that are not there any more, or cannot be
// read: they would keep all that come after them from the group for ever. How many bytes they had
// is told by the message behind them when it is read or, where they are the last ones, by the end
// of the queue. Nil: it is behind them already. mu is held.
func (s *subscription) passHole(c *cursor, to int64, end store.Mark) *store.Flight {
	s.dropAhead(c)
	if to <= c.next { // removed while it was read, see pass
		return nil
	}
	bytes := c.bytes
	if end.Offset == to {
		bytes = end.Bytes
	}
	s.done(to-c.next, bytes-c.bytes, time.Now())
	c.next, c.bytes = to, bytes
	return s.saveAdmitted(c, nil, nil)
}
