package transit

import (
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// besideBody is the approximate memory of a delivery in a response except for its body, in bytes.
const besideBody = 1 << 10

// Bodies are the bodies of a response, in the memory of a Hold.
type Bodies struct {
	hold           *Hold
	beside, factor int64 // bytes beside the bodies, and for each byte of a body
}

// BodiesIn returns the bodies of a response of at most so many messages. Each byte of a body takes
// factor bytes.
func BodiesIn(h *Hold, most int, factor int64) *Bodies {
	return &Bodies{h, int64(max(most, refusal.MaxReceive)) * besideBody, factor}
}

// Admit holds memory for bodies of so many bytes in all. The engine calls it before it stores them.
func (b *Bodies) Admit(bytes int64) error { return b.hold.Resize(b.beside+b.factor*bytes, false) }
