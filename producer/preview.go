package producer

import (
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// previewed is the number of retries in a preview if there is no limit.
const previewed = 10

// Preview returns the waits of a send that is always throttled. It uses the client's options only,
// not the settings of a server (see [Producer.Effective]). Without a limit it has ten retries.
func (o Options) Preview() backoff.Schedule {
	s := merge(o, transport.ProducerSettings{})
	n := s.MaxAttempts - 1
	switch {
	case o.MaxThrottles > 0:
		n = o.MaxThrottles
	case o.MaxThrottles < 0, o.MaxThrottleTime > 0:
		n = previewed
	}
	schedule := backoff.Preview(s.Backoff, n)
	for i, stage := range schedule {
		if o.MaxThrottleTime > 0 && stage.TotalLo > o.MaxThrottleTime {
			return schedule[:i]
		}
	}
	return schedule
}
