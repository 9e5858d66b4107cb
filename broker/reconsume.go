package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A Reconsumed is the result of Broker.ReconsumeLater.
type Reconsumed struct {
	Topic     string    `json:"topic"`               // new topic of the message: the group's retry topic or dead letter topic
	MessageID string    `json:"message_id"`          // new ID of the message
	Times     int       `json:"reconsume_times"`     // retries, including this one
	DeliverAt time.Time `json:"deliver_at,omitzero"` // delivery time; zero means at once

	// DeadLetter is set if the message had the maximum of retries.
	DeadLetter bool `json:"dead_letter"`
}

// ReconsumeLater acknowledges a delivery and stores its message again, as a new message of the
// group's retry topic with a delivery time. After the maximum of retries it stores the message in
// the group's dead letter topic. A dead letter, or a retry of another group, is retried like a new
// message of the topic that it is received from.
//
// It returns when both are on disk. If the process ends in between, the group receives only the new
// message. If ctx ends while ReconsumeLater waits for the disk, both may have happened, and the
// error has MaybeStored set. The error is 40000 if the group has no retry topics, and 40013 if the
// handle is not valid any more.
func (b *Broker) ReconsumeLater(ctx context.Context, d *tidegate.Delivery, m settings.ReconsumeMode) (Reconsumed, error) {
	r, err := b.reconsumeLater(ctx, d, m)
	return r, fail.WithOp("ReconsumeLater", err)
}

func (b *Broker) reconsumeLater(ctx context.Context, d *tidegate.Delivery, mode settings.ReconsumeMode) (Reconsumed, error) {
	end, err := b.calls.beginWith(ctx)
	if err != nil {
		return Reconsumed{}, err
	}
	defer end()
	s, h, err := b.locate(d)
	if err != nil {
		return Reconsumed{}, err
	}
	out, err := b.letters.ReconsumeLater(ctx, s, h, mode)
	if err != nil {
		return Reconsumed{}, err
	}
	return Reconsumed(out), nil
}

// NegativeAck reports that a message could not be consumed, and returns when this is on disk. The
// message is delivered again after the delay; 0 means the group's NegativeAck.Delay. No new message
// is stored. The group's MaxAttempts and the delays of address settings do not apply. After
// NegativeAck.MaxRedeliveries the message becomes a dead letter. The error is 40011 if the delay is
// negative or above 864 000 s, and 40013 if the handle is not valid any more.
func (b *Broker) NegativeAck(ctx context.Context, d *tidegate.Delivery, delay time.Duration) error {
	_, err := b.negativeAck(ctx, d, delay)
	return fail.WithOp("NegativeAck", err)
}

// Reconsume is [Broker.ReconsumeLater], or [Broker.NegativeAck] if mode.Negative is set. It returns
// the fate of the message. It returns the errors of these methods. The error is also 40000 if mode
// has both Delay and Level, or both Level and Negative.
func (b *Broker) Reconsume(ctx context.Context, d *tidegate.Delivery, mode transport.ReconsumeMode) (transport.RetryResult, error) {
	const op = "Reconsume"
	if mode.Negative {
		if mode.Level != 0 {
			return transport.RetryResult{}, fail.WithOp(op, fail.New(tidegate.CodeBadRequest, "level", "it is %d, but a negative acknowledgement has none; give a delay", mode.Level))
		}
		out, err := b.negativeAck(ctx, d, mode.Delay)
		if err != nil {
			return transport.RetryResult{}, fail.WithOp(op, err)
		}
		return retryResult(out), nil
	}
	r, err := b.reconsumeLater(ctx, d, settings.ReconsumeMode{Delay: mode.Delay, Level: mode.Level})
	switch {
	case err != nil:
		return transport.RetryResult{}, fail.WithOp(op, err)
	case r.DeadLetter:
		return transport.RetryResult{Fate: transport.FateDeadLetter}, nil
	case r.DeliverAt.IsZero():
		return transport.RetryResult{Fate: transport.FateAgain}, nil
	}
	return transport.RetryResult{Fate: transport.FateAgain, Delay: max(time.Until(r.DeliverAt), 0)}, nil
}

func (b *Broker) negativeAck(ctx context.Context, d *tidegate.Delivery, delay time.Duration) (consume.Outcome, error) {
	if delay < 0 || delay > settings.MaxReconsumeDelay {
		return consume.Outcome{}, fail.New(tidegate.CodeIllegalInvisibleTime, "delay", "it is %v; give up to %v, or 0 for the group's", delay, settings.MaxReconsumeDelay)
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
