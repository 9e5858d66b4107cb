package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// passDamaged moves a cursor over messages that cannot be read any more: they would keep
// all that come after them from the group for ever. Nil: it is behind them already. mu is held.
func (s *subscription) passDamaged(c *cursor, d *store.Damaged) *store.Flight {
	s.dropAhead(c)
	if d.To <= c.next { // removed while it was read, see pass
		return nil
	}
	s.done(d.To-c.next, 0, time.Now()) // their bytes are not known
	c.next = d.To
	return s.saveAdmitted(c, nil, nil)
}

// lost tells of messages, from a place up to offset to, that a group does not
// get because they cannot be read any more.
func (s *subscription) lost(from store.Place, to int64, cause error) {
	s.broker.counters.damaged.Add(to - from.Offset)
	s.broker.logger.Error("messages cannot be read from disk any more and are passed over", "group", s.group.name,
		"topic", s.topic.name, "queue", from.Queue, "from_offset", from.Offset, "to_offset", to-1, "error", cause)
}
