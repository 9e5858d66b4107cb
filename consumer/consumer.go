// Package consumer receives messages, calls a handler for each, and settles it: the message is
// acknowledged, delivered again later, or becomes a dead letter.
//
//	c, err := consumer.NewPush(t, consumer.Subscription{Group: "billing", Topic: "orders"},
//		func(ctx context.Context, d *tidegate.Delivery) error { return charge(ctx, d.Body) },
//		consumer.PushOptions{})
//	err = c.Run(ctx) // until ctx ends and the handlers have returned
//
// [Push] calls the handler, extends the invisible time while the handler works, and retries
// failures by the group's retry schedule. [NewBatch] returns a Push whose handler gets several
// messages at once. [Simple] has no handler: the program itself receives and acknowledges.
//
// The invisible time of a delivery is the time for which the server does not deliver the message to
// another consumer. If it ends before the message is settled, the message is delivered again.
//
// All consumers deliver at least once. A message can be delivered again after its handler has
// succeeded:
//
//   - if the acknowledgement was lost or late;
//   - on a RocketMQ, if the response to an extension of the invisible time was lost. An extension
//     replaces the receipt handle, and only its response has the new one.
//
// Handlers must therefore be idempotent by message ID. Package consumer/inbox filters duplicates.
//
// # Files
//
// For readers of the code, in the order of a message's way through a [Push]:
//
//   - consumer.go: [Handler], [Subscription] and [PushOptions], with their checks
//   - push.go: Push and its Run: goroutines, queues, settings, stop
//   - receive.go: the receive loop of a queue, with its permits, credits and watches; due and
//     extended, which decide about leases
//   - hand.go: the deliveries in hand and their one lock. arrive adds deliveries; carryOut,
//     attempted and conclude settle one; watchStuck replaces stuck handlers
//   - internal/flow: credits, leases, and the order of the deliveries in hand; pure
//   - worker.go: handleNext takes a delivery and calls the handler; handled decides by its error
//   - policies.go: the rules for a message, from package policy and the server's settings
//   - internal/verdict: failure.go reads the error of a handler, decision.go decides what it means
//     (Judge), settlement.go decides what follows each attempt to settle; pure
//   - handling.go: take, returned and removeSettled, which change the deliveries in hand;
//     [Outcome] and [Disposition]; the errors for handlers, such as [RetryIn] and [Reconsume]
//   - killswitch.go: the kill switch; maintainLeases extends leases and repeats settlements
//   - internal/killswitch: when the kill switch trips, and which failures it excuses; pure
//   - batch.go: batches of messages for a handler; acknowledgements that share a request
//   - lite.go: the lite topics of a consumer, and the requests that keep them at the server
//   - simple.go: [Simple]; its Settle is in hand.go
package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/killswitch"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

const (
	defaultConcurrency       = 20
	defaultMaxBuffered       = 1024
	defaultMaxBytes          = 64 << 20
	defaultInvisibleDuration = 30 * time.Second
	defaultMaxExtension      = time.Hour
	defaultLongPolling       = 20 * time.Second
	defaultShutdownTimeout   = 30 * time.Second

	maxConcurrency       = 1 << 20
	maxBatch             = 32             // maximum of servers for one receive
	maxInvisibleDuration = 12 * time.Hour // RocketMQ's
)

// receiveBackoff paces failed receives. It is the backoff of throttled sends with a lower maximum,
// because a late consumer costs more than an additional request.
var receiveBackoff = backoff.Exponential{
	Initial: time.Second, Multiplier: 1.6, Jitter: 0.2, Max: 30 * time.Second, MinConnectTimeout: 20 * time.Second,
}

