package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// The values that hold where neither the client nor the server sets another.
const (
	DefaultMaxAttempts     = 3
	DefaultAttemptTimeout  = 3 * time.Second // as RocketMQ's own clients
	DefaultMaxPending      = 10_000
	DefaultMaxPendingBytes = 64 << 20
)

const (
	// attemptFloor is the least time that an attempt is given, unless
	// AttemptTimeout is shorter: less would only make every attempt fail.
	attemptFloor = 100 * time.Millisecond

	// retriesAtOnce is the number of transient failures that are retried without
	// pacing by default.
	retriesAtOnce = 3
)

// UntilContextEnds as Options.MaxThrottles lets a throttled send wait for as
// long as its ctx allows.
const UntilContextEnds = -1

// defaultPacing is the pacing from the fourth transient failure on.
var defaultPacing = backoff.Exponential{Initial: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, Max: 5 * time.Second}

// A FullPolicy is what a full producer does with a further message.
type FullPolicy int

// The policies of a full producer.
const (
	WaitWhenFull   FullPolicy = iota // the call blocks until there is room or its ctx ends
	RejectWhenFull                   // the call fails at once with StopFull

	// SpoolWhenFull: the message goes to Options.Spool, and the call blocks until it is
	// on disk. The call waits, as with WaitWhenFull, for a message of a message group,
	// whose older messages may be in the producer, and while MaxPending functions of
	// SendAsync have not been called.
	SpoolWhenFull
)

// Options configure a producer. The zero value is sound.
type Options struct {
	// MaxAttempts is the number of attempts of one send, the first included.
	// Zero means the server's setting, at most 16, or 3 if it is not known. The
	// server is asked when a send has failed: a throttled send waits for the
	// response as a part of its wait and for a second at most, any other goes on.
	MaxAttempts int

	// Backoff is the wait after a throttled attempt: Delay(0) after the first
	// throttled one, Delay(1) after the second. Nil means the server's setting, or
	// backoff.Default() if it is not known. A server without tidegate's features
	// cannot make the wait shorter than backoff.Default(): the setting of a
	// RocketMQ is for retries of every kind, by default 10 ms × 2 up to 1 s.
	Backoff backoff.Policy

	// MaxThrottles gives throttled attempts a limit of their own: a send waits out
	// that many beside MaxAttempts, which then counts the other failures only.
	// UntilContextEnds means no limit: a throttled send ends with its ctx.
	// Zero means that throttled attempts count in MaxAttempts, unless
	// MaxThrottleTime is set.
	MaxThrottles int

	// MaxThrottleTime bounds the time from the first throttled attempt of a send to
	// its last attempt. Like MaxThrottles it takes throttled attempts out of
	// MaxAttempts; if both are set, the first limit reached ends the send.
	// Zero means no bound.
	MaxThrottleTime time.Duration

	// Pacing is the wait before the second retry after transient failures
	// (Delay(0)), the third (Delay(1)), and so on; the first is always at once.
	// Nil means that the first three retries are at once, and the others wait
	// 100 ms, growing by 1.6 each time up to 5 s.
	Pacing backoff.Policy

	// AttemptTimeout bounds one attempt. The attempts of a send share the time
	// until the deadline of its ctx: each gets the time left divided by the attempts
	// left, at least 100 ms and at most AttemptTimeout. Default: 3 s.
	AttemptTimeout time.Duration

	// MaxPending bounds the messages that the producer holds without a result, those
	// of all calls together. Default: 10 000.
	MaxPending int

	// MaxPendingBytes bounds the bytes of these messages. A message above it is
	// accepted when it is the only one. Default: 64 MiB.
	MaxPendingBytes int

	// WhenFull is what happens to a call for which MaxPending or MaxPendingBytes
	// leaves no room. Default: WaitWhenFull.
	WhenFull FullPolicy

	// Spool takes the messages that no server accepts for now: a send that would stop
	// after transient failures, because of throttling, its deadline, the limiter or the
	// budget, ends when the message is on disk instead. It succeeds then, with
	// Receipt.Spooled. The producer sends the messages of the spool in the order of
	// their message groups, through the limiter, and again until a server has stored
	// them, with the same ID. Later messages of a message group go behind those in the
	// spool. While the last message of a topic went there after a failed attempt, new
	// ones go there without one; the first success ends that.
	//
	// Permanent errors and the end of ctx are those of the caller as before. If the
	// spool does not take a message, for example because it is full, the send fails
	// with [StopSpool], and the error matches that of the spool. Several producers of a
	// process cannot share a spool. Nil means none.
	Spool Spool

	// MaxBodySize is the largest body, in bytes, that is sent. Zero means the
	// server's setting, or 4 MiB if it is not known. A send with a larger body first
	// asks the server, for a second at most; without a response it makes its
	// attempts, and the server decides.
	MaxBodySize int

	// Limiter is asked for one event before every attempt of a message, and may block
	// until the send's ctx ends. If it refuses, the send stops ([StopLimiter]) with
	// its error. A limiter with a method Observe(error), such as ratelimit.Adaptive, is
	// asked before first attempts only, and gets the result of every attempt; it sets
	// the pace of throttled servers, so these are not left alone for longer than
	// they ask for. Several producers may share a limiter. Nil means none.
	Limiter ratelimit.Limiter

	// Budget bounds the retries of all producers that share it: each message earns a
	// part of a retry, each retry costs one. If it is spent, a send stops with
	// [StopBudget] where it would otherwise send again. Nil means no bound.
	Budget *ratelimit.Budget

	// Priority is that of this producer's retries in the Budget.
	// Default: ratelimit.Normal.
	Priority ratelimit.Priority

	// Checker returns the resolution of a half message of [Producer.Begin]: Commit if
	// the local transaction was committed, Rollback if it was not and never will be,
	// else ResolutionUnknown, upon which the server asks again later. It should look at
	// the same database as the local transaction, for example for a row with the
	// message's ID. Several goroutines call it at the same time. A panic in it is
	// logged and counts as ResolutionUnknown. Begin and ServeChecks need it. Nil
	// means that this producer has no transactions.
	Checker func(ctx context.Context, check transport.TransactionCheck) transport.Resolution

	// OnAttempt is called after every attempt, before any wait; its duration is
	// deducted from that wait. Several goroutines call it at the same time. It
	// delays the other messages of the request, and must not call Close. A panic in
	// it is logged and otherwise ignored. Nil means none.
	OnAttempt func(Attempt)

	// Logger gets retries at debug level, aborted messages as a warning, and panics
	// of the user's functions as errors. Nil means silence.
	Logger *slog.Logger
}

