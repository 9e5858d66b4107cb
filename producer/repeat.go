package producer

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/producer/internal/retry"
	"github.com/tidegate/tidegate/transport"
)

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