// A Handler consumes one delivery. Its result is the verdict:
//
//   - nil acknowledges the message;
//   - [DeadLetterNow] makes it a dead letter at once;
//   - [RetryIn] retries it after a delay;
//   - [Snooze] postpones it without counting the attempt;
//   - [Reconsume] sends it to the group's retry topic, or negatively acknowledges it, as Apache
//     Pulsar's clients do;
//   - any other error retries it by the retry schedule. After the last attempt the message becomes
//     a dead letter, or its message group is parked or blocked if the group is configured so.
//
// These errors may be wrapped and joined. A panic of the handler or of a method of its error, and a
// runtime.Goexit, are failures like any other error.
//
// The handler may work longer than the invisible time: the consumer extends it. The handler's ctx
// ends in two cases:
//
//   - with the cause [ErrLeaseLost], before the server may deliver the message again, if the
//     invisible time could not be extended;
//   - with the cause [ErrShutdown], if the handler is still running when the consumer stops and
//     ShutdownTimeout is nearly over. The end of Run's ctx alone does not end it.
//
// The handler may change the delivery, but not the bytes of its body.
type Handler func(ctx context.Context, d *tidegate.Delivery) error

// A Middleware wraps a handler, for example to measure or log its calls. The ctx that it passes to
// next must be derived from its own.
type Middleware func(next Handler) Handler

// Tags returns a filter for messages with one of the tags. Without tags it selects all messages.
func Tags(tags ...string) tidegate.Filter {
	return tidegate.Filter{Expression: strings.Join(tags, "||")}
}

// SQL returns a filter by a SQL92 expression over properties, for example
// "region = 'eu' AND amount > 100".
func SQL(expression string) tidegate.Filter {
	return tidegate.Filter{Expression: expression, SQL: true}
}

// A Subscription describes the messages that a consumer receives.
type Subscription struct {
	Group  string          // the consumer group; required
	Topic  string          // may be empty if Topics is not
	Filter tidegate.Filter // of Topic; see [Tags] and [SQL]; Zero means all messages

	// Topics are further topics of the same consumer, each with its filter, like further calls of
	// subscribe(topic, expression) of a RocketMQ client:
	//
	//	consumer.Subscription{Group: "billing", Topics: map[string]tidegate.Filter{
	//		"orders":  consumer.Tags("paid", "refunded"),
	//		"returns": {},
	//	}}
	//
	// All topics share the consumer's options: concurrency, buffers, limiter, kill switch and
	// pause. The consumer handles messages of the topics in turn, so a topic with a large backlog
	// does not delay the others. Messages of a FIFO group are in order within a topic. A batch of
	// [NewBatch] can have messages of several topics. If a topic does not exist, the consumer
	// continues with the others; see PushOptions.OnReceiveFailure. All consumers of a group must
	// have the same topics and filters (RocketMQ: subscription relationship consistency).
	//
	// [NewSimple] rejects Topics: use one simple consumer for each topic. Nil means Topic alone.
	Topics map[string]tidegate.Filter

	// Lite means that the consumer receives from lite topics of Topic ([tidegate.Message].LiteTopic),
	// which [Push.Subscribe] and [Push.Unsubscribe] add and remove, also while it runs:
	//
	//	c, err := consumer.NewPush(t, consumer.Subscription{Group: "agents", Topic: "sessions", Lite: true}, handle, …)
	//	err = c.Subscribe(ctx, "session-17", transport.LiteStart{})
	//
	// Messages of a lite topic are handled one after the other in the order in which the server
	// stored them, as those of a message group in a FIFO group. Handlers, retries, limits, kill
	// switch and batches are those of every consumer. Consumers of a group with the same lite topic
	// share its messages, unless the group is exclusive. A group consumes lite topics of one Topic.
	// Filter and Topics must be empty. [NewSimple] rejects it. It needs a
	// [transport.LiteSubscriber]. Default: false.
	Lite bool

	// Retry is the retry schedule of a push consumer: a message is delivered again Retry.Delay(n)
	// after its delivery number n+1 failed. A delay above 12 h, which no server accepts, means 12
	// h. Redelivery settings of the address on a tidegate broker override it. [NewSimple] rejects
	// it.
	//
	// Nil means the server's schedule:
	//
	//   - A tidegate broker uses its current settings.
	//   - For a RocketMQ that pushes its table of 18 delays to the client, the consumer uses
	//     [backoff.RetryLadder], and 3 s for a FIFO group, as RocketMQ's broker itself does.
	//   - Otherwise the consumer uses the schedule that the server pushed, or
	//     [backoff.RetryLadder] if it pushed none.
	Retry backoff.Policy
}

