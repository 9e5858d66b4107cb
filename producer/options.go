// Package producer sends messages and retries failed sends: at once after a transient failure, and
// with growing delays while the server throttles. It does not retry after permanent errors.
// [Options].OnAttempt observes every attempt and the decision after it.
//
//	p, err := producer.New(t, producer.Options{})
//	receipt, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: body})
//
// [Producer.Send], [Producer.SendAsync] and [Producer.SendBatch] share one engine with the limits,
// the retries and the order described below.
//
// # Retries
//
// The class of an attempt's error decides the next step (RocketMQ: sending retry and throttling
// policy):
//
//   - throttled (reply code 530, TOO_MANY_REQUESTS): wait Backoff.Delay(n), or as
//     long as the server requests if that is longer, and send again. Another server of the
//     topic can get the message after Backoff.Delay(n);
//   - transient (connection lost, no response in time, a failure of the server):
//     send again at once, at another server if there is one. If such failures repeat,
//     the retries wait (Options.Pacing). Retries wait for a connection; the first attempt
//     does not. An attempt that never had a connection does not count in MaxAttempts: such
//     attempts repeat until the deadline of ctx, or for two minutes without one;
//   - permanent (the request is wrong, or not permitted): stop;
//   - ctx ended, or the producer was closed: stop.
//
// A retry that could not end before the deadline of ctx is not attempted. The send fails early, and
// its error has the necessary and the remaining time.
//
// A message keeps its ID in all attempts. If only the response was lost, a failed attempt may have
// been stored; [SendError].MaybeStored reports that. A server that detects duplicate IDs stores
// such a message only once.
//
// # Spool
//
// A producer with [Options].Spool accepts messages while no server does. It stores them on the
// local disk and sends them later, in the order of their message groups and lite topics, with the
// same IDs. The receipt of such a message has Spooled set and no offset.
//
// # Shared requests
//
// If the transport supports it ([transport.LaneSender]) and the server announces it, messages of
// one topic to one server share requests. If no such request is under way, a message is sent at
// once. At most two requests are under way, except while responses are late: then another one
// begins each 100 ms. A second request waits for up to 5 ms for further messages. Later messages
// queue, and the next request takes as many of them as the server permits.
// If the server rejects a shared request because of one message, the producer repeats it in halves
// until only the faulty message is left, and the others are stored.
//
// # Pauses
//
// After a throttle the producer pauses all sends of the topic to that server. Then it sends one
// message as a probe. It sends the others once the server has accepted the probe. A server that
// takes one message a request gets another probe if it has not responded after the length of the
// pause.
//
// # Files
//
// For readers of the code, in the order of a message's way:
//
//   - send.go: Send, SendAsync and SendBatch; settle and finish, which end a request; [Attempt]
//   - producer.go: [Producer]. prepare and admit accept a message; submit, pump and work move it
//     through its topic; end gives it a result. Before the type topic is the trace of a throttled
//     Send
//   - item.go: a message with its limits, history and state; the watches of the callers' contexts
//   - ledger.go: the bound of messages without a result, and the functions of SendAsync
//   - internal/plan: which messages the next request has, and when it begins; pure. queue.go has
//     the messages of a topic, lane.go the choice of a lane and its pauses, request.go what a
//     request takes and the gathering rule, server.go the topics that share requests
//   - request.go: route asks the transport for a lane; start, limit and send make the call
//   - server.go: requests with messages of several topics
//   - outcome.go: decide, apply and adapt carry out what follows an attempt; repeat does so for
//     calls outside the queue, such as Recall; the settings of the server, on which it depends
//   - internal/retry: the decision after an attempt; pure. history.go counts the attempts
//   - spool.go: moves to the spool, and sends from it; package spool has the disk
//   - transaction.go: half messages and their ends
//   - options.go: [Options] and defaults, [Settings] in effect, [SendError]
package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
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
	// The call waits as with WaitWhenFull in two cases: the message has a message group or lite
	// topic, whose older messages may still be in the producer, or MaxPending functions of
	// SendAsync have not been called yet.
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
	// messages in the order of their message groups and lite topics, through the limiter, with the
	// same IDs, until a server has stored them.
	//
	// A message of a group or lite topic with spooled messages is spooled behind them. After a
	// failed message of a topic was spooled, new messages of the topic are spooled without an
	// attempt until a send to the topic succeeds.
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

// The sources of settings, as [Settings] has them.
const (
	fromClient  = "client"
	fromServer  = "server"
	fromDefault = "default"
)

// Settings are the values in effect for sends to one topic. The source of each value is "client"
// for Options, "server" or "default": the client's value has priority over the server's, and the
// server's over the default. A server's backoff that is too short (see [Options].Backoff) counts as
// not set. A server cannot set more than 16 attempts, nor waits below 10 ms.
type Settings struct {
	MaxAttempts     int // of one send, including the first
	MaxAttemptsFrom string

	Backoff     backoff.Policy // after a throttled attempt
	BackoffFrom string

	MaxBodySize     int // bytes
	MaxBodySizeFrom string
}

