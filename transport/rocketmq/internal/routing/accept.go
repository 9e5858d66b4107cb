package routing

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/wire"
)

// Takes reports whether the topic takes messages of m's type. A message with another
// fault is left to the server, which knows which of its faults counts.
func (r *Route) Takes(m *tidegate.Message) bool {
	return r.Accepts == nil || r.Accepts[rmqpb.MessageType_MESSAGE_TYPE_UNSPECIFIED] || r.Accepts[wire.TypeOf(m)] ||
		m.Validate(math.MaxInt) != nil
}

// Types returns the names of the types that the topic takes.
func (r *Route) Types() string {
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(r.Accepts)) {
		names = append(names, kind.String())
	}
	return strings.Join(names, ", ")
}

// Remedy returns the remedy for a message of the wrong type.
func Remedy(is rmqpb.MessageType, accepts map[rmqpb.MessageType]bool) string {
	switch {
	case is == rmqpb.MessageType_NORMAL && accepts[rmqpb.MessageType_FIFO]:
		return "; set MessageGroup, or create the topic as NORMAL"
	case is == rmqpb.MessageType_NORMAL && accepts[rmqpb.MessageType_DELAY]:
		return "; set DeliverAt, or create the topic as NORMAL"
	case accepts[rmqpb.MessageType_TRANSACTION] && len(accepts) == 1:
		return "; send it as part of a transaction, or create the topic as " + is.String()
	}
	return "; create the topic as " + is.String()
}
