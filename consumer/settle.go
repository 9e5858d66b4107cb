package consumer

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/transport"
)

const (
	// settleTimeout bounds one settlement attempt.
	settleTimeout = 3 * time.Second

	// lastTry bounds the settlement of a delivery whose handler returned after the shutdown time.
	lastTry = time.Second
)

// settleBackoff paces repeated settlements.
var settleBackoff = backoff.Exponential{
	Initial: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, Max: 5 * time.Second, MinConnectTimeout: 20 * time.Second,
}

// conclude sets the disposition of the delivery after its last settlement attempt, which ended with
// err.
func (it *item) conclude(res transport.RetryResult, err error) {
	it.disposition, it.delay, it.settleErr = it.State.Conclude(res, err)
}

// carryOut starts to settle a delivery. It does not block.
func (r *run) carryOut(it *item) {
	switch it.Decision.Act {
	case verdict.Forget:
		r.conclude(it, transport.RetryResult{}, it.lostErr)
	case verdict.Ack, verdict.Discard:
		r.acknowledge(it)
	default:
		r.settlers.Do(func() {
			ctx, cancel := r.tryContext(it.grace)
			defer cancel()
			res, err := r.transport.Settle(ctx, &it.current, it.Decision.Request())
			r.attempted(it, res, err)
		})
	}
}

// attempted handles the result of a settlement attempt. Failed attempts are repeated until the
// lease ends, because a missing acknowledgement causes a redelivery.
func (r *run) attempted(it *item, res transport.RetryResult, err error) {
	harmless := !it.Decision.Is(transport.DeadLetter) || r.capsOf(it.current.Endpoint).IdempotentDeadLetter
	r.goOn(it, res, it.After(err, harmless, it.unsure))
}

func (r *run) goOn(it *item, res transport.RetryResult, next verdict.Step) {
	switch next {
	case verdict.Finished:
		r.conclude(it, res, nil)
	case verdict.FindHandle:
		r.settlers.Do(func() { r.goOn(it, res, it.Found(r.find(it))) })
	case verdict.TryAgain:
		if it.Last == nil { // the valid handle is known now
			r.carryOut(it)
			return
		}
		delay := max(settleBackoff.Delay(it.Tries), verdict.PushBack(it.Last))
		it.Tries++
		if at := time.Now().Add(delay); at.Before(it.lease.Until) && !r.late() {
			r.hand.later(it, at)
			if r.late() { // since the look at it
				r.concludePostponed()
			}
			return
		}
		r.conclude(it, res, it.Last)
	case verdict.RetryInstead:
		r.warn("the server rejected the handler's result; retrying the message", it, it.Last)
		it.Refused = it.Last
		it.Decision = verdict.Again(it.current.Attempt, it.Failure, r.rulesFor(it))
		r.carryOut(it)
	case verdict.Failed:
		r.conclude(it, res, it.Last)
	}
}

// find finds the valid handle by repeating the extension whose response was lost. It does not
// extend the lease.
func (r *run) find(it *item) error {
	ctx, cancel := r.tryContext(it.grace)
	defer cancel()
	handle, err := r.change(ctx, it, max(time.Until(it.lease.Until), time.Millisecond))
	it.takeOver(extension{handle: handle, err: err})
	return err
}

// change extends an invisible time. It can be repeated after a lost response, because the server
// remembers the replaced handle. RocketMQ does not; there a lost response to an extension causes a
// redelivery.
func (r *run) change(ctx context.Context, it *item, d time.Duration) (handle string, err error) {
	return r.transport.Extend(ctx, &it.current, d, it.unsure)
}

// tryContext returns the context of one settlement attempt. It outlives Run's context. grace is the
// latest grace of its deliveries.
func (r *run) tryContext(grace time.Time) (context.Context, context.CancelFunc) {
	if grace.IsZero() {
		return context.WithTimeout(r.settling, settleTimeout)
	}
	return context.WithDeadline(r.detached, grace)
}

// late reports whether the shutdown time is over. Only deliveries whose handlers return after it
// have a further settlement attempt, until item.grace.
func (r *run) late() bool { return r.settling.Err() != nil }

// concludePostponed ends the deliveries whose settlement was to be repeated.
func (r *run) concludePostponed() {
	for _, it := range r.hand.postponed() {
		r.conclude(it, transport.RetryResult{}, it.Last)
	}
}

// conclude ends a delivery.
func (r *run) conclude(it *item, res transport.RetryResult, err error) {
	it.conclude(res, err)
	r.observe(it)
	r.follow(r.hand.removeSettled(time.Now(), it))
}

// Reconsume returns an error for a handler that consumes the message later, as Apache Pulsar's
// clients do. The returned error may be wrapped or joined. err is the failure; it may be nil.
//
// v is a transport.RetryTopic or a transport.NegativeAck. With another kind the returned error is a
// failure like others. The Reason of v is not used: the reason is the text of err.
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

// Settle ends the delivery by a verdict, in one attempt, and returns the fate of the message where
// the server reports it. The receipt handle of d is invalid afterwards. On RocketMQ, repeating a
// failed call with a transport.DeadLetter can create a second dead letter.
//
// The error matches tidegate.ErrInvalidHandle if the invisible time is over. Its code is 50100 if
// the server does not take the verdict ([transport.Capabilities].Verdicts).
func (s *Simple) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (result transport.RetryResult, err error) {
	err = s.settle(ctx, d, func() (err error) {
		result, err = s.transport.Settle(ctx, d, v)
		return err
	})
	return result, err
}
