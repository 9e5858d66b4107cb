package consumer

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/fault"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// The defaults of the options.
const (
	DefaultConcurrency       = 20
	DefaultMaxBuffered       = 1024
	DefaultMaxBytes          = 64 << 20
	DefaultInvisibleDuration = 30 * time.Second
	DefaultMaxExtension      = time.Hour
	DefaultLongPolling       = 20 * time.Second
	DefaultShutdownTimeout   = 30 * time.Second

	maxConcurrency       = 1 << 20
	maxBatch             = 32             // messages that servers give in one receive
	maxInvisibleDuration = 12 * time.Hour // RocketMQ's
)

// receiveBackoff paces receives that fail. It is the backoff of throttled sends with a lower
// maximum: a late consumer costs more than an additional request.
var receiveBackoff = backoff.Exponential{
	Initial: time.Second, Multiplier: 1.6, Jitter: 0.2, Max: 30 * time.Second, MinConnectTimeout: 20 * time.Second,
}

// A Handler consumes one delivery. Its result is the verdict:
//
//   - nil acknowledges the message;
//   - [DeadLetter] makes it a dead letter at once;
//   - [RetryAfter] and [RetryLevel] have it delivered again after their delay;
//   - [Snooze] postpones it without counting the attempt;
//   - [ReconsumeAfter], [ReconsumeLevel] and [ReconsumeNext] send it to the group's retry topic,
//     and [NegativeAck] has it delivered again, as Apache Pulsar's clients do;
//   - any other error has it delivered again by the retry schedule. After the last attempt the
//     message becomes a dead letter, or its message group is parked if the group is configured so.
//
// These errors may be wrapped and joined. A panic is a failure like any other, also one of the
// error's own methods, as of a nil pointer in it, and so is a runtime.Goexit in either.
//
// The handler may work longer than the invisible time, which is extended meanwhile. Its ctx ends
// with the cause [ErrLeaseLost] when that failed, before the server may deliver the message again,
// and with [ErrShutdown] when the consumer cannot wait for it any longer; the end of Run's ctx
// alone does not end it. The delivery is the handler's own, except for the bytes of its body.
type Handler func(ctx context.Context, d *tidegate.Delivery) error

// A Middleware wraps a handler, as to measure, log or limit it.
type Middleware func(next Handler) Handler

// A Filter chooses messages; see [Tags] and [SQL]. The zero value takes all.
type Filter = transport.Filter

// Tags returns a filter for messages with one of the tags; without a tag it takes all.
func Tags(tags ...string) Filter { return Filter{Expression: strings.Join(tags, "||")} }

// SQL returns a filter by a SQL92 expression over properties, such as "region = 'eu' AND amount >
// 100".
func SQL(expression string) Filter { return Filter{Expression: expression, SQL: true} }

// A Subscription describes the messages that a consumer receives.
type Subscription struct {
	Group  string // the consumer group
	Topic  string // may be empty if Topics is not
	Filter Filter // of Topic; Zero means all messages

	// Topics are further topics of the same consumer, each with its filter, like further calls of
	// subscribe(topic, expression) of a RocketMQ client:
	//
	//	consumer.Subscription{Group: "billing", Topics: map[string]consumer.Filter{
	//		"orders":  consumer.Tags("paid", "refunded"),
	//		"returns": {},
	//	}}
	//
	// All topics share the consumer's options: concurrency, buffers, limiter, kill switch and
	// pause. They take turns, so that a topic with a large backlog does not delay the messages of
	// the others. Messages of a FIFO group are in order within a topic. A batch of [NewBatch] can
	// have messages of several topics. A topic that does not exist does not stop the others; see
	// PushOptions.OnReceiveFailure. All consumers of a group must have the same topics and filters
	// (RocketMQ: subscription relationship consistency). A simple consumer refuses them: use one
	// for each topic. Nil means Topic alone.
	Topics map[string]Filter

	// Retry is the group's retry schedule for a push consumer: the message is delivered again
	// Retry.Delay(n) after its delivery number n+1 failed. Nil means the intervals that a tidegate
	// broker has for the message when it failed; elsewhere the schedule that the server pushed, or
	// else backoff.RetryLadder(), which also replaces the table that a RocketMQ pushes by default.
	// A delay above 12 h, which no server accepts, means 12 h. Where a tidegate broker has address
	// settings about redelivery for the message's topic, theirs holds instead. A simple consumer
	// does not use it and refuses one.
	Retry backoff.Policy
}

