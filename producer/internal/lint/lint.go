// Package lint finds options of a producer that are valid but probably not intended. It is pure.
package lint

import (
	"fmt"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

// A Policy is the options of a producer with their defaults.
type Policy struct {
	MaxAttempts     int
	MaxThrottles    int // negative: until the context ends
	MaxThrottleTime time.Duration
	Floor           time.Duration  // the least time of an attempt
	Backoff         backoff.Policy // with the default
	OwnBackoff      backoff.Policy // without it; nil if it is not set
	Pacing          backoff.Policy // nil if it is not set
	MaxBodySize     int
	MaxPendingBytes int
}

// previewed is the number of retries that Preview shows if there is no limit.
const previewed = 10

// Preview returns the waits of a send that is throttled every time.
func (o Policy) Preview() backoff.Schedule {
	n := o.MaxAttempts - 1
	switch {
	case o.MaxThrottles > 0:
		n = o.MaxThrottles
	case o.MaxThrottles < 0, o.MaxThrottleTime > 0:
		n = previewed
	}
	schedule := backoff.Preview(o.Backoff, n)
	for i, stage := range schedule {
		if o.MaxThrottleTime > 0 && stage.TotalLo > o.MaxThrottleTime {
			return schedule[:i]
		}
	}
	return schedule
}

// Findings returns a sentence for each finding, for sends with the given timeout, 0 for
// none, of that many clients.
func (o Policy) Findings(timeout time.Duration, clients int) (findings []string) {
	report := func(format string, args ...any) { findings = append(findings, fmt.Sprintf(format, args...)) }
	if timeout > 0 {
		for _, stage := range o.Preview() {
			if needed := stage.TotalLo + o.Floor; needed > timeout {
				report("Backoff: throttled retry %d comes after at least %v, but a send has only %v, so this retry never happens", stage.Retry, needed, timeout)
				break
			}
		}
		if most := int(timeout / o.Floor); o.MaxAttempts > most {
			report("MaxAttempts: %d attempts need at least %v each, but a send has only %v, so at most %d attempts happen", o.MaxAttempts, o.Floor, timeout, most)
		}
		if o.MaxThrottleTime > timeout {
			report("MaxThrottleTime: %v has no effect, because a send has only %v", o.MaxThrottleTime, timeout)
		}
	}
	if timeout == 0 && o.MaxThrottles < 0 && o.MaxThrottleTime == 0 {
		report("MaxThrottles: with UntilContextEnds and no deadline, a throttled send can wait without end")
	}
	if clients > 1 {
		exact := func(field string, p backoff.Policy) {
			r, ok := p.(interface {
				Range(n int) (lo, hi time.Duration)
			})
			if !ok {
				return
			}
			if lo, hi := r.Range(0); lo == hi {
				report("%s: without jitter, %d clients that fail at the same time retry at the same time", field, clients)
			}
		}
		exact("Backoff", o.OwnBackoff)
		exact("Pacing", o.Pacing)
	}
	if o.MaxBodySize > o.MaxPendingBytes {
		report("MaxPendingBytes: a message of MaxBodySize (%d) exceeds %d and is sent only while no other is pending", o.MaxBodySize, o.MaxPendingBytes)
	}
	return findings
}
