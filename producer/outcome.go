package producer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/producer/internal/retry"
	"github.com/tidegate/tidegate/transport"
)

// An outcome is the result of one message in a request, and the decision after it.
type outcome struct {
	it       *item
	receipt  tidegate.Receipt
	err      error
	lane     string // the endpoint of the request's lane; empty without one
	in       retry.Inputs
	decision retry.Decision
	limits   *retry.Limits // in effect since the decision; nil if they are unchanged
	ended    time.Time     // end of the attempt

	operation string
	skipped   bool // the message had ended before
	waiting   bool // the message was not in the request; it waited for the lane
	gone      bool // a waiting message that ended here and did not move to the spool
}

// decide sets the decisions. After a throttled attempt it first waits for the server's settings, if
// they are needed and unknown. That wait is deducted from the backoff wait. No lock is held.
func (t *topic) decide(r *request, outs []outcome) {
	throttled, transient := false, false
	for i := range outs {
		switch o := &outs[i]; tidegate.Classify(o.err) {
		case tidegate.ClassThrottled:
			throttled = true
		case tidegate.ClassTransient:
			transient = true
		}
	}
	p := t.p
	settings := p.settings(t)
	switch {
	case throttled && (p.opts.MaxAttempts == 0 || p.opts.Backoff == nil):
		ctx := p.life
		if r.Own {
			ctx = r.Items[0].Of.ctx // its caller carries out the request, and waits here
		}
		var err error
		if settings, err = p.awaitedSettings(ctx, t); err != nil { // those before remain in effect
			p.events.Note(slog.LevelDebug, "a throttled send continues without the settings of the server",
				[]slog.Attr{slog.String("topic", t.name)}, []slog.Attr{slog.Any("error", err)})
		}
	case transient && p.opts.MaxAttempts == 0:
		// Retries after transient failures are immediate, so the send does not wait for the
		// settings: the server that failed may be the one to respond.
		p.requestSettingsLater(t)
	}
	limits := p.limits(settings)
	now := time.Now()
	var drawn retry.Draws // messages that were throttled together are retried together
	for i := range outs {
		o := &outs[i]
		if o.skipped {
			continue
		}
		o.limits = &limits
		o.in.MaxAttempts, o.in.Elapsed, o.in.ContextEnded = limits.MaxAttempts, now.Sub(o.ended), o.it.ctx.Err() != nil
		o.in.Closed = p.closed.Load()
		o.in.Spools = p.spooler != nil && o.it.origin != fromSpool
		if o.in.Forbidden && o.in.Spools {
			t.mu.Lock()
			o.in.Permitted = slices.Contains(t.permits, o.endpoint())
			t.mu.Unlock()
		}
		o.in.Draw(&limits, &drawn)
		o.decision = p.nextStep(&o.in)
		t.alert(o)
	}
}

// alert logs that the server rejects what it accepted before. No lock is held.
func (t *topic) alert(o *outcome) {
	var event string
	e, ok := errors.AsType[*tidegate.Error](o.err)
	switch {
	case o.decision.Stop == retry.Spool:
		event = "the server forbids sends to a topic that it accepted before; they move to the spool"
	case ok && e.Lapsed:
		event = "the server rejects credentials that it accepted before; sends are retried"
	default:
		return
	}
	t.p.events.Note(slog.LevelWarn, event, []slog.Attr{slog.String("topic", t.name)}, []slog.Attr{slog.Any("error", o.err)})
}

// errRevoked is the cause of messages that move to the spool because of a missing permission.
var errRevoked = errors.New("the topic's permission, which earlier sends had, is gone")

// nextStep is retry.Decide with the budget, from which it takes the retry.
func (p *Producer) nextStep(in *retry.Inputs) retry.Decision {
	d := retry.Decide(*in)
	if d.Stop == retry.Continue && d.Class != tidegate.ClassOK && p.opts.Budget != nil && !p.opts.Budget.Spend(p.opts.Priority) {
		d = retry.Decision{Class: d.Class, Stop: retry.Budget}
	}
	return d
}

