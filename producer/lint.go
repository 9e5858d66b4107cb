package producer

import (
	"fmt"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// A Use describes how a program uses a producer, for [Options.Lint].
type Use struct {
	// Timeout is the time that the ctx of each send gives it. Zero means no deadline.
	Timeout time.Duration

	// Clients is the number of producers that send to the same server.
	Clients int
}

// previewed is the number of retries that Preview shows if there is no limit.
const previewed = 10

// Preview returns the waits of a send that is throttled every time, as far as the
// client's options decide: without what a server may set.
func (o Options) Preview() backoff.Schedule {
	s := merge(o, transport.ProducerSettings{})
	n := s.MaxAttempts - 1
	switch {
	case o.MaxThrottles > 0:
		n = o.MaxThrottles
	case o.MaxThrottles == UntilContextEnds, o.MaxThrottleTime > 0:
		n = previewed
	}
	schedule := backoff.Preview(rangerOf(s.Backoff), n)
	for i, stage := range schedule {
		if o.MaxThrottleTime > 0 && stage.TotalLo > o.MaxThrottleTime {
			return schedule[:i]
		}
	}
	return schedule
}

// fixed makes a Ranger of a policy that does not know its bounds.
type fixed struct{ backoff.Policy }

// Range implements backoff.Ranger.
func (f fixed) Range(n int) (lo, hi time.Duration) {
	d := f.Delay(n)
	return d, d
}

func rangerOf(p backoff.Policy) backoff.Ranger {
	if r, ok := p.(backoff.Ranger); ok {
		return r
	}
	return fixed{p}
}

// Lint returns sentences about fields of o that are valid but probably not intended for the
// described use. Each sentence begins with the name of a field. Nil means that there are none.
func (o Options) Lint(use Use) (findings []string) {
	report := func(format string, args ...any) { findings = append(findings, fmt.Sprintf(format, args...)) }
	d := o.withDefaults()
	s := merge(d, transport.ProducerSettings{})
	floor := min(attemptFloor, d.AttemptTimeout)
	if use.Timeout > 0 {
		for _, stage := range o.Preview() {
			if needed := stage.TotalLo + floor; needed > use.Timeout {
				report("Backoff: throttled retry %d needs at least %v, but a send has %v: it is never made", stage.Retry, needed, use.Timeout)
				break
			}
		}
		if most := int(use.Timeout / floor); s.MaxAttempts > most {
			report("MaxAttempts: %d attempts need at least %v each, but a send has %v: only %d can be made", s.MaxAttempts, floor, use.Timeout, most)
		}
		if o.MaxThrottleTime > use.Timeout {
			report("MaxThrottleTime: %v is longer than the %v that a send has, and has no effect", o.MaxThrottleTime, use.Timeout)
		}
	}
	if use.Timeout == 0 && o.MaxThrottles == UntilContextEnds && o.MaxThrottleTime == 0 {
		report("MaxThrottles: UntilContextEnds without a deadline lets a throttled send wait for ever")
	}
	if use.Clients > 1 {
		exact := func(field string, p backoff.Policy) {
			r, ok := p.(backoff.Ranger)
			if !ok {
				return
			}
			if lo, hi := r.Range(0); lo == hi {
				report("%s: it has no jitter: %d clients that fail at the same time return at the same time", field, use.Clients)
			}
		}
		exact("Backoff", o.Backoff)
		exact("Pacing", o.Pacing)
	}
	if s.MaxBodySize > d.MaxPendingBytes {
		report("MaxPendingBytes: a message of MaxBodySize (%d) exceeds %d and is sent only while no other is pending", s.MaxBodySize, d.MaxPendingBytes)
	}
	return findings
}
