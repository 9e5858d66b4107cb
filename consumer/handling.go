package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/flow"
	"github.com/tidegate/tidegate/consumer/internal/killswitch"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/transport"
)

// makeReady makes a delivery available to the handlers.
func (h *hand) makeReady(it *item) {
	it.phase = ready
	h.ready.Push(it.topicNumber(), it.current.Attempt > 1 || h.excuses.Count(it.key()) > 0, it)
	if h.idle > 0 {
		h.work.Signal()
	}
}

// hire returns the number of workers to start for the ready deliveries, and counts them.
func (h *hand) hire() int {
	n := min(h.ready.Len()-h.idle, h.opts.Concurrency-h.workers)
	if n <= 0 {
		return 0
	}
	h.workers += n
	return n
}

// take waits for a delivery and returns it with its handler's cancel function, or nil if there will
// be no more.
func (h *hand) take(cancel context.CancelCauseFunc) *item {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		if it := h.next(); it != nil {
			it.phase, it.cancel = running, cancel
			h.unread--
			h.running++
			return it
		}
		if h.closed && h.unread == 0 {
			h.workers--
			h.work.Broadcast()
			return nil
		}
		h.idle++
		h.work.Wait()
		h.idle--
	}
}

// next returns the next delivery to handle, or nil if there is none or no handler may begin. A
// message that has not failed before is the better probe of the kill switch.
func (h *hand) next() *item {
	if h.running >= h.gate.Limit(h.opts.Concurrency) {
		return nil
	}
	for {
		it, ok := h.ready.Pop(h.gate.State() == killswitch.Probing)
		if !ok || it.phase == ready { // otherwise it was lost or released
			return it
		}
	}
}

// leave removes a worker that ends during its work, and returns the number of workers to start.
func (h *hand) leave() (hire int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.workers--
	h.work.Signal() // the delivery that the worker would have taken
	return h.hire()
}

// A handled is a delivery whose handler has returned.
type handled struct {
	decision verdict.Decision
	took     time.Duration
	failed   bool // because of the message or a dependency
	decided  bool // the handler decided the end of the message, by DeadLetterNow
}

// returned ends the running phase of a delivery with its verdict, and reports whether to carry the
// verdict out now. If the lease is lost, it removes the delivery instead. c has the actions after a
// trip of the kill switch.
func (h *hand) returned(it *item, r handled, now time.Time) (carryOut bool, c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	it.cancel = nil
	if it.stuck {
		h.stuck--
	} else {
		h.running--
	}
	h.credits.Handled(r.took)
	v := r.decision
	switch {
	case it.lost:
		v = verdict.Decision{Act: verdict.Forget}
	case v.Is(transport.Release): // the run ends: neither a success nor a failure
	default:
		probe := h.gate.State() == killswitch.Probing
		excusable, changed := h.gate.Handled(now, r.failed)
		if excusable && !r.decided {
			v = h.excuse(it, v, probe)
		}
		if changed {
			c = h.gateChanged(now)
		}
	}
	if h.keeps(it, v, now) {
		v.Act = verdict.Keep
	}
	if v.Act != verdict.Ack && v.Act != verdict.Keep {
		h.lines.Close(it.line)
	}
	return h.settle(it, v), c
}

// keeps reports whether a failed message is retried in this process. That is so in a FIFO group of a
// server that counts an attempt for each released message, because others can wait behind it.
func (h *hand) keeps(it *item, v verdict.Decision, now time.Time) bool {
	_, lasts := it.lease.Again(now.Add(v.Delay), h.opts.MaxExtension)
	return lasts && v.Is(transport.Retry) && it.fifo && !it.caps.Suspend && !h.leaving
}

