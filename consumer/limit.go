package consumer

import "github.com/tidegate/tidegate/consumer/internal/permit"

// permitted waits for the limiter's permission to receive messages of t, and returns their number,
// up to most. It returns 0 if the run ends, or if a helper would have to wait. An error of the
// limiter is reported like a failed receive: without permission the consumer receives nothing.
func (r *run) permitted(p *permit.Permits, t *topic, most int, more, helper bool) int {
	for failures := 0; ; failures++ {
		n, err := p.Await(r.running, most, more, helper)
		if err == nil {
			return n
		}
		wait, end := r.receiveFailed(t, "the limiter does not permit the receive", err, failures)
		if end || r.pause(wait) != nil {
			return 0
		}
	}
}