// apply carries out the decision about a message after an attempt in lane l, nil if it had none. It
// returns true if the message has ended.
// Messages of the spooled groups move to the spool instead of being retried. The lock is held.
func (t *topic) apply(o *outcome, l *lane, spooled []string, now time.Time) bool {
	it, d := o.it, o.decision
	if o.limits != nil {
		it.limits = *o.limits
	}
	switch {
	case d.Stop != retry.Continue:
		return t.end(it, it.stopped(o), now)
	case d.Class == tidegate.ClassOK:
		t.good.Store(true)
		t.down = false
		if from := o.endpoint(); t.p.spooler != nil && !slices.Contains(t.permits, from) {
			t.permits = append(t.permits, from)
		}
		it.receipt = o.receipt
		it.receipt.Attempts = it.history.Attempts
		it.receipt.MessageID = cmp.Or(o.receipt.MessageID, it.Message.ID)
		it.receipt.Topic = cmp.Or(o.receipt.Topic, it.Message.Topic)
		return t.end(it, nil, now)
	case slices.Contains(spooled, it.Message.OrderKey()):
		return t.end(it, it.fail(StopSpool, errBehind), now)
	}
	it.Avoid, it.Due = o.endpoint(), time.Time{}
	delay := d.Delay
	if d.Source == retry.FromPushBack && l != nil {
		// Another server can have the message after the delay of the policy.
		it.By, it.Until = l, o.ended.Add(delay)
		delay = o.in.PolicyDelay
	}
	if delay > 0 {
		it.Due = o.ended.Add(delay)
	}
	return false
}

// groupsToSpool returns the message groups with a message that will move to the spool. The later
// messages of such a group must follow it.
func (t *topic) groupsToSpool(outs []outcome) (groups []string) {
	for i := range outs {
		o := &outs[i]
		group := o.it.Message.OrderKey()
		if group == "" || o.it.state != pending || o.decision.Stop == retry.Continue || slices.Contains(groups, group) {
			continue
		}
		if t.spools(o.it, o.it.stopped(o)) {
			groups = append(groups, group)
		}
	}
	return groups
}

// stopped returns the error of a message whose decision is a stop.
func (it *item) stopped(o *outcome) *SendError {
	switch d := o.decision; d.Stop {
	case retry.Context:
		return it.contextEnded()
	case retry.Closed:
		if o.in.Closed {
			return it.fail(StopClosed, errProducerClosed)
		}
		return it.fail(StopClosed, nil) // the transport's error is part of it already
	case retry.Deadline:
		return it.tooLate(d.Needed, o.in.Remaining, nil)
	case retry.Exhausted:
		var cause error
		if o.in.NotConnected {
			what := "no connection to the server"
			switch {
			case o.in.ProxyAlone:
				what = "no connection from the proxy to its broker"
			case o.in.Lapsed:
				what = "the credentials are rejected"
			}
			cause = fmt.Errorf("%s for %v", what, o.in.UnconnectedFor.Round(time.Second))
		}
		return it.fail(StopExhausted, cause)
	case retry.Spool:
		return it.fail(StopSpool, errRevoked)
	default:
		return it.fail(d.Stop, nil)
	}
}

// lanePause is the pause of a throttled lane if the server does not request one and the first
// delay of the policy is not shorter. A throttled message waits for its own delay beside that, so
// the next probe is another message, and a producer never makes more attempts than its messages'
// delays allow.
//
// A server that throttles at random, because other clients keep its queue full, accepts few
// messages of a client that seldom tries. One that accepts a tenth of the attempts accepted 88 % of
// the messages that the delays allow with this pause, 63 % with 100 ms, and 21 % with 400 ms. One
// that accepts a fifth after 100 ms each accepted 90 % of the messages that a first delay of 10 ms
// allows with a pause of 10 ms, and 63 % with the delays of the throttled messages
// (TestBusyServerAcceptsWhatTheBackoffAllows).
const lanePause = 50 * time.Millisecond

