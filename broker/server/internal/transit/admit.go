package transit

import (
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// besideBody is about what a delivery of a response takes beside its body, in bytes.
const besideBody = 1 << 10

// Admit returns what the engine asks before it keeps so many bytes of bodies for a response of at
// most so many messages, which takes factor times as much.
func Admit(h *Hold, most int, factor int64) func(bytes int64) error {
	beside := int64(max(most, refusal.MaxReceive)) * besideBody
	return func(bytes int64) error { return h.Resize(beside+factor*bytes, false) }
}