// withDefaults returns o with its zero values replaced, but for those that the
// server may set.
func (o Options) withDefaults() Options {
	if o.AttemptTimeout == 0 {
		o.AttemptTimeout = DefaultAttemptTimeout
	}
	if o.MaxPending == 0 {
		o.MaxPending = DefaultMaxPending
	}
	if o.MaxPendingBytes == 0 {
		o.MaxPendingBytes = DefaultMaxPendingBytes
	}
	return o
}

// limits returns the limits of a send.
func (o *Options) limits(s Settings) limits {
	l := limits{
		maxAttempts: s.MaxAttempts, maxThrottles: o.MaxThrottles, maxThrottleTime: o.MaxThrottleTime,
		backoff: s.Backoff, pacing: o.Pacing, atOnce: 1,
		attempt: o.AttemptTimeout, floor: min(attemptFloor, o.AttemptTimeout),
	}
	if l.pacing == nil {
		l.pacing, l.atOnce = defaultPacing, retriesAtOnce
	}
	return l
}

// validate returns all faults of o, joined, and nil if there are none.
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
	if o.MaxThrottles < UntilContextEnds {
		fault("MaxThrottles", "%d is negative; give 1 or more, UntilContextEnds, or 0 to count them in MaxAttempts", o.MaxThrottles)
	}
	if o.MaxThrottleTime < 0 {
		fault("MaxThrottleTime", "%v is negative; give a positive time, or 0 for no bound", o.MaxThrottleTime)
	}
	if o.AttemptTimeout < 0 {
		fault("AttemptTimeout", "%v is negative; give a positive time, or 0 for %v", o.AttemptTimeout, DefaultAttemptTimeout)
	}
	if o.MaxPending < 0 {
		fault("MaxPending", "%d is negative; give 1 or more, or 0 for %d", o.MaxPending, DefaultMaxPending)
	}
	if o.MaxPendingBytes < 0 {
		fault("MaxPendingBytes", "%d is negative; give 1 byte or more, or 0 for %d", o.MaxPendingBytes, DefaultMaxPendingBytes)
	}
	switch {
	case o.WhenFull < WaitWhenFull || o.WhenFull > SpoolWhenFull:
		fault("WhenFull", "%d is unknown; give WaitWhenFull, RejectWhenFull or SpoolWhenFull", int(o.WhenFull))
	case o.WhenFull == SpoolWhenFull && o.Spool == nil:
		fault("WhenFull", "SpoolWhenFull needs Spool, which is nil")
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