// endpoint returns the endpoint of the receipt or of the error, or that of the lane if they have
// none.
func (o *outcome) endpoint() string {
	if o.err == nil && o.receipt.Endpoint != "" {
		return o.receipt.Endpoint
	}
	if e, ok := errors.AsType[*tidegate.Error](o.err); ok && e.Endpoint != "" {
		return e.Endpoint
	}
	return o.lane
}

// adapt updates the lane of a request. It returns the waiting messages that the throttled lane
// ends: a pause that a message waits for counts as a throttled attempt of the message, at the pace
// of its own backoff, unless the message is untried. The lock is held.
func (t *topic) adapt(r *request, outs []outcome, now time.Time) (ended []outcome) {
	l := r.Lane
	if r.Call.decides {
		l.Deciding = false
	}
	var throttle *outcome
	var pause time.Duration
	for i := range outs {
		o := &outs[i]
		switch {
		case o.skipped:
		case o.err == nil:
			l.Succeeded(r)
		case retry.Unreached(o.err): // the server knows nothing of it
		case errors.Is(o.err, errAttemptTimeout):
			l.TimedOut(r)
		case o.decision.Class == tidegate.ClassThrottled:
			// This is enough for messages that were not throttled themselves.
			d := tidegate.RetryAfter(o.err)
			if d == 0 && t.p.observer == nil {
				d = min(o.it.limits.Backoff.Delay(0), lanePause)
			}
			if throttle == nil || d < pause {
				throttle, pause = o, d
			}
		}
	}
	if throttle == nil || !l.Pause(r, throttle.ended, pause, throttle.err) {
		return nil
	}
	for _, queued := range t.queue.Behind(l, now) {
		it := queued.Of
		// It followed another one to the spool, is about to leave, or its pause is counted already.
		if it.state != pending || it.ctx.Err() != nil || it.history.PauseCounted(now) {
			continue
		}
		untried := t.p.spooler == nil && it.history.Untried(now) // else nothing else can have the message meanwhile
		if !untried {
			it.history.CountPause(now, &it.limits)
		}
		deadline, _ := it.ctx.Deadline() // zero if there is none
		o := outcome{it: it, err: throttle.err, ended: now, waiting: true, in: it.history.Inputs(&it.limits, throttle.err, now, deadline)}
		o.in.PolicyDelay = max(0, l.PausedUntil.Sub(now))
		o.in.RetryAfter = 0
		if o.decision = retry.Decide(o.in); o.decision.Stop == retry.Continue || untried && o.decision.Stop != retry.Deadline {
			continue
		}
		why := fmt.Errorf("the server throttles the topic: %w", throttle.err)
		e := it.fail(o.decision.Stop, why)
		if o.decision.Stop == retry.Deadline {
			e = it.tooLate(o.decision.Needed, o.in.Remaining, why)
		}
		o.gone = t.endWithGroup(it, e, now)
		ended = append(ended, o)
	}
	return ended
}

// Recall cancels the delayed message with the recall handle of its receipt, and returns the
// message's ID. Recall is retried like a send. It fails if the transport is no transport.Recaller.
// The error, a [*SendError], matches tidegate.ErrNotFound if the message was delivered or recalled
// before. After a lost response, an earlier attempt of the same call may have recalled it. The
// error's MaybeStored is false.
func (p *Producer) Recall(ctx context.Context, topic, handle string) (messageID string, err error) {
	it := newItem(ctx, &tidegate.Message{Topic: topic})
	failed := func(e *SendError) error {
		e.op, e.MaybeStored = "recall from", false // a recall stores nothing
		return e
	}
	if err := tidegate.ValidateTopic(topic); err != nil {
		return "", failed(it.fail(StopInvalid, err))
	}
	if handle == "" {
		return "", failed(it.fail(StopInvalid, &tidegate.Error{
			Subject: "handle", Code: tidegate.CodeBadRequest, Message: "it is empty; give the RecallHandle of the receipt",
		}))
	}
	recaller, ok := p.transport.(transport.Recaller)
	if !ok {
		return "", failed(it.fail(StopPermanent, unsupported("recalling messages", "Recaller")))
	}
	if !p.ledger.BeginCall() {
		return "", failed(it.fail(StopClosed, errProducerClosed))
	}
	defer p.ledger.EndCall()
	it.topic = p.use(topic)
	defer it.topic.release()
	it.limits = p.limits(p.settings(it.topic))
	e := p.repeat(it, recallOperation, func(ctx context.Context) (endpoint string, err error) {
		messageID, err = recaller.Recall(ctx, topic, handle)
		return "", err // the transport reports the endpoint only with an error
	})
	if e != nil {
		return "", failed(e)
	}
	return messageID, nil
}

