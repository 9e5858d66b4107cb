package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// ReconsumeLater is [Broker.Reconsume] without mode.Negative, and returns the new message.
func (b served) ReconsumeLater(ctx context.Context, d *tidegate.Delivery, m transport.ReconsumeMode) (serving.Reconsumed, error) {
	r, err := b.reconsumeLater(ctx, d, m)
	return r, refusal.WithOp("ReconsumeLater", err)
}

func (b *Broker) reconsumeLater(ctx context.Context, d *tidegate.Delivery, mode transport.ReconsumeMode) (serving.Reconsumed, error) {
	end, err := b.calls.beginWith(ctx)
	if err != nil {
		return serving.Reconsumed{}, err
	}
	defer end()
	s, h, err := b.locate(d)
	if err != nil {
		return serving.Reconsumed{}, err
	}
	out, err := b.letters.ReconsumeLater(ctx, s, h, mode)
	if err != nil {
		return serving.Reconsumed{}, err
	}
	return serving.Reconsumed(out), nil
}

// Reconsume acknowledges a delivery and stores its message again, as a new message of the group's
// retry topic with a delivery time. After the maximum of retries it stores the message in the
// group's dead letter topic. A dead letter, or a retry of another group, is retried like a new
// message of the topic that it is received from.
//
// With mode.Negative, Reconsume delivers the same message again after the delay, and stores no new
// message; a delay of 0 means the group's NegativeAck.Delay. The group's MaxAttempts and the delays
// of address settings do not apply. After NegativeAck.MaxRedeliveries the message becomes a dead
// letter.
//
// Reconsume returns the fate of the message when all of this is on disk. If the process ends in
// between, the group receives only the new message. If ctx ends while Reconsume waits for the disk,
// the change may have happened, and the error has MaybeStored set. The error is
//
//   - 40000 if the group has no retry topics and mode.Negative is not set, or if mode has both
//     Delay and Level, or both Level and Negative,
//   - 40011 if the delay of a negative acknowledgement is negative or above 864 000 s, and 40012 if
//     the delay of another retry is invalid,
//   - 40013 if the handle is not valid any more.
func (b *Broker) Reconsume(ctx context.Context, d *tidegate.Delivery, mode transport.ReconsumeMode) (transport.RetryResult, error) {
	const op = "Reconsume"
	if mode.Negative {
		if mode.Level != 0 {
			return transport.RetryResult{}, refusal.WithOp(op, refusal.New(tidegate.CodeBadRequest, "level", "it is %d, but a negative acknowledgement has none; give a delay", mode.Level))
		}
		out, err := b.negativeAck(ctx, d, mode.Delay)
		if err != nil {
			return transport.RetryResult{}, refusal.WithOp(op, err)
		}
		return retryResult(out), nil
	}
	r, err := b.reconsumeLater(ctx, d, mode)
	switch {
	case err != nil:
		return transport.RetryResult{}, refusal.WithOp(op, err)
	case r.DeadLetter:
		return transport.RetryResult{Fate: transport.FateDeadLetter}, nil
	case r.DeliverAt.IsZero():
		return transport.RetryResult{Fate: transport.FateAgain}, nil
	}
	return transport.RetryResult{Fate: transport.FateAgain, Delay: max(time.Until(r.DeliverAt), 0)}, nil
}

func (b *Broker) negativeAck(ctx context.Context, d *tidegate.Delivery, delay time.Duration) (consume.Outcome, error) {
	if delay < 0 || delay > settings.MaxReconsumeDelay {
		return consume.Outcome{}, refusal.New(tidegate.CodeIllegalInvisibleTime, "delay", "it is %v; give up to %v, or 0 for the group's", delay, settings.MaxReconsumeDelay)
	}
	end, err := b.calls.beginWith(ctx)
	if err != nil {
		return consume.Outcome{}, err
	}
	defer end()
	s, h, err := b.locate(d)
	if err != nil {
		return consume.Outcome{}, err
	}
	if delay == 0 {
		delay = time.Duration(s.Group().Settings().NegativeAck.Delay)
	}
	return s.Settle(ctx, h, consume.Settlement{Event: consume.EventNegativeAck, After: delay})
}