// keep ends a delivery whose message is retried in this process after a delay. Another delivery
// with the next attempt number has its lease and its place in the line. The leases of the line are
// extended for as long as if it had been received after the delay.
func (h *hand) keep(it *item, now time.Time) (c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := it.current
	d.Message = *d.Clone()
	d.Attempt++
	due := now.Add(it.Decision.Delay)
	lease, _ := it.lease.Again(due, h.opts.MaxExtension)
	next := newItem(&d, it.source, it.caps, lease)
	next.fifo = true
	next.line, next.unsure, next.phase, next.due = it.line, it.unsure, resting, due
	for _, b := range h.lines.Behind(it.line, it) {
		if !b.unread() {
			continue // it is being released
		}
		if b.lease, _ = b.lease.Again(due, h.opts.MaxExtension); !b.renewing {
			h.schedule(b, b.lease.Renewal(now, rand.Float64()))
		}
	}
	h.lines.Replace(it.line, it, next)
	it.line, it.phase = nil, gone
	h.unread++
	h.schedule(next, next.lease.Renewal(now, rand.Float64()))
	if h.unwanted(next) {
		c.release = h.drop(next, release)
	}
	h.offer() // the handler's time has changed the credits
	return c
}

// again makes the message of a kept delivery available to the handlers.
func (h *hand) again(it *item, now time.Time) {
	h.makeReady(it)
	at := it.lease.Renewal(now, rand.Float64())
	if it.renewing {
		at = it.lease.Until
	}
	h.schedule(it, at)
}

// excuse returns the verdict for a delivery whose failure the kill switch excuses. It is v, the
// verdict without the switch, in two cases: the server would count the attempt in any case, or the
// message has no excuse left, because a message that always fails has to reach its last attempt. A
// failed probe is not released, because the next probe would handle it again.
func (h *hand) excuse(it *item, v verdict.Decision, probe bool) verdict.Decision {
	if !it.caps.Verdicts.Has(transport.Snooze) && (!it.caps.Suspend || probe) {
		return v
	}
	delay, ok := h.excuses.Excuse(it.key(), h.opts.KillSwitch.Probe)
	switch {
	case !ok:
		return v
	case it.caps.Verdicts.Has(transport.Snooze):
		return verdict.Decision{Verdict: transport.Verdict{Kind: transport.Snooze, Delay: min(delay, maxInvisibleDuration)}}
	}
	return release
}

// settle begins the settling phase, and reports whether to carry the verdict out now. During an
// extension the verdict has to wait for the response, which has the valid handle.
func (h *hand) settle(it *item, v verdict.Decision) bool {
	if it.unread() {
		h.unread--
	}
	it.phase, it.Decision = settling, v
	it.hurry = it.line != nil
	h.unschedule(it)
	return !it.renewing || v.Act == verdict.Forget
}

// removeSettled ends deliveries that are settled.
func (h *hand) removeSettled(now time.Time, items ...*item) (c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := false
	for _, it := range items {
		consumed := it.consumed()
		next, behind := h.lines.Leave(it.line, it, consumed)
		it.line = nil
		if next != nil && next.phase == inLine {
			h.makeReady(next)
		}
		for _, b := range behind {
			b.line = nil
			if b.unread() && h.settle(b, release) {
				c.release = append(c.release, b)
			}
		}
		h.unschedule(it)
		it.phase = gone
		if consumed {
			h.excuses.Forget(it.key())
		}
		if it.disposition == Retried && !it.caps.Suspend && !h.stopped {
			h.reminders.Retry(now.Add(it.delay), it.source)
			if at := h.reminders[0].At; at.Before(h.armed) {
				h.kick(at)
			}
		}
		h.credits.Free(it.size)
		it.count(-1)
		if h.stopped {
			h.report.count(it)
		}
		if it.disposition == DeadLettered {
			changed = h.gate.DeadLettered(now) || changed
		}
	}
	if changed {
		c.add(h.gateChanged(now))
	}
	h.offer()
	h.checkEmpty()
	c.hire += h.hire()
	return c
}

func (h *hand) checkEmpty() {
	if h.closed && h.credits.Messages() == 0 {
		select {
		case <-h.empty:
		default:
			close(h.empty)
		}
	}
	if h.closed && h.unread == 0 {
		h.work.Broadcast()
	}
}

// A phase is the state of a delivery.
type phase uint8

