package producer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// Send sends msg and returns once the server has accepted it, an error has
// shown that it will not, the attempts are used up, or ctx has ended. Its
// error is always a [*SendError].
//
// It blocks during attempts, during the waits between them, and as long as the
// limiter does. Close ends it. If ctx ends it returns at once, with ctx's error and cause and the last attempt's error; it
// does not return earlier because a wait is longer than the time left. A ctx
// without a deadline lets a throttled send wait as long as its policy or the
// server says.
//
// Send does not change msg, nor keep it after the return. A message without an
// ID is given one, which all attempts carry and the receipt tells.
func (p *Producer) Send(ctx context.Context, msg *tidegate.Message) (tidegate.Receipt, error) {
	if msg == nil {
		return tidegate.Receipt{}, errNilMessage
	}
	s := send{producer: p, caller: ctx, msg: msg}
	sctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a, ok := p.begin(cancel)
	if !ok {
		return tidegate.Receipt{}, s.fail(Closed, fmt.Errorf("producer %w", tidegate.ErrClosed))
	}
	defer p.end(a)
	return s.run(sctx)
}

var errNilMessage = &SendError{Reason: Invalid, Cause: &tidegate.Error{
	Subject: "message", Code: tidegate.CodeBadRequest, Message: "it is nil",
}}

// A send is one call of Send or SendAsync.
type send struct {
	producer *Producer
	caller   context.Context //nolint:containedctx // it lives as long as the call; tells its end from Close
	msg      *tidegate.Message
	topic    *topic
	state    state
	last     error
	maybe    bool
}

func (s *send) run(ctx context.Context) (tidegate.Receipt, error) {
	if err := s.prepare(ctx); err != nil {
		return tidegate.Receipt{}, s.fail(Invalid, err)
	}
	msgs := []*tidegate.Message{s.msg}
	for {
		if ctx.Err() != nil {
			return tidegate.Receipt{}, s.ended(ctx)
		}
		if l := s.producer.opts.Limiter; l != nil {
			if err := ratelimit.Wait(ctx, l, 1); err != nil {
				if ctx.Err() != nil {
					return tidegate.Receipt{}, s.ended(ctx)
				}
				return tidegate.Receipt{}, s.fail(LimiterRefused, fmt.Errorf("limiter: %w", err))
			}
		}
		receipt, d, ended := s.attempt(ctx, msgs)
		switch d.reason {
		case NotStopped:
			if d.class == transport.OK {
				return receipt, nil
			}
		case Ended:
			return tidegate.Receipt{}, s.ended(ctx)
		case Closed:
			if s.state.closed {
				return tidegate.Receipt{}, s.ended(ctx)
			}
			return tidegate.Receipt{}, s.fail(Closed, nil) // the transport's error says it
		default:
			return tidegate.Receipt{}, s.fail(d.reason, nil)
		}
		if d.delay > 0 {
			if err := backoff.Sleep(ctx, time.Until(ended.Add(d.delay))); err != nil {
				return tidegate.Receipt{}, s.ended(ctx)
			}
		}
	}
}

// prepare checks the message and gives it an ID.
func (s *send) prepare(ctx context.Context) error {
	p := s.producer
	if err := tidegate.ValidateTopic(s.msg.Topic); err != nil {
		return err // before the topic is remembered
	}
	s.topic = p.topic(s.msg.Topic)
	settings := p.settings(s.topic)
	largest := settings.MaxBodySize
	if len(s.msg.Body) > largest && settings.MaxBodySizeFrom != Client {
		// Perhaps the server takes more than is known.
		var err error
		settings, err = p.awaitedSettings(ctx, s.msg.Topic, s.topic, p.opts.AttemptTimeout)
		if largest = settings.MaxBodySize; err != nil {
			largest = math.MaxInt // nobody could tell, so the attempt will, if ctx has not ended
		}
	}
	if err := s.msg.Validate(largest); err != nil {
		return err
	}
	if s.msg.ID == "" {
		c := *s.msg // a transport does not change what it sends, so this is copy enough
		c.ID = tidegate.NewMessageID()
		s.msg = &c
	}
	s.state.limits = limits{
		maxAttempts: settings.MaxAttempts, maxThrottles: p.opts.MaxThrottles,
		backoff: settings.Backoff, pacing: p.opts.Pacing,
	}
	return nil
}