// Effective returns the settings in effect for sends to the topic, with their sources. It requests
// the server's settings if the last response is older than 30 seconds, and blocks until there is a
// response or ctx ends. If the request fails, the error has the reason, and the returned settings
// are valid nevertheless: those of the client, those of the last response, and the defaults. After
// a failure Effective sends no further request for 5 seconds, unless ctx had ended.
func (p *Producer) Effective(ctx context.Context, topic string) (Settings, error) {
	if err := tidegate.ValidateTopic(topic); err != nil {
		return p.assumed, err
	}
	t := p.use(topic)
	defer t.release()
	return p.askedSettings(ctx, t)
}

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

// ErrFull matches the error of a send that a full producer rejects ([RejectWhenFull]). The text has
// the counts and the limits. It is not the error of a full spool, spool.ErrFull.
var ErrFull = errors.New("the producer is full")

// A SendError is the error of a failed send; every error of [Producer.Send] is one. It matches the
// cause of the end and the error of the last attempt. For example, a send that was throttled until
// its ctx ended matches context.DeadlineExceeded, the cause of ctx, and tidegate.ErrThrottled.
// [SendError.Fault] classifies it by the remedy.
type SendError struct {
	Topic     string
	MessageID string // the ID in the attempts; empty if the message has none

	Reason StopReason // the reason for the end of the send

	Attempts    int // including throttled ones
	Throttles   int // throttled attempts, plus throttled requests of other messages that the send waited for
	MaxAttempts int // the limit; it excludes throttled attempts if they have a limit of their own

	// Needed is the time that the next attempt would have needed, including the wait before it.
	// Remaining is the time that was left. Zero unless Reason is [StopDeadline].
	Needed, Remaining time.Duration

	// MaybeStored is true if at least one failed attempt may have been stored. Sending the message
	// again can create a duplicate, unless it keeps its ID and the server detects duplicate IDs.
	MaybeStored bool

	op string // "send to" if empty

	// Last is the error of the last attempt; nil if there was none.
	Last error

	// Cause is the reason of the end if Last is not: the cause of ctx, tidegate.ErrClosed, the
	// error of the limiter, or the fault of the message. Otherwise nil.
	Cause error
}

// Error returns the topic, the cause, the attempt, the endpoint and the last response.
func (e *SendError) Error() string {
	var b strings.Builder
	op := e.op
	if op == "" {
		op = "send to"
	}
	fmt.Fprintf(&b, "%s %q: ", op, e.Topic)
	if e.Cause != nil {
		b.WriteString(e.Cause.Error())
	}
	if e.Last != nil {
		if e.Cause != nil {
			b.WriteString(" after ")
		}
		e.writeAttempt(&b)
	}
	if e.MaybeStored {
		b.WriteString(" (the message may have been stored)")
	}
	return b.String()
}

func (e *SendError) writeAttempt(b *strings.Builder) {
	fmt.Fprintf(b, "attempt %d", e.Attempts)
	switch {
	case e.Throttles > 0 && e.Attempts > e.MaxAttempts:
		fmt.Fprintf(b, " (%d throttled)", e.Throttles)
	case e.MaxAttempts >= e.Attempts:
		fmt.Fprintf(b, " of %d", e.MaxAttempts)
	}
	last := e.Last
	// Leave out the parts that the text of the send has already.
	if te, ok := last.(*tidegate.Error); ok { //nolint:errorlint // a wrapper has a text of its own
		c := *te
		if c.Endpoint != "" {
			fmt.Fprintf(b, " at %s", c.Endpoint)
		}
		c.Op, c.Endpoint = "", ""
		if c.Subject == e.Topic {
			c.Subject = ""
		}
		last = &c
	}
	fmt.Fprintf(b, ": %v", last)
	if e.Reason == StopPushedBack {
		b.WriteString(" (the server asked not to retry)")
	}
}

// Unwrap returns Cause and Last, without nil.
func (e *SendError) Unwrap() []error {
	errs := make([]error, 0, 2)
	if e.Cause != nil {
		errs = append(errs, e.Cause)
	}
	if e.Last != nil {
		errs = append(errs, e.Last)
	}
	return errs
}

// A StopReason is the reason why a send ended without success. Its String method returns it in
// words.
type StopReason = retry.Stop

// The reasons to stop.
const (
	NotStopped      = retry.Continue    // the send succeeded, or another attempt follows
	StopInvalid     = retry.Invalid     // the message can never be sent; no attempt was made
	StopPermanent   = retry.Permanent   // the same request would fail again
	StopExhausted   = retry.Exhausted   // MaxAttempts were made, or there was no connection for two minutes
	StopThrottled   = retry.Throttled   // the server throttled for longer than MaxThrottles or MaxThrottleTime allows
	StopPushedBack  = retry.PushedBack  // the server requested no further attempt
	StopDeadline    = retry.Deadline    // the next attempt could not end before the deadline of ctx
	StopLimiter     = retry.Limiter     // Options.Limiter returned an error
	StopContext     = retry.Context     // ctx ended
	StopClosed      = retry.Closed      // the producer or its transport was closed
	StopFull        = retry.Full        // MaxPending or MaxPendingBytes would be exceeded; no attempt was made
	StopBudget      = retry.Budget      // Options.Budget has no retry left
	StopHalfMessage = retry.HalfMessage // a half message failed that may have reached a server; it is not sent again
	StopSpool       = retry.Spool       // Options.Spool rejected the message; of an Attempt: it moves to the spool for a lost permission
)
