package serving

import (
	"time"

	"github.com/tidegate/tidegate/broker/status"
)

// A Survey is the state of all topics and groups at one moment. Goroutines may share a Survey,
// because it never changes.
type Survey struct {
	Opened time.Time // when the broker was opened, from which the counters count
	At     time.Time
	Topics []status.TopicSummary // by name

	// Groups has each group in each of its topics, by the names of group and topic. A group without
	// topics has one entry.
	Groups []status.GroupSummary

	Totals    status.Totals
	Counters  status.Counters
	Storage   status.Storage
	Clock     *status.Clock       // nil while the broker trusts its wall clock
	Throttles []status.LimitState // that reject sends
}

// Quantile returns an upper bound of a quantile q, from 0 to 1, in the unit of the histogram. It
// returns 0 without observations, and the highest bound for those above it.
func (h Histogram) Quantile(q float64) float64 {
	total, below := float64(h.Count()), uint64(0)
	for i, bound := range h.Bounds {
		if below += h.Counts[i]; total > 0 && float64(below) >= q*total {
			return bound
		}
	}
	if total == 0 || len(h.Bounds) == 0 {
		return 0
	}
	return h.Bounds[len(h.Bounds)-1]
}
