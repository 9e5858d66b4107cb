package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// The values that hold where nothing else is said.
const (
	DefaultConcurrency       = 20
	DefaultInvisibleDuration = 30 * time.Second
	DefaultMaxExtension      = time.Hour
	DefaultLongPolling       = 20 * time.Second
	DefaultShutdownTimeout   = 30 * time.Second

	maxConcurrency       = 1 << 20
	maxBatch             = 32             // messages that servers give in one receive
	maxInvisibleDuration = 12 * time.Hour // RocketMQ's
)

// receiveBackoff paces receives that fail. The kind of policy is seed 004's;
// its cap is lower: a consumer that comes back late costs more than a question.
var receiveBackoff = backoff.Exponential{
	Initial: time.Second, Multiplier: 1.6, Jitter: 0.2, Max: 30 * time.Second, MinConnectTimeout: 20 * time.Second,
}

// A Handler consumes one delivery. Nil acknowledges it; an error has it
// delivered again by the group's ladder, and after its last attempt made a dead
// letter, or parked if the group is to; [RetryAfter] and [DeadLetter] make errors that say otherwise. A
// panic is a failure too, also one of the error's own methods, as of a nil
// pointer in it; and so is a runtime.Goexit in either.
//
// The handler may work longer than the invisible time, which is extended
// meanwhile. Its ctx ends with the cause [ErrLeaseLost] when that failed, and
// with [ErrShutdown] when the consumer cannot wait for it any longer; it is
// not ended by the mere end of Run's ctx. The delivery is the handler's own,
// except for the bytes of its body.
type Handler func(ctx context.Context, d *tidegate.Delivery) error

// A Subscription is what a consumer receives.
type Subscription struct {
	Group  string // the consumer group
	Topic  string
	Filter transport.Filter // by tag; the zero value takes all

	// Retry is the group's ladder for a push consumer: the message is
	// delivered again Retry.Delay(n) after its delivery number n+1 failed. Nil:
	// the intervals that a tidegate broker has for the message when it failed; elsewhere
	// what the server pushed, or else backoff.RetryLadder(), which also stands
	// for the table that a RocketMQ pushes by default. A delay above
	// 12 h, which no server takes, is 12 h. Where a tidegate broker has address
	// settings about redelivery for the message's topic, theirs holds instead. A simple consumer
	// has no use for it and refuses one.
	Retry backoff.Policy
}

// PushOptions are what a push consumer can be told. The zero value is sound.
type PushOptions struct {
	// Concurrency is how many handlers run at the same time. Each queue that is
	// received from has an equal share of it, rounded up, in hand at most: with
	// several queues a few messages, fewer than queues, may wait for a handler.
	// At most 1 048 576. 0 for 20.
	Concurrency int

	// InvisibleDuration is how long a message is kept from other consumers,
	// and so how soon another one gets it after this program was killed. It is
	// extended at a third of it while the handler runs. At most 12 h; a real
	// RocketMQ refuses less than 10 s. 0 for 30 s.
	InvisibleDuration time.Duration

	// MaxExtension is how long after its receipt a delivery is extended. A
	// handler that takes longer loses it. Negative: never extended. 0 for 1 h.
	MaxExtension time.Duration

	// LongPolling is how long the server may hold a receive when there is no
	// message. 0: the server's setting, or else 20 s.
	LongPolling time.Duration

	// ReceiveBackoff is the wait before receiving again after that failed for
	// the n+1st time on end. Nil for 1 s × 1.6 up to 30 s, ± 20 %.
	ReceiveBackoff backoff.Policy

	// ShutdownTimeout is how long Run waits for the handlers after its ctx
	// ended, before it ends their contexts. 0 for 30 s.
	ShutdownTimeout time.Duration

	// OnDelivery is called with the outcome of every delivery, after it was
	// settled, by several goroutines at the same time. The delivery counts as
	// in hand until it returns. A panic in it is logged and otherwise ignored.
	// Nil for none.
	OnDelivery func(Outcome)

	// Logger gets panics as errors; failures of receiving and settling, lost
	// leases, dead letters and parked message groups as warnings; what was settled by a request whose
	// answer was lost at info level; retries at debug level. Nil: silent.
	Logger *slog.Logger
}

func (o PushOptions) withDefaults() PushOptions {
	if o.Concurrency == 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.InvisibleDuration == 0 {
		o.InvisibleDuration = DefaultInvisibleDuration
	}
	if o.MaxExtension == 0 {
		o.MaxExtension = DefaultMaxExtension
	}
	if o.ReceiveBackoff == nil {
		o.ReceiveBackoff = receiveBackoff
	}
	if o.ShutdownTimeout == 0 {
		o.ShutdownTimeout = DefaultShutdownTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o PushOptions) validate() []error {
	var f faults
	f.notNegative("Concurrency", int64(o.Concurrency), o.Concurrency)
	if o.Concurrency > maxConcurrency {
		f.add("Concurrency", "%d is too many, at most %d are allowed", o.Concurrency, maxConcurrency)
	}
	f.invisible(o.InvisibleDuration)
	f.notNegative("LongPolling", int64(o.LongPolling), o.LongPolling)
	f.notNegative("ShutdownTimeout", int64(o.ShutdownTimeout), o.ShutdownTimeout)
	f.policy("ReceiveBackoff", o.ReceiveBackoff)
	return f
}

func (s Subscription) validate() []error {
	var f faults
	if err := tidegate.ValidateGroup(s.Group); err != nil {
		f = append(f, fmt.Errorf("Subscription.Group: %w", err))
	}
	if err := tidegate.ValidateTopic(s.Topic); err != nil {
		f = append(f, fmt.Errorf("Subscription.Topic: %w", err))
	}
	f.policy("Subscription.Retry", s.Retry)
	return f
}

// faults collects what is wrong with options.
type faults []error

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, &tidegate.Error{
		Subject: field, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...),
	})
}

func (f *faults) notNegative(field string, n int64, value any) {
	if n < 0 {
		f.add(field, "%v is negative; give a positive value, or 0 for the default", value)
	}
}

func (f *faults) invisible(d time.Duration) {
	f.notNegative("InvisibleDuration", int64(d), d)
	if d > maxInvisibleDuration {
		f.add("InvisibleDuration", "%v is too long, at most %v are allowed", d, maxInvisibleDuration)
	}
}

func (f *faults) policy(field string, p backoff.Policy) {
	if v, ok := p.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			*f = append(*f, &tidegate.Error{Subject: field, Code: tidegate.CodeBadRequest, Err: err})
		}
	}
}

// joinFaults makes one error of all of them; nil of none.
func joinFaults(lists ...[]error) error {
	var all []error
	for _, l := range lists {
		all = append(all, l...)
	}
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("consumer: %w", errors.Join(all...))
}
