package subscription

import "github.com/tidegate/tidegate/broker/internal/store"

// Lost logs and counts messages, from a place up to the offset to, that the group does not receive
// because they cannot be read.
func (s *Subscription) Lost(from store.Place, to int64, cause error) {
	s.env.Damaged.Add(to - from.Offset)
	s.env.Logger.Error("messages skipped, because they are corrupt", "group", s.Group().Name(),
		"topic", s.Topic().Name(), "queue", from.Queue, "from_offset", from.Offset, "to_offset", to-1, "error", cause)
}