// PushOptions are the settings of a push consumer. The zero value is sound.
type PushOptions struct {
	// Concurrency is how many handlers run at the same time, at most 1 048 576. With [NewBatch] it
	// is the number of batches. Default: 20, and 4 with NewBatch.
	Concurrency int

	// Batch has the limits of the batches of [NewBatch]. NewPush refuses it.
	Batch BatchOptions

	// MaxBuffered is how many messages may wait for a handler, beyond those being handled. As many
	// are received ahead as the handlers are expected to begin with within 200 ms, so slow handlers
	// keep few messages from other consumers. Of several topics, each that has none in hand may
	// have one more. Negative means none. Default: 1024.
	MaxBuffered int

	// MaxBytes bounds the bodies of all messages in hand, in bytes; at least one message is
	// received whatever its size. A server that does not know the bound of a single receive, such
	// as RocketMQ, may exceed MaxBytes by one batch whose bodies are larger than the ones before.
	// Default: 64 MiB.
	MaxBytes int

	// InvisibleDuration is how long a message is kept from other consumers, and so how soon another
	// one gets it after this program was killed. It is extended while the message is in hand, when
	// a third of it is over. If extensions take longer than a third of it, three times their time
	// is asked for. At most 12 h; a real RocketMQ refuses less than 10 s. Default: 30 s.
	InvisibleDuration time.Duration

	// MaxExtension is how long after its receipt a delivery is extended. A handler that takes
	// longer loses it. The server's own maximum holds too: 12 h by default on a tidegate broker.
	// Negative means that deliveries are never extended. Default: 1 h.
	MaxExtension time.Duration

	// Limiter delays receiving: it is asked for one event for each message. While there is a
	// backlog and the limiter has a method Allow, as many messages come at once as it permits. The
	// messages above the rate wait at the server, where other consumers can have them, and none of
	// them fails. Several consumers may share a limiter, such as a
	// [golang.org/x/time/rate.Limiter]. Source: "RocketMQ: consumption retry", usage notes. Nil
	// means no limit.
	Limiter ratelimit.Limiter

	// LongPolling is how long the server may hold a receive when there is no message. On servers
	// without [transport.Capabilities].RepeatReceive, such as RocketMQ, it is 5 s at most, as the
	// polls have to end before the consumer stops. Zero means the server's setting, or else 20 s.
	LongPolling time.Duration

	// ReceiveBackoff is the wait before receiving again after that failed for the n+1st time in a
	// row. Default: 1 s × 1.6 up to 30 s, ± 20 %.
	ReceiveBackoff backoff.Policy

	// ShutdownTimeout bounds the time from the end of Run's ctx to the return of Run. After nine
	// tenths of it the contexts of the handlers end. Default: 30 s.
	ShutdownTimeout time.Duration

	// KillSwitch stops the consumer while its handlers fail in large numbers. Zero means never.
	KillSwitch KillSwitch

	// StuckAfter is the time after which a call of the handler counts as stuck: OnStuck is called,
	// and another handler takes its place, so that Concurrency calls go on beside it. At most
	// Concurrency calls are replaced at the same time. The delivery stays the stuck handler's,
	// which settles it when it returns or loses it with its lease. Zero means never.
	StuckAfter time.Duration

	// OnStuck is called once for each stuck call of the handler. A panic in it is logged and
	// otherwise ignored; Run does not return before OnStuck does. It needs StuckAfter. Nil means
	// none.
	OnStuck func(context.Context, StuckHandler)

	// Policies set the retries of some messages apart from others, by topic, tag or property; see
	// package [policy] for their precedence. They beat Subscription.Retry and the server's
	// settings. A verdict of the handler, such as [RetryAfter] or [DeadLetter], beats the policies.
	// [Push.EffectivePolicy] returns the values that hold for a message. Nil means none.
	Policies []policy.Policy

	// Middleware wraps the handler; the first one is the outermost.
	Middleware []Middleware

	// Classify translates a handler's error before the verdict is read from it, for example
	// sql.ErrNoRows into DeadLetter. It returns the error itself if it has no opinion, and nil to
	// acknowledge the message. Outcome.Err is the handler's own error. Nil means no translation.
	Classify func(error) error

	// OnDelivery is called with the outcome of every delivery after it was settled, by several
	// goroutines at the same time. The delivery counts as in hand until it returns, and further
	// acknowledgements may wait for it. A panic in it is logged and otherwise ignored. Nil means
	// none.
	OnDelivery func(Outcome)

	// OnDeadLetter is called for each message that this consumer made a dead letter, before
	// OnDelivery and under the same conditions. cause is the handler's last error. Nil means none.
	OnDeadLetter func(ctx context.Context, d *tidegate.Delivery, cause error)

	// OnReceiveFailure is called when receiving fails, as for a topic that does not exist or a
	// filter that the server cannot read, by several goroutines at the same time; the next attempt
	// waits for it. Nil means none.
	OnReceiveFailure func(ReceiveFailure)

	// OnStop is called once before Run returns. Nil means none.
	OnStop func(StopReport)

	// Logger gets panics as errors; failures of receiving and settling, lost leases, dead letters
	// and parked message groups as warnings; what was settled by a request whose response was lost,
	// and the end of Run, at info level; retries at debug level. Nil means silence.
	Logger *slog.Logger
}

