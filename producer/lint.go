package producer

import (
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/producer/internal/lint"
	"github.com/tidegate/tidegate/transport"
)

// A Use describes how a program uses a producer, for [Options.Lint].
type Use struct {
	// Timeout is the time that the ctx of each send gives it. Zero means no deadline.
	Timeout time.Duration

	// Clients is the number of producers that send to the same server.
	Clients int
}

// Preview returns the waits of a send that is always throttled. It uses the client's options only,
// not the settings of a server.
func (o Options) Preview() backoff.Schedule { return o.policy().Preview() }

// Lint returns sentences about fields of o that are valid but probably not intended for the
// described use. Each sentence begins with the name of a field. Nil means that there are none.
func (o Options) Lint(use Use) (findings []string) {
	return o.policy().Findings(use.Timeout, use.Clients)
}

func (o Options) policy() lint.Policy {
	d := o.withDefaults()
	s := merge(d, transport.ProducerSettings{})
	return lint.Policy{
		MaxAttempts: s.MaxAttempts, MaxThrottles: o.MaxThrottles, MaxThrottleTime: o.MaxThrottleTime,
		Floor: min(attemptFloor, d.AttemptTimeout), Backoff: s.Backoff, OwnBackoff: o.Backoff, Pacing: o.Pacing,
		MaxBodySize: s.MaxBodySize, MaxPendingBytes: d.MaxPendingBytes,
	}
}
