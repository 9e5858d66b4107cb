package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/producer/internal/retry"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// The values in effect if neither the client nor the server sets one.
const (
	defaultMaxAttempts     = 3
	defaultAttemptTimeout  = 3 * time.Second // as RocketMQ's own clients
	defaultMaxPending      = 10_000
	defaultMaxPendingBytes = 64 << 20
)

// attemptFloor is the shortest time for an attempt, unless AttemptTimeout is shorter. Shorter
// attempts would only fail.
const attemptFloor = 100 * time.Millisecond

// UntilContextEnds as Options.MaxThrottles lets a throttled send wait until its ctx ends.
const UntilContextEnds = -1

// A FullPolicy is the behaviour of a full producer when another message arrives.
type FullPolicy int

// The policies of a full producer.
const (
	WaitWhenFull   FullPolicy = iota // the call blocks until there is room or its ctx ends
	RejectWhenFull                   // the call fails at once with an error that matches ErrFull

	// SpoolWhenFull: the message goes to Options.Spool, and the call blocks until it is on disk.
	// The call waits as with WaitWhenFull in two cases: the message has a message group, whose
	// older messages may still be in the producer, or MaxPending functions of SendAsync have not
	// been called yet.
	SpoolWhenFull
)

// Options configure a producer. The zero value is valid.
type Options struct {
	// MaxAttempts is the number of attempts of one send, including the first. Zero means the
	// server's setting, at most 16, or 3 if the setting is unknown. The producer requests the
	// setting after the first failed attempt. A throttled send waits for the response, for at most
	// a second, and deducts that from its wait. Other sends do not wait.
	//
	// Attempts that never had a connection (tidegate.Error.NotConnected), or whose credentials the
	// server had accepted before (Lapsed), do not count. They repeat until the deadline of ctx or,
	// without a deadline, for two minutes. With Spool the message moves there after the first one,
	// or after MaxAttempts if only a RocketMQ proxy has lost its broker.
	MaxAttempts int

	// Backoff is the wait after a throttled attempt: Delay(0) after the first throttled one,
	// Delay(1) after the second. Nil means the server's setting, or backoff.Default() if the
	// setting is unknown. The setting of a server without tidegate's features cannot shorten the
	// wait below backoff.Default(), because RocketMQ uses one setting for all retries, by default
	// 10 ms, doubled after each retry, up to 1 s.
	Backoff backoff.Policy

	// MaxThrottles is a separate limit for throttled attempts; MaxAttempts then counts the other
	// failures only. UntilContextEnds means no limit: a throttled send ends with its ctx. Zero
	// means that throttled attempts count in MaxAttempts, unless MaxThrottleTime is set.
	MaxThrottles int

	// MaxThrottleTime bounds the time from the first throttled attempt of a send to its last
	// attempt. If it is set, throttled attempts do not count in MaxAttempts. If MaxThrottles is set
	// too, the first limit reached ends the send. Zero means no bound.
	MaxThrottleTime time.Duration

	// Pacing is the wait before retries after transient failures. The first retry has no wait;
	// Delay(0) is the wait before the second retry, Delay(1) before the third, and so on. Nil means
	// no wait before the first three retries, and then 100 ms, growing by 1.6 each time up to 5 s.
	Pacing backoff.Policy

	// AttemptTimeout bounds one attempt. The attempts of a send share the time until the deadline
	// of its ctx: each has the remaining time divided by the remaining attempts, at least 100 ms
	// and at most AttemptTimeout. Default: 3 s.
	AttemptTimeout time.Duration

	// MaxPending bounds the messages without a result, of all calls together. Default: 10 000.
	MaxPending int

	// MaxPendingBytes bounds the bytes of the messages without a result. A larger message is
	// accepted only if there is no other. Default: 64 MiB.
	MaxPendingBytes int

	// WhenFull is the behaviour of a call that would exceed MaxPending or MaxPendingBytes. Default:
	// WaitWhenFull.
	WhenFull FullPolicy

	// Spool stores the messages that no server accepts at present. A send then does not fail
	// because of transient failures, throttling, its deadline, the limiter or the budget: it
	// succeeds with Receipt.Spooled once the message is on disk. The producer sends the spooled
	// messages in the order of their message groups, through the limiter, with the same IDs, until
	// a server has stored them.
	//
	// A message of a group with spooled messages is spooled behind them. After a failed message of
	// a topic was spooled, new messages of the topic are spooled without an attempt until a send to
	// the topic succeeds.
	//
	// Permanent errors and the cancellation of ctx fail the send as without a spool, except for a
	// topic whose permission is gone; package producer/spool lists the errors. A message at
	// its deadline is spooled, and the call returns after the write; behind a request with an older
	// message of its group it fails with the deadline. If the spool rejects a message, for example
	// because it is full, the send fails with [StopSpool], and the error matches the spool's error.
	// Several producers cannot share a spool. Nil means none.
	Spool Spool

	// MaxBodySize is the largest accepted body, in bytes. Zero means the server's setting, or 4 MiB
	// if the setting is unknown. For a larger body a send first requests the setting, for at most a
	// second. Without a response it makes its attempts, and the server decides.
	MaxBodySize int

	// Limiter permits attempts: before every attempt of a message the producer waits for one event,
	// until the send's ctx ends. If the limiter returns an error, the send fails with [StopLimiter]
	// and that error. Several producers may share a limiter. Nil means none.
	//
	// A limiter with a method Observe(error), such as ratelimit.Adaptive, is called before first
	// attempts only. Its Observe receives the result of every attempt. Such a limiter lowers the
	// rate after a throttle itself. The producer then pauses a throttled server only if the server
	// requests it, for the requested time.
	//
	// A panic in a limiter, in Backoff or in Pacing is logged and counts as a wait of 1 s.
	Limiter ratelimit.Limiter

	// Budget bounds the retries of all producers that share it: each message earns a part of a
	// retry, and each retry costs one. If the budget is spent, a send stops with [StopBudget]
	// instead of a retry. Nil means no bound.
	Budget *ratelimit.Budget

	// Priority is the priority of this producer's retries in the Budget. Default: ratelimit.Normal.
	Priority ratelimit.Priority

	// Checker returns the resolution of a half message of [Producer.Begin]: Commit if the local
	// transaction was committed, and Rollback if it was not and never will be. After
	// ResolutionUnknown the server repeats the check later. Checker should read the database of the
	// local transaction, for example a row with the message's ID. Several goroutines call it at the
	// same time. A panic in it is logged and counts as ResolutionUnknown. Begin and ServeChecks
	// require it. Nil means that this producer has no transactions.
	Checker func(ctx context.Context, check transport.TransactionCheck) transport.Resolution

	// OnAttempt is called after every attempt and before the backoff wait; its duration is deducted
	// from that wait. Several goroutines call it at the same time. It delays the other messages of
	// the request, and must call neither Close nor Shutdown. A panic in it is logged and otherwise
	// ignored. Nil means none.
	OnAttempt func(Attempt)

	// Logger receives
	//   - errors: panics of the user's functions, and failures to drain the spool;
	//   - warnings: aborted messages, transactions without a resolution, failures to serve
	//     transaction checks, and credentials or permissions that the server accepted before;
	//   - debug messages: retries.
	//
	// The first line of a kind, and of a topic for transactions, is logged at once. Further ones
	// are counted, and logged once a minute with their number and the last of them. Nil means no
	// logging.
	Logger *slog.Logger
}

