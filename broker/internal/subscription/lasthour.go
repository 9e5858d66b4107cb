package subscription

import "time"

const (
	// lastHourStep is the resolution of a lastHour.
	lastHourStep = 5 * time.Minute

	// lastHourSteps cover an hour at any moment within the newest step.
	lastHourSteps = int64(time.Hour/lastHourStep) + 1
)

// A lastHour counts the events of the last hour: of at least 60 minutes, and at most 65. The zero
// value has none.
type lastHour struct {
	counts [lastHourSteps]uint32
	newest int64 // number of the newest step since 1970
}

// add counts an event.
func (h *lastHour) add(now time.Time) {
	step := now.UnixNano() / int64(lastHourStep)
	h.advance(step)
	h.counts[step%lastHourSteps]++
}

// count returns the number of events.
func (h *lastHour) count(now time.Time) (n int64) {
	h.advance(now.UnixNano() / int64(lastHourStep))
	for _, c := range h.counts {
		n += int64(c)
	}
	return n
}

// advance clears the steps that are over. If the clock goes back, later steps stay.
func (h *lastHour) advance(step int64) {
	for from := max(h.newest+1, step-lastHourSteps+1); from <= step; from++ {
		h.counts[from%lastHourSteps] = 0
	}
	h.newest = max(h.newest, step)
}
