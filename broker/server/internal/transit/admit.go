package transit

import (
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// besideBody is the approximate memory of a delivery in a response except for its body, in bytes.
const besideBody = 1 << 10

// Admit returns the function that the engine calls before it stores bodies for a response. most is
// the maximum of messages of the response, and each byte of a body takes factor bytes.
func Admit(h *Hold, most int, factor int64) func(bytes int64) error {
	beside := int64(max(most, refusal.MaxReceive)) * besideBody
	return func(bytes int64) error { return h.Resize(beside+factor*bytes, false) }
}