// PushOptions are the settings of a push consumer. The zero value is valid.
type PushOptions struct {
	// Concurrency is the number of handlers that run at the same time, at most 1 048 576. With
	// [NewBatch] it is the number of batches. Default: 20, and 4 with NewBatch.
	Concurrency int

	// Batch has the limits of the batches of [NewBatch]. [NewPush] rejects it.
	Batch BatchOptions

	// MaxBuffered is the maximum of received messages that wait for a handler. The consumer
	// receives only as many ahead as its handlers are expected to start within 200 ms, by the
	// average duration of their calls. If the handlers are slow, most messages therefore stay at
	// the server for other consumers. Each topic without an unsettled message may add one message
	// above the maximum. Negative means none. Default: 1024.
	MaxBuffered int

	// MaxBytes bounds the bodies of all received and unsettled messages, in bytes. A single message
	// may exceed it. RocketMQ cannot limit the bytes of a receive; there a receive may exceed
	// MaxBytes if its messages are larger than the previous ones. Default: 64 MiB.
	MaxBytes int

	// InvisibleDuration is the time for which the server does not deliver a received message to
	// other consumers. After a crash of this program, another consumer gets the message when this
	// time has ended. Until the message is settled, the consumer extends the time whenever a third
	// of it has passed. If requests for extensions take longer than a third of InvisibleDuration,
	// the consumer requests three times as long as they take. At most 12 h; RocketMQ rejects less
	// than 10 s. Default: 30 s.
	InvisibleDuration time.Duration

	// MaxExtension is the time, from the receipt of a message, after which the consumer no longer
	// extends its invisible time. If the handler is still running when the invisible time ends, its
	// context ends with [ErrLeaseLost], and the message is delivered again. The server can have a
	// maximum too, by default 12 h on a tidegate broker. Negative means that the consumer extends
	// no message. Default: 1 h.
	//
	// On RocketMQ a failed message of a FIFO group is retried in the process: its invisible time is
	// extended until the retry, from which MaxExtension counts anew.
	MaxExtension time.Duration

	// Limiter limits the rate of received messages, one event for each message. Messages above the
	// rate wait at the server, where other consumers can receive them, and cost no attempt. While
	// there is a backlog, a receive takes as many messages as the limiter's method Allow permits;
	// without that method it takes one. Several consumers may share a limiter, for example a
	// [golang.org/x/time/rate.Limiter]. Source: "RocketMQ: consumption retry", usage notes. A panic
	// in it is logged and counts as a wait of 1 s. Nil means no limit.
	Limiter ratelimit.Limiter

	// LongPolling is the time for which the server holds a receive while there is no message. On
	// servers without [transport.Capabilities].RepeatReceive, such as RocketMQ, it is 5 s at most,
	// because the consumer waits for its receives when it stops. Zero means the server's setting,
	// or 20 s if it has none.
	LongPolling time.Duration

	// ReceiveBackoff is the wait after a failed receive: Delay(n) after n+1 failures in a row. If
	// no server responds, the wait is at most 5 s, and ends early, once in an outage, when a server
	// responds to a ping ([transport.Pinger]). A panic in it is logged and counts as a wait of 1 s,
	// as it does for the schedules of Subscription and Policies. Default: 1 s, multiplied by 1.6
	// after each further failure up to 30 s, ± 20 %.
	ReceiveBackoff backoff.Policy

	// ShutdownTimeout bounds the time from the end of Run's ctx to the return of Run. After nine
	// tenths of it the contexts of the handlers end with [ErrShutdown]. Default: 30 s.
	ShutdownTimeout time.Duration

	// KillSwitch stops the consumer while its handlers fail in large numbers. Zero means never.
	KillSwitch KillSwitch

	// OnKillSwitch is called for each trip of the kill switch and for each return, one call after
	// the other. Run waits for it; the consumer does not. A panic in it is logged and otherwise
	// ignored. Nil means none.
	OnKillSwitch func(KillSwitchEvent)

	// StuckAfter is the time after which a call of the handler counts as stuck. The consumer then
	// calls OnStuck and starts another handler in its place, for at most Concurrency stuck calls at
	// the same time. The result of the stuck call still settles its message if the invisible time
	// is not over. Zero means never.
	StuckAfter time.Duration

	// OnStuck is called once for each stuck call of the handler. Run waits for it. A panic in it is
	// logged and otherwise ignored. It needs StuckAfter. Nil means none.
	OnStuck func(StuckHandler)

	// Policies set the retries of messages by their topic, tag or properties; package [policy] has
	// their precedence. They override Subscription.Retry, and a handler's verdict, such as
	// [RetryIn] or [DeadLetterNow], overrides them. [Push.EffectivePolicy] returns the values that
	// hold for a message. At most 1024. Nil means none.
	Policies []policy.Policy

	// Middleware wraps the handler; the first one is the outermost. The constructor calls it once,
	// and returns an error if it is nil, panics or returns nil. Nil means none.
	Middleware []Middleware

	// Classify translates the error of a handler into a verdict, for example sql.ErrNoRows into
	// [DeadLetterNow]. It returns other errors unchanged, and nil to acknowledge the message.
	// Outcome.Err is the error before the translation. Nil means no translation.
	Classify func(error) error

	// OnDelivery is called with the outcome of each delivery after the delivery was settled, by
	// several goroutines at the same time. It should return quickly: until it returns, the message
	// counts as unsettled for MaxBuffered and MaxBytes, and other acknowledgements may be delayed.
	// A panic in it is logged and otherwise ignored. Nil means none.
	OnDelivery func(Outcome)

	// OnReceiveFailure is called for each failed receive, for example from a topic that does not
	// exist, or with a filter that the server cannot parse. It is also called if the consumer cannot
	// repeat its lite topics at the server, for example because they are above a quota. Several
	// goroutines call it at the same time. The next receive starts after it has returned. Nil means none.
	OnReceiveFailure func(ReceiveFailure)

	// OnLiteEnd is called for each lite topic that the server takes from the consumer, for example
	// because another consumer of an exclusive group has subscribed to it. [Push.LiteTopics] has it
	// no longer. The calls are one after the other, also with those of OnKillSwitch; Run waits for
	// them, the consumer does not. It may call the methods of the consumer. A panic in it is logged
	// and otherwise ignored. It needs Subscription.Lite. Nil means none.
	OnLiteEnd func(liteTopic string)

	// OnStop is called once before Run returns. Nil means none.
	OnStop func(StopReport)

	// Logger receives
	//   - errors: panics;
	//   - warnings: failed receives and settlements, lost leases, dead letters, discarded messages,
	//     parked message groups, and trips of the kill switch;
	//   - infos: the end of Run, returns of the kill switch, lite topics that the server ends, and
	//     deliveries that are [PerhapsSettled];
	//   - debug messages: retries and acknowledgements.
	//
	// The first warning or info about deliveries of each kind, topic and group is logged at once.
	// The further ones are counted: one line a minute has their number and the last one.
	//
	// Nil means no logging, with one exception: if OnReceiveFailure is nil too, failed receives
	// are logged by slog.Default, for each topic at growing intervals from a minute to an hour.
	Logger *slog.Logger
}