// attempt makes one attempt, decides what follows, and tells the observer. It
// returns when the attempt ended too, which is what the delay counts from.
func (s *send) attempt(ctx context.Context, msgs []*tidegate.Message) (receipt tidegate.Receipt, d decision, ended time.Time) {
	p := s.producer
	start := time.Now()
	deadline, hasDeadline := ctx.Deadline()
	timeout := attemptTimeout(s.state, p.opts.AttemptTimeout, deadline.Sub(start), hasDeadline)
	actx, cancel := context.WithTimeoutCause(ctx, timeout, errAttemptTimeout)
	results := p.transport.Send(actx, msgs)
	cancel()
	ended = time.Now()

	if len(results) == 1 {
		receipt, s.last = results[0].Receipt, results[0].Err
	} else {
		s.last = &tidegate.Error{
			Op: "SendMessage", Subject: s.msg.Topic, MaybeStored: true,
			Message: fmt.Sprintf("the transport returned %d results for 1 message", len(results)),
		}
	}
	s.state.attempts++
	d = s.decide(ctx, timeout)
	if d.delay > 0 {
		d.delay = max(d.delay, time.Since(ended)) // the settings were waited for meanwhile
	}
	endpoint := receipt.Endpoint
	if s.last == nil {
		s.topic.good.Store(true)
		receipt.Attempts = s.state.attempts
		if receipt.MessageID == "" {
			receipt.MessageID = s.msg.ID
		}
		if receipt.Topic == "" {
			receipt.Topic = s.msg.Topic
		}
	} else if e, ok := errors.AsType[*tidegate.Error](s.last); ok {
		endpoint = e.Endpoint
	}
	maybe := maybeStored(s.last)
	s.maybe = s.maybe || maybe
	p.observe(ctx, Attempt{
		Topic: s.msg.Topic, MessageID: s.msg.ID, Number: s.state.attempts,
		Endpoint: endpoint, Duration: ended.Sub(start), Class: d.class, Err: s.last, MaybeStored: maybe,
		Stop: d.reason, Delay: d.delay, DelaySource: d.source,
	})
	return receipt, d, ended
}

// decide brings the state up to date and asks decide, the pure one.
func (s *send) decide(ctx context.Context, timeout time.Duration) decision {
	if s.last == nil {
		return decide(s.state, nil)
	}
	s.state.routeGood = s.topic.good.Load()
	s.look(ctx)
	class := classify(s.state, s.last)
	if class == transport.Throttled {
		s.state.throttles++
	}
	p, settings := s.producer, s.producer.settings(s.topic)
	switch {
	case class == transport.Throttled && (p.opts.MaxAttempts == 0 || p.opts.Backoff == nil):
		// The question counts into the wait that follows, and a server that
		// refuses does answer.
		settings, _ = p.awaitedSettings(ctx, s.msg.Topic, s.topic, timeout) // what is known holds where the server did not answer
		s.look(ctx)                                                         // the question may have taken time
	case class == transport.Transient && p.opts.MaxAttempts == 0:
		// Seed 004: "Messages are immediately retried upon failures". So nothing
		// is waited for: a server that has just failed may be the one to ask.
		p.askLater(s.msg.Topic, s.topic)
	}
	s.state.limits.maxAttempts, s.state.limits.backoff = settings.MaxAttempts, settings.Backoff
	return decide(s.state, s.last)
}

// look notes whether the send is still wanted.
func (s *send) look(ctx context.Context) {
	s.state.ended = ctx.Err() != nil || s.caller.Err() != nil
	s.state.closed = s.state.ended && s.caller.Err() == nil
}

// ended is the error of a send whose ctx ended or whose producer was closed.
func (s *send) ended(ctx context.Context) error {
	if err := s.caller.Err(); err != nil {
		return s.fail(Ended, endCause(err, context.Cause(s.caller)))
	}
	return s.fail(Closed, fmt.Errorf("producer %w", context.Cause(ctx)))
}

func (s *send) fail(r Reason, cause error) error {
	return &SendError{
		Topic: s.msg.Topic, MessageID: s.msg.ID, Reason: r,
		Attempts: s.state.attempts, Throttles: s.state.throttles, MaxAttempts: s.state.limits.maxAttempts,
		MaybeStored: s.maybe, Last: s.last, Cause: cause,
	}
}