// withDefaults returns o with defaults in the zero fields, except in those that the server may set.
func (o Options) withDefaults() Options {
	if o.AttemptTimeout == 0 {
		o.AttemptTimeout = defaultAttemptTimeout
	}
	if o.MaxPending == 0 {
		o.MaxPending = defaultMaxPending
	}
	if o.MaxPendingBytes == 0 {
		o.MaxPendingBytes = defaultMaxPendingBytes
	}
	return o
}

// bounds returns the limits that all sends share.
func (o *Options) bounds() *retry.Bounds {
	return &retry.Bounds{
		MaxThrottles: o.MaxThrottles, MaxThrottleTime: o.MaxThrottleTime, Pacing: o.Pacing,
		Attempt: o.AttemptTimeout, Floor: min(attemptFloor, o.AttemptTimeout),
	}
}

// validate returns all invalid fields of o as one error, or nil.
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
		fault("AttemptTimeout", "%v is negative; give a positive time, or 0 for %v", o.AttemptTimeout, defaultAttemptTimeout)
	}
	if o.MaxPending < 0 {
		fault("MaxPending", "%d is negative; give 1 or more, or 0 for %d", o.MaxPending, defaultMaxPending)
	}
	if o.MaxPendingBytes < 0 {
		fault("MaxPendingBytes", "%d is negative; give 1 byte or more, or 0 for %d", o.MaxPendingBytes, defaultMaxPendingBytes)
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
			if err := guard.Error("Validate", nil, v.Validate); err != nil {
				faults = append(faults, &tidegate.Error{Subject: field, Code: tidegate.CodeBadRequest, Err: err})
			}
		}
	}
	policy("Backoff", o.Backoff)
	policy("Pacing", o.Pacing)
	return errors.Join(faults...)
}