func (o PushOptions) withDefaults() PushOptions {
	if o.Concurrency == 0 {
		o.Concurrency = defaultConcurrency
	}
	if o.MaxBuffered == 0 {
		o.MaxBuffered = defaultMaxBuffered
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultMaxBytes
	}
	if o.InvisibleDuration == 0 {
		o.InvisibleDuration = defaultInvisibleDuration
	}
	o.KillSwitch = KillSwitch(killswitch.Options(o.KillSwitch).WithDefaults())
	if o.MaxExtension == 0 {
		o.MaxExtension = defaultMaxExtension
	}
	if o.ReceiveBackoff == nil {
		o.ReceiveBackoff = receiveBackoff
	}
	if o.ShutdownTimeout == 0 {
		o.ShutdownTimeout = defaultShutdownTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// faults collects the faults of options, so that one error lists all of them. The zero value is
// empty.
type faults struct{ errs []error }

// add adds a fault of a field.
func (f *faults) add(field, format string, args ...any) {
	f.append(&tidegate.Error{Subject: field, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)})
}

// append adds an error that names its field.
func (f *faults) append(err error) { f.errs = append(f.errs, err) }

// wrap adds an error under the name of its field.
func (f *faults) wrap(field string, err error) { f.append(fmt.Errorf("%s: %w", field, err)) }

// notNegative adds a fault if n, the number in value, is negative.
func (f *faults) notNegative(field string, n int64, value any) {
	if n < 0 {
		f.add(field, "%v is negative; give a positive value, or 0 for the default", value)
	}
}

// policy adds a fault if p has a method Validate that returns an error.
func (f *faults) policy(field string, p backoff.Policy) {
	if v, ok := p.(interface{ Validate() error }); ok {
		if err := guard.Error("Validate", nil, v.Validate); err != nil {
			f.append(&tidegate.Error{Subject: field, Code: tidegate.CodeBadRequest, Err: err})
		}
	}
}

// empty reports whether there are no faults.
func (f *faults) empty() bool { return len(f.errs) == 0 }

// err returns one error with all faults, nil if there are none.
func (f *faults) err() error {
	if f.empty() {
		return nil
	}
	return fmt.Errorf("consumer: %w", errors.Join(f.errs...))
}

func (f *faults) push(o PushOptions) {
	f.notNegative("Concurrency", int64(o.Concurrency), o.Concurrency)
	if o.Concurrency > maxConcurrency {
		f.add("Concurrency", "%d is too many; give at most %d", o.Concurrency, maxConcurrency)
	}
	f.notNegative("MaxBytes", int64(o.MaxBytes), o.MaxBytes)
	f.killSwitch(o.KillSwitch)
	f.invisible(o.InvisibleDuration)
	f.notNegative("LongPolling", int64(o.LongPolling), o.LongPolling)
	f.notNegative("ShutdownTimeout", int64(o.ShutdownTimeout), o.ShutdownTimeout)
	f.notNegative("StuckAfter", int64(o.StuckAfter), o.StuckAfter)
	if o.OnStuck != nil && o.StuckAfter == 0 {
		f.add("OnStuck", "it is never called without StuckAfter; set StuckAfter too")
	}
	f.policy("ReceiveBackoff", o.ReceiveBackoff)
}

func (f *faults) killSwitch(o KillSwitch) {
	if !(o.FailureRatio >= 0 && o.FailureRatio <= 1) {
		f.add("KillSwitch.FailureRatio", "%v is not between 0 and 1", o.FailureRatio)
	}
	f.notNegative("KillSwitch.DeadLetters", int64(o.DeadLetters), o.DeadLetters)
	f.notNegative("KillSwitch.MinMessages", int64(o.MinMessages), o.MinMessages)
	f.notNegative("KillSwitch.Window", int64(o.Window), o.Window)
	f.notNegative("KillSwitch.Probe", int64(o.Probe), o.Probe)
}

// middleware returns next in a middleware, or adds a fault and returns next.
func (f *faults) middleware(field string, m Middleware, next Handler) Handler {
	if m == nil {
		f.add(field, "it is nil; leave it out")
		return next
	}
	var h Handler
	if err := guard.Error(field, nil, func() error { h = m(next); return nil }); err != nil {
		f.add(field, "%v", err)
		return next
	}
	if h == nil {
		f.add(field, "it returned a nil handler; return one that calls next")
		return next
	}
	return h
}

func (f *faults) subscription(s Subscription) {
	if err := tidegate.ValidateGroup(s.Group); err != nil {
		f.wrap("Subscription.Group", err)
	}
	f.validateTopics(&s)
	f.policy("Subscription.Retry", s.Retry)
}

func (f *faults) invisible(d time.Duration) {
	f.notNegative("InvisibleDuration", int64(d), d)
	if d > maxInvisibleDuration {
		f.add("InvisibleDuration", "%v is too long; give at most %v", d, maxInvisibleDuration)
	}
}

// A topic is one of the topics of a run.
type topic struct {
	name      string
	filter    tidegate.Filter
	number    int // from 0
	settings  atomic.Pointer[transport.ConsumerSettings]
	refusals  verdict.Refusals // guarded by run.mu
	warned    time.Time        // of the last line in slog's default log; guarded by run.mu
	warnPause time.Duration    // until the next such line; guarded by run.mu

	// Guarded by hand.mu.
	inHand    int // messages
	lastGrant int // the number of its last grant
}

// filters returns the topics of the subscription with their filters.
func (s *Subscription) filters() map[string]tidegate.Filter {
	all := maps.Clone(s.Topics)
	if all == nil {
		all = map[string]tidegate.Filter{}
	}
	if s.Topic != "" {
		all[s.Topic] = s.Filter
	}
	return all
}

// newTopics returns the topics of a new run, sorted by name.
func (s *Subscription) newTopics() (list []*topic) {
	filters := s.filters()
	for n, name := range slices.Sorted(maps.Keys(filters)) {
		list = append(list, &topic{name: name, filter: filters[name], number: n})
	}
	return list
}

// topicNames returns the names of the topics for logs.
func (r *run) topicNames() string {
	names := make([]string, len(r.topics))
	for i, t := range r.topics {
		names[i] = t.name
	}
	return strings.Join(names, ",")
}

// validateTopics validates the topics of a subscription.
func (f *faults) validateTopics(s *Subscription) {
	if _, twice := s.Topics[s.Topic]; twice && s.Topic != "" {
		f.add("Subscription.Topics", "%q is Subscription.Topic too; give it once", s.Topic)
	}
	if s.Topic == "" && s.Filter != (tidegate.Filter{}) && len(s.Topics) > 0 {
		f.add("Subscription.Filter", "it is the filter of Subscription.Topic, which is empty; set the filters in Topics")
	}
	if s.Topic != "" || len(s.Topics) == 0 {
		f.topic("Subscription.Topic", s.Topic)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Topics)) {
		f.topic("Subscription.Topics", name)
	}
}

