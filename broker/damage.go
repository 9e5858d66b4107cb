package broker

import "github.com/tidegate/tidegate/broker/internal/store"

// lost tells of messages, from a place up to offset to, that a group does not
// get because they cannot be read any more.
func (s *subscription) lost(from store.Place, to int64, cause error) {
	s.broker.counters.damaged.Add(to - from.Offset)
	s.broker.logger.Error("messages cannot be read from disk any more and are passed over", "group", s.Group().Name(),
		"topic", s.Topic().Name(), "queue", from.Queue, "from_offset", from.Offset, "to_offset", to-1, "error", cause)
}