const (
	inLine   phase = iota // behind another message of its message group
	ready                 // waits for a worker
	resting               // waits for its retry in this process
	running               // a handler works on it
	settling              // its verdict is carried out
	gone                  // settled or lost
)

// An item is one delivery in hand, from its arrival until it is settled.
type item struct {
	d       *tidegate.Delivery // as received; it belongs to the handler and is not read after the handler began
	current tidegate.Delivery  // a copy with the valid handle, for settlements
	caps    transport.Capabilities
	source  *source
	choice  policyChoice      // by the consumer's policies; set before the handler begins
	size    int               // of the body, in bytes
	line    *flow.Line[*item] // of its message group or lite topic; nil without them
	fifo    bool              // of a FIFO group or a lite topic

	// Guarded by hand.mu.
	phase    phase
	lease    flow.Lease
	wake     flow.Entry[*item]       // of hand.leases: the next check by maintainLeases
	due      time.Time               // of a resting delivery: when it is ready
	renewing bool                    // an extension is under way; a settlement waits for it
	lost     bool                    // the lease is lost
	lostErr  error                   // the server's reason, if known
	cancel   context.CancelCauseFunc // of the handler's context; nil before and after
	stuck    bool                    // another worker replaces its handler
	unsure   bool                    // the response to an extension was lost, so another handle may be valid
	hurry    bool                    // the next message of its message group waits for the acknowledgement

	// Owned by the goroutine that carries out the verdict.
	verdict.State
	disposition Disposition
	delay       time.Duration // until the next delivery
	settleErr   error
	duration    time.Duration   // of the handler
	batchTook   atomic.Int64    // set for a batch handler by other goroutines
	ctx         deliveryContext // of the handler
	result      result          // of the handler
	cancelled   bool            // the handler's context ended with the run
	grace       time.Time       // end of the settlement if the handler returned after the shutdown time; otherwise zero
}

func newItem(d *tidegate.Delivery, s *source, caps transport.Capabilities, l flow.Lease) *item {
	it := &item{d: d, current: *d, caps: caps, source: s, size: len(d.Body), lease: l}
	it.wake.Value = it
	return it
}

// key identifies the message of the delivery.
func (it *item) key() killswitch.Key {
	return killswitch.Key{Topic: it.current.Topic, ID: it.current.ID}
}

// unread reports whether no handler has started with the delivery.
func (it *item) unread() bool {
	return it.phase == inLine || it.phase == ready || it.phase == resting
}

// consumed reports whether the group will not receive the settled message again from this topic.
func (it *item) consumed() bool {
	switch it.disposition {
	case Acked, DeadLettered, Reconsumed, Discarded:
		return true
	}
	return false
}

// loss returns the cause of the handler's context after the loss of the lease.
func (it *item) loss() error {
	if it.lostErr != nil {
		return &lostError{it.lostErr}
	}
	return ErrLeaseLost
}

// A lostError is ErrLeaseLost with the server's reason.
type lostError struct{ reason error }

func (e *lostError) Error() string   { return ErrLeaseLost.Error() + ": " + e.reason.Error() }
func (e *lostError) Unwrap() []error { return []error{ErrLeaseLost, e.reason} }

const (
	// maxUnanswered is the longest wait after a receive to which no server responded.
	maxUnanswered = 5 * time.Second

	// minUnanswered is the shortest one, although a server responds again.
	minUnanswered = time.Second
)

// receiveWait returns the wait after failures+1 failed receives, the last of them with err.
func receiveWait(p backoff.Policy, failures int, err error) time.Duration {
	wait := max(p.Delay(failures), verdict.PushBack(err))
	if verdict.Unanswered(err) {
		wait = min(wait, maxUnanswered)
	}
	return wait
}

// A recovery waits for the end of one outage. Replace it after a success.
type recovery struct {
	// pinged is true after a ping succeeded. If another receive fails after that, pings do not show
	// the state of the server that fails: it may be one of several behind the transport.
	pinged bool
}