// lite validates the lite subscription of a push consumer.
func (f *faults) lite(t Transport, s *Subscription, o *PushOptions) {
	switch _, can := t.(transport.LiteSubscriber); {
	case !s.Lite && o.OnLiteEnd != nil:
		f.add("OnLiteEnd", "it is never called without Subscription.Lite; set Lite too")
	case !s.Lite:
	case t != nil && !can:
		f.add("transport", "%T has no lite topics (transport.LiteSubscriber); use a transport to a tidegate broker or a RocketMQ from 5.5 on, such as rocketmq.Client, or leave Subscription.Lite out", t)
	}
	if s.Lite && s.Filter != (tidegate.Filter{}) {
		f.add("Subscription.Filter", "lite topics have no filters; leave it empty")
	}
	if s.Lite && len(s.Topics) > 0 {
		f.add("Subscription.Topics", "the lite topics of a consumer have one parent; give it as Topic, and use one consumer for each parent")
	}
}

// refused records a failed receive from t at now, and reports whether the failure ends the
// consumer. Rejected credentials end it once they are rejected for all topics.
func (r *run) refused(t *topic, err error, now time.Time) (end bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !t.refusals.Failed(err, now) {
		return false
	}
	return verdict.EndingOf(err) == verdict.AtOnce || !slices.ContainsFunc(r.topics, func(t *topic) bool { return !t.refusals.Lasting(now) })
}

// warnPause is the time between the first two lines in slog's default log about one topic. It
// doubles with each further line, up to maxWarnPause, until a receive succeeds.
const warnPause, maxWarnPause = time.Minute, time.Hour

// warnNow reports whether to write a line to slog's default log, and records it.
func (r *run) warnNow(t *topic, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !t.warned.IsZero() && now.Sub(t.warned) < t.warnPause {
		return false
	}
	t.warned, t.warnPause = now, min(max(2*t.warnPause, warnPause), maxWarnPause)
	return true
}

// received records a successful receive from t.
func (r *run) received(t *topic) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.refusals.Succeeded()
	t.warnPause = min(t.warnPause, warnPause)
}

// topicNumber returns the number of the subscribed topic of the delivery. The topic of the message
// can be another one, namely a retry topic.
func (it *item) topicNumber() int {
	if it.source == nil {
		return 0
	}
	return it.source.topic.number
}

// count counts a delivery of the subscribed topic.
func (it *item) count(n int) {
	if it.source != nil {
		it.source.topic.inHand += n
	}
}

func (f *faults) topic(field, name string) {
	if err := tidegate.ValidateTopic(name); err != nil {
		f.wrap(field, err)
	}
}