// repeat makes a call outside the queue, on the caller's goroutine, until the call succeeds or the
// policy stops it. The call returns its endpoint if that is known. repeat runs between BeginCall
// and EndCall of the ledger, so Shutdown waits for it.
func (p *Producer) repeat(it *item, op string, call func(ctx context.Context) (endpoint string, err error)) *SendError {
	if !p.ledger.HoldCall() {
		return it.fail(StopClosed, errProducerClosed)
	}
	defer p.ledger.Running.Done()
	ctx, cancel := context.WithCancel(it.ctx)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	for {
		if it.ctx.Err() != nil {
			return it.contextEnded()
		}
		began := time.Now()
		a := newScope(ctx, true, it.history.Attempts > 0, it.Share(began))
		o := outcome{it: it, operation: op}
		o.lane, o.err = call(a.ctx)
		a.cancel()
		o.ended = time.Now()
		o.in = it.record(o.err, began, o.ended)
		o.in.HalfMessage = op == beginOperation && !unsent(o.err)
		o.in.Closed = p.life.Err() != nil
		o.in.Draw(&it.limits, new(retry.Draws))
		o.decision = p.nextStep(&o.in)
		it.topic.observe(1, &o, began)
		switch d := o.decision; {
		case d.Class == tidegate.ClassOK:
			return nil
		case d.Stop == retry.Continue:
			if backoff.Sleep(ctx, time.Until(o.ended.Add(d.Delay))) == nil {
				continue
			}
			if it.ctx.Err() != nil {
				return it.contextEnded()
			}
			return it.fail(StopClosed, errProducerClosed)
		}
		return it.stopped(&o)
	}
}

// merge applies the precedence: client, server, default.
func merge(o Options, s transport.ProducerSettings) Settings {
	e := Settings{
		MaxAttempts: defaultMaxAttempts, MaxAttemptsFrom: fromDefault,
		Backoff: backoff.Default(), BackoffFrom: fromDefault,
		MaxBodySize: tidegate.MaxBodySize, MaxBodySizeFrom: fromDefault,
	}
	switch {
	case o.MaxAttempts > 0:
		e.MaxAttempts, e.MaxAttemptsFrom = o.MaxAttempts, fromClient
	case s.MaxAttempts > 0:
		e.MaxAttempts, e.MaxAttemptsFrom = min(s.MaxAttempts, maxServerAttempts), fromServer
	}
	switch {
	case o.Backoff != nil:
		e.Backoff, e.BackoffFrom = o.Backoff, fromClient
		if own, ok := o.Backoff.(backoff.Exponential); ok {
			e.Backoff = own.Filled() // the values in effect
		}
	case s.Backoff != nil:
		e.Backoff, e.BackoffFrom = floored{s.Backoff}, fromServer
	}
	switch {
	case o.MaxBodySize > 0:
		e.MaxBodySize, e.MaxBodySizeFrom = o.MaxBodySize, fromClient
	case s.MaxBodySize > 0:
		e.MaxBodySize, e.MaxBodySizeFrom = s.MaxBodySize, fromServer
	}
	return e
}

const (
	maxServerAttempts = 16
	minServerDelay    = 10 * time.Millisecond
)