// await waits before a receive is repeated that failed with err. If no server responded to the
// receive, the wait ends early when one responds to a ping, but only once in an outage. It returns
// an error if ctx ends first.
func (r *recovery) await(ctx context.Context, t transport.Receiver, wait time.Duration, err error) error {
	pinger, ok := t.(transport.Pinger)
	if !ok || r.pinged || !verdict.Unanswered(err) || wait <= minUnanswered {
		return backoff.Sleep(ctx, wait)
	}
	end := time.Now().Add(wait)
	if err := backoff.Sleep(ctx, minUnanswered); err != nil {
		return err
	}
	pinging, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if r.pinged = pinger.Ping(pinging) == nil; r.pinged {
		return nil
	}
	return backoff.Sleep(ctx, time.Until(end))
}

// A Disposition is the end of a delivery. The zero value is none of them. Its String method returns
// it in lower-case words, for example "lease lost".
type Disposition = verdict.Disposition

// The dispositions.
const (
	// The message was consumed.
	Acked = verdict.Acked
	// The message failed and is delivered again after Outcome.Delay.
	Retried = verdict.Retried
	// The message failed in its last attempt, or the handler returned [DeadLetterNow].
	DeadLettered = verdict.DeadLettered
	// The invisible time ended, or the server rejected the receipt handle. The message is delivered
	// again.
	LeaseLost = verdict.LeaseLost
	// The message was returned to the queue for another consumer, because this consumer stops, is
	// paused, or its kill switch tripped.
	Released = verdict.Released
	// The server could not be reached. The message is delivered again when its invisible time ends.
	Unsettled = verdict.Unsettled
	// The delivery is probably settled, by a request whose response was lost. The repeated request
	// was sent too late to confirm it.
	PerhapsSettled = verdict.PerhapsSettled
	// The message failed in its last attempt. Its message group waits for an operator.
	Parked = verdict.Parked
	// The handler or the kill switch postponed the message. It is delivered again after
	// Outcome.Delay with the same attempt number.
	Snoozed = verdict.Snoozed
	// The message failed and is delivered as a new message of the retry topic after Outcome.Delay.
	Reconsumed = verdict.Reconsumed
	// The message failed in its last attempt and was acknowledged because of [policy.Discard].
	Discarded = verdict.Discarded
)

// An Outcome describes one delivery that has ended.
type Outcome struct {
	// Delivery is the delivery as it was received, with its body. It is read-only, except for the
	// changes that the handler itself has made to its Properties.
	Delivery *tidegate.Delivery

	Disposition Disposition
	Delay       time.Duration // before the next delivery: as the server reports it, or as requested; RocketMQ takes 2.5 s to 7 s longer
	Duration    time.Duration // of the handler, which may be that of a batch; 0 if it was not called

	// AttemptSpent is true if the handler returned Snooze and the server counted the attempt
	// because it does not support snoozes.
	AttemptSpent bool

	// Err is the handler's error; a [*PanicError] if it panicked.
	Err error

	// SettleErr is the reason of Unsettled, PerhapsSettled and LeaseLost, if it is known. It is
	// also set if the message was retried because the server rejected a DeadLetterNow or a
	// Reconsume.
	SettleErr error
}

// outcome describes a delivery that was concluded.
func (r *run) outcome(it *item) Outcome {
	return Outcome{
		Delivery: &it.current, Disposition: it.disposition, Delay: it.delay, Duration: it.duration,
		AttemptSpent: it.Decision.Spent && it.disposition == Retried, Err: it.result.err, SettleErr: it.settleErr,
	}
}