func (o PushOptions) withDefaults() PushOptions {
	if o.Concurrency == 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.MaxBuffered == 0 {
		o.MaxBuffered = DefaultMaxBuffered
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.InvisibleDuration == 0 {
		o.InvisibleDuration = DefaultInvisibleDuration
	}
	o.KillSwitch = o.KillSwitch.withDefaults()
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

// faults are the faults of options.
type faults struct{ fault.List }

func (f *faults) push(o PushOptions) {
	f.NotNegative("Concurrency", int64(o.Concurrency), o.Concurrency)
	if o.Concurrency > maxConcurrency {
		f.Add("Concurrency", "%d is too many, at most %d are allowed", o.Concurrency, maxConcurrency)
	}
	f.NotNegative("MaxBytes", int64(o.MaxBytes), o.MaxBytes)
	f.killSwitch(o.KillSwitch)
	f.invisible(o.InvisibleDuration)
	f.NotNegative("LongPolling", int64(o.LongPolling), o.LongPolling)
	f.NotNegative("ShutdownTimeout", int64(o.ShutdownTimeout), o.ShutdownTimeout)
	f.NotNegative("StuckAfter", int64(o.StuckAfter), o.StuckAfter)
	if o.OnStuck != nil && o.StuckAfter == 0 {
		f.Add("OnStuck", "it is never called without StuckAfter; set that too")
	}
	f.Policy("ReceiveBackoff", o.ReceiveBackoff)
}

func (f *faults) subscription(s Subscription) {
	if err := tidegate.ValidateGroup(s.Group); err != nil {
		f.Wrap("Subscription.Group", err)
	}
	f.validateTopics(&s)
	f.Policy("Subscription.Retry", s.Retry)
}

func (f *faults) invisible(d time.Duration) {
	f.NotNegative("InvisibleDuration", int64(d), d)
	if d > maxInvisibleDuration {
		f.Add("InvisibleDuration", "%v is too long, at most %v are allowed", d, maxInvisibleDuration)
	}
}

func (f *faults) killSwitch(k KillSwitch) {
	if !(k.FailureRatio >= 0 && k.FailureRatio <= 1) {
		f.Add("KillSwitch.FailureRatio", "%v is not between 0 and 1", k.FailureRatio)
	}
	f.NotNegative("KillSwitch.DeadLetters", int64(k.DeadLetters), k.DeadLetters)
	f.NotNegative("KillSwitch.MinMessages", int64(k.MinMessages), k.MinMessages)
	f.NotNegative("KillSwitch.Window", int64(k.Window), k.Window)
	f.NotNegative("KillSwitch.Probe", int64(k.Probe), k.Probe)
}