// floored is a server's backoff with a lower bound that protects the server.
type floored struct{ backoff.Policy }

// Delay implements backoff.Policy.
func (f floored) Delay(n int) time.Duration { return max(minServerDelay, f.Policy.Delay(n)) }

const (
	settingsMaxAge = 30 * time.Second // maximum age of settings before they are requested again
	settingsRetry  = 5 * time.Second  // wait after a failed request
	settingsWait   = time.Second      // longest wait of a send for settings
	settingsLimit  = 5 * time.Second  // timeout of a request that no send waits for
)

// errSettingsWait is the cause when one of these times is over.
var errSettingsWait = fmt.Errorf("%w: the server sent no settings in time", tidegate.ErrUnavailable)

// An answer is the result of a settings request.
type answer struct {
	settings Settings // in effect; the earlier ones if err is not nil
	err      error
	until    time.Time // time of the next request
}

// settings returns the known settings without a request.
func (p *Producer) settings(t *topic) Settings {
	if a := t.answer.Load(); a != nil {
		return a.settings
	}
	return p.assumed
}

// askedSettings requests the settings if the known ones are old. Only one goroutine sends a request
// at a time; the others wait for its result. The settings in effect are returned also with an
// error.
func (p *Producer) askedSettings(ctx context.Context, t *topic) (Settings, error) {
	if a := t.fresh(); a != nil {
		return a.settings, a.err
	}
	select {
	case t.requesting <- struct{}{}:
		defer func() { <-t.requesting }()
	case <-ctx.Done():
		return p.settings(t), context.Cause(ctx)
	}
	if a := t.fresh(); a != nil {
		return a.settings, a.err // another goroutine has requested them in the meantime
	}
	return p.requestSettings(ctx, t)
}

// fresh returns the last result, or nil if it is too old or there is none.
func (t *topic) fresh() *answer {
	if a := t.answer.Load(); a != nil && time.Now().Before(a.until) {
		return a
	}
	return nil
}

// requestSettings sends a settings request. The caller holds the token in t.requesting.
func (p *Producer) requestSettings(ctx context.Context, t *topic) (Settings, error) {
	pushed, err := p.transport.ProducerSettings(ctx, t.name)
	if err != nil && ctx.Err() != nil && !errors.Is(context.Cause(ctx), errSettingsWait) {
		return p.settings(t), err // the end of the caller's ctx is no failure of the server
	}
	a := &answer{err: err}
	if err == nil {
		a.settings, a.until = merge(p.opts, pushed), time.Now().Add(settingsMaxAge)
	} else {
		p.log.Debug("the server's settings could not be read", "topic", t.name, "error", err)
		a.settings, a.until = p.settings(t), time.Now().Add(settingsRetry)
	}
	t.answer.Store(a)
	return a.settings, a.err
}

// awaitedSettings is askedSettings for a send. The send waits for at most a second, or
// AttemptTimeout if that is shorter, and not longer than until Close.
func (p *Producer) awaitedSettings(ctx context.Context, t *topic) (Settings, error) {
	if a := t.fresh(); a != nil {
		return a.settings, a.err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, min(p.opts.AttemptTimeout, settingsWait), errSettingsWait)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	return p.askedSettings(ctx, t)
}

// requestSettingsLater requests the settings in another goroutine, which Close waits for. It
// does nothing if the last result is fresh or a request is under way.
func (p *Producer) requestSettingsLater(t *topic) {
	if t.fresh() != nil {
		return
	}
	select {
	case t.requesting <- struct{}{}:
	default:
		return
	}
	if t.fresh() != nil || !p.ledger.Hold() { // fresh: a request has ended since
		<-t.requesting
		return
	}
	go func() {
		defer p.ledger.Running.Done()
		defer func() { <-t.requesting }()
		ctx, cancel := context.WithTimeoutCause(p.life, settingsLimit, errSettingsWait)
		defer cancel()
		_, _ = p.requestSettings(ctx, t) // the result is stored in t
	}()
}