// observe logs the end of a delivery and calls the program's hooks. Lines above the debug level are
// tallied, because deliveries can end in this way in any number.
func (r *run) observe(it *item) {
	level, text := levelOf(it.disposition)
	if r.log.Enabled(r.detached, level) {
		o := r.outcome(it)
		of := []slog.Attr{slog.String("topic", o.Delivery.Topic), slog.String("group", r.sub.Group)}
		detail := []slog.Attr{
			slog.String("message_id", o.Delivery.ID), slog.Int("attempt", o.Delivery.Attempt), slog.String("disposition", o.Disposition.String()),
			slog.Duration("delay", o.Delay), slog.Duration("duration", o.Duration), errorAttr("error", o.Err), errorAttr("settle_error", o.SettleErr),
		}
		if level > slog.LevelDebug {
			r.events.Note(level, text, of, detail)
		} else {
			r.log.LogAttrs(r.detached, level, text, slices.Concat(of, detail)...)
		}
	}
	if it.Decision.Spent {
		r.spent.Do(func() {
			r.log.Warn("the server counts the attempts of postponed messages", "topic", it.current.Topic, "group", r.sub.Group, "endpoint", it.current.Endpoint)
		})
	}
	if r.opts.OnDelivery != nil {
		r.guard("OnDelivery panicked", it.current.ID, func() { r.opts.OnDelivery(r.outcome(it)) })
	}
}

func levelOf(d Disposition) (slog.Level, string) {
	switch d {
	case DeadLettered:
		return slog.LevelWarn, "message became a dead letter"
	case Discarded:
		return slog.LevelWarn, "message discarded after its last attempt"
	case Parked:
		return slog.LevelWarn, "message group parked"
	case LeaseLost:
		return slog.LevelWarn, "lease lost; the message will be redelivered"
	case PerhapsSettled:
		return slog.LevelInfo, "delivery possibly settled by an attempt whose response was lost"
	case Unsettled:
		return slog.LevelWarn, "delivery not settled"
	}
	return slog.LevelDebug, "delivery settled"
}

// warn tallies a warning about a delivery.
func (r *run) warn(text string, it *item, err error) {
	r.events.Note(slog.LevelWarn, text,
		[]slog.Attr{slog.String("topic", it.current.Topic), slog.String("group", r.sub.Group)},
		[]slog.Attr{slog.String("message_id", it.current.ID), slog.Any("error", err)})
}

// guard calls a hook of the program, and logs a panic in it.
func (r *run) guard(text, messageID string, hook func()) {
	defer func() {
		if v := recover(); v != nil {
			r.logPanic(r.detached, text, messageID, v, debug.Stack())
		}
	}()
	hook()
}

// reportPanic tallies a panic of a function that package guard calls.
func (r *run) reportPanic(function string, value any, stack []byte) {
	r.events.Note(slog.LevelError, function+" panicked", []slog.Attr{slog.String("group", r.sub.Group)},
		[]slog.Attr{slog.String("panic", verdict.Show(value)), slog.String("stack", string(stack))})
}

// errorAttr returns an attribute that logs omit if err is nil.
func errorAttr(key string, err error) slog.Attr {
	if err == nil {
		return slog.Attr{}
	}
	return slog.Any(key, err)
}

func (r *run) logPanic(ctx context.Context, text, messageID string, value any, stack []byte) {
	r.log.LogAttrs(ctx, slog.LevelError, text,
		slog.String("message_id", messageID), slog.String("panic", verdict.Show(value)), slog.String("stack", string(stack)))
}

// A StopReport counts the deliveries that ended after Run's context had ended.
type StopReport struct {
	Acked     int           // consumed
	Retried   int           // failed, postponed, discarded or dead letters
	Released  int           // returned to the queue, except those in Cancelled
	Cancelled int           // returned to the queue because their handlers did not finish in time
	Unsettled int           // LeaseLost, Unsettled or PerhapsSettled; most are delivered again
	Took      time.Duration // from the end of Run's context to the return of Run
}

func (s *StopReport) count(it *item) {
	switch it.disposition {
	case Acked:
		s.Acked++
	case Retried, DeadLettered, Parked, Snoozed, Reconsumed, Discarded:
		s.Retried++
	case Released:
		if it.cancelled {
			s.Cancelled++
		} else {
			s.Released++
		}
	default:
		s.Unsettled++
	}
}

func (h *hand) stopReport() StopReport {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.report
}

var (
	// ErrLeaseLost is the cause of a handler's context when the consumer no longer owns the
	// message: the invisible time ended and could not be extended, or the server rejected the
	// receipt handle. The server delivers the message again. The handler's result is ignored.
	ErrLeaseLost = errors.New("the invisible time of the delivery has ended")

	// ErrShutdown is the cause of a handler's context when the handler is still running nine tenths
	// of PushOptions.ShutdownTimeout after the end of Run's ctx.
	ErrShutdown = errors.New("the consumer is shutting down")
)

