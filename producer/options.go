package producer

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/ratelimit"
)

// The values that hold where neither the client nor the server says otherwise.
const (
	DefaultMaxAttempts    = 3
	DefaultAttemptTimeout = 3 * time.Second // as RocketMQ's own clients
	DefaultMaxPending     = 4096

	// minAttemptTimeout is the least share of a deadline that an attempt is
	// given: less would only make every attempt fail.
	minAttemptTimeout = 100 * time.Millisecond
)

// Options are what a producer can be told. The zero value is sound.
type Options struct {
	// MaxAttempts is the number of attempts of one send, the first included.
	// 0: the server's setting as far as it is known, or else 3. The server is
	// asked when a send has failed: one that was throttled waits for the
	// answer, as a part of its wait and for a second at most, any other goes on.
	MaxAttempts int

	// Backoff is the wait after a throttled attempt: Delay(0) after the first
	// throttled one, Delay(1) after the second. Nil: the server's setting, or
	// else backoff.Default(), the parameters of seed 004, which are also the
	// least that holds on a server without tidegate's features: the setting of a
	// RocketMQ is for retries of every kind, by default 10 ms × 2 up to 1 s.
	Backoff backoff.Policy

	// MaxThrottles lets a send wait out that many throttled attempts beside
	// MaxAttempts, which then counts the other failures only. 0: throttled
	// attempts count in MaxAttempts.
	MaxThrottles int

	// Pacing is the wait before the second retry after transient failures
	// (Delay(0)), the third (Delay(1)), and so on; the first is always at
	// once. Nil: all are at once.
	Pacing backoff.Policy

	// AttemptTimeout bounds one attempt. An attempt gets the time left until
	// the deadline of Send's ctx divided by the attempts left, but not less
	// than 100 ms and never more than AttemptTimeout. 0 for 3 s.
	AttemptTimeout time.Duration

	// MaxPending is how many sends of SendAsync may be under way; beyond it
	// they are refused at once. 0 for DefaultMaxPending.
	MaxPending int

	// MaxBodySize is the largest body, in bytes, that is sent. 0: the server's
	// setting as far as it is known, or else 4 MiB; a send with a body above
	// that first asks the server, for a second at most, and if that does not
	// answer makes its attempts: then the server decides.
	MaxBodySize int

	// Limiter is asked for one event before every attempt, by all goroutines
	// that send, and may block until the send's ctx ends. Where it refuses, the
	// send stops ([LimiterRefused]) with its error. Nil for none.
	Limiter ratelimit.Limiter

	// OnAttempt is called after every attempt, by the goroutine that sends and
	// before any wait, into which its time counts. Goroutines that send at the same time call it at the
	// same time. It must not call Close. A panic in it is logged and otherwise
	// ignored: watching a send does not break it. Nil for none.
	OnAttempt func(Attempt)

	// Logger gets retries at debug level, and panics of OnAttempt as errors.
	// Nil: silent.
	Logger *slog.Logger
}

// validate returns all the faults of o, joined, and nil if there are none.
func (o Options) validate() error {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, &tidegate.Error{
			Subject: field, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...),
		})
	}
	if o.MaxAttempts < 0 {
		fault("MaxAttempts", "%d is negative; give 1 or more, or 0 for the server's setting", o.MaxAttempts)
	}
	if o.MaxThrottles < 0 {
		fault("MaxThrottles", "%d is negative; give 1 or more, or 0 to count them in MaxAttempts", o.MaxThrottles)
	}
	if o.AttemptTimeout < 0 {
		fault("AttemptTimeout", "%v is negative; give a positive time, or 0 for %v", o.AttemptTimeout, DefaultAttemptTimeout)
	}
	if o.MaxPending < 0 {
		fault("MaxPending", "%d is negative; give 1 or more, or 0 for %d", o.MaxPending, DefaultMaxPending)
	}
	if o.MaxBodySize < 0 {
		fault("MaxBodySize", "%d is negative; give 1 byte or more, or 0 for the server's setting", o.MaxBodySize)
	}
	policy := func(field string, p backoff.Policy) {
		if v, ok := p.(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				faults = append(faults, &tidegate.Error{Subject: field, Code: tidegate.CodeBadRequest, Err: err})
			}
		}
	}
	policy("Backoff", o.Backoff)
	policy("Pacing", o.Pacing)
	return errors.Join(faults...)
}