// A PanicError is a panic of a handler, or of a method of the error that the handler returned, for
// example of a typed nil. It is a failure like any other: the message is retried.
type PanicError struct {
	// Value is the value of the panic. It is a text if the value's own methods panic or end the
	// goroutine.
	Value any
	Stack []byte // of the handler
}

// Error returns the value of the panic; the stack is in Stack.
func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// RetryIn returns an error for a handler that retries the message after d instead of the retry
// schedule's delay. The attempt counts, and after the last attempt the message is not retried. The
// returned error may be wrapped or joined. err is the failure; it may be nil.
//
// Address settings of a tidegate broker about redelivery override d, and Outcome.Delay reports
// their delay. A negative d means 0. A d of more than 12 h, which no server accepts, means 12 h.
func RetryIn(d time.Duration, err error) error {
	return &verdict.RetryIn{Delay: max(0, d), Err: err}
}

// Snooze returns an error for a handler that postpones the message: it is delivered again after d
// with the same attempt number. The returned error may be wrapped or joined. A negative d means 0,
// and more than 12 h means 12 h.
//
// Servers that do not take [transport.Snooze], such as RocketMQ, deliver the message after d
// with the next attempt number. Outcome.AttemptSpent is true then.
func Snooze(d time.Duration) error { return &verdict.Snooze{Delay: max(0, d)} }

// DeadLetterNow returns an error for a handler that makes the message a dead letter at once, even
// if attempts are left. The returned error may be wrapped or joined. The text of err is the reason
// of the dead letter; err may be nil.
//
// If this is the message's last attempt, the on_exhausted setting of a FIFO group of a tidegate
// broker applies instead. It can block or park the message group; Outcome.Disposition is [Retried]
// or [Parked] then.
func DeadLetterNow(err error) error { return &verdict.DeadLetter{Err: err} }

// Reconsume returns an error for a handler that consumes the message later, as Apache Pulsar's
// clients do. The returned error may be wrapped or joined. err is the failure; it may be nil.
//
// v is a transport.RetryTopic or a transport.NegativeAck. With another kind, or a set of kinds, the
// returned error is a failure like others. The Reason of v is not used: the reason is the text of
// err.
//
// A RetryTopic goes to the group's retry topic: the delivery is acknowledged, and the message is
// delivered as a new message of the retry topic after v.Delay, or after the delay of v.Level.
// Without either it is level 1 for a message's first retry, level 2 for its second, and so on.
// After the group's maximum of retries the message becomes a dead letter. The group needs retry
// topics (RetryTopic.Enabled), and the consumer's credentials need the right to send to them.
//
// With a NegativeAck the server delivers the same message again, with the next attempt number. The
// group's maximum of attempts and the redelivery delay of address settings do not apply; the
// group's NegativeAck settings can set another maximum.
//
// If the server rejects v or the group has no retry topics, the message is retried in its
// own topic after the same delay, 0 to 12 h, as by [RetryIn]. Outcome.Disposition is [Retried]
// then, and Outcome.SettleErr has the reason. On a RocketMQ this is always the case: there the
// levels are 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h, and a negative
// acknowledgement without a delay is retried after 1 min.
//
// Source: TDMQ for Apache Pulsar, message retry and dead letter mechanisms: reconsumeLater,
// negativeAcknowledge.
func Reconsume(v transport.Verdict, err error) error {
	return &verdict.Reconsume{Verdict: v, Err: err}
}

// errReconsume is the reason why a message is retried in its own topic.
func errReconsume(d *tidegate.Delivery) error {
	return &tidegate.Error{
		Op: "Reconsume", Subject: d.Topic, Endpoint: d.Endpoint, Code: tidegate.CodeNotImplemented,
		Message: "the server supports neither retry topics nor negative acknowledgements; the message is retried in its own topic",
	}
}
