package broker

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/transport"
)

// Ack acknowledges deliveries. It returns when the acknowledgements are on disk. The result has an
// entry for each delivery, in their order: nil, or an error, which is 40013 if the handle is not
// valid any more. If ctx ends while Ack waits for the disk, the messages may be acknowledged, and
// the error has MaybeStored set. The same applies to [Broker.Retry],
// [Broker.ChangeInvisibleDuration], [Broker.DeadLetter], [Broker.Snooze] and NegativeAck.
func (b *Broker) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, len(ds))
	end, err := b.calls.beginWith(ctx)
	if err != nil {
		for i := range errs {
			errs[i] = refusal.WithOp("AckMessage", err)
		}
		return errs
	}
	defer end()
	writes := make([]*store.PendingWrite, len(ds))
	var few [8]consume.Handle
	handles := few[:0]
	for i := 0; i < len(ds); {
		s, h, err := b.locate(ds[i])
		if err != nil {
			errs[i] = refusal.WithOp("AckMessage", err)
			i++
			continue
		}
		handles = append(handles[:0], h)
		for i+len(handles) < len(ds) { // deliveries of one subscription are written together
			other, h, err := b.locate(ds[i+len(handles)])
			if err != nil || other != s {
				break
			}
			handles = append(handles, h)
		}
		write := s.Ack(handles, errs[i:])
		for range handles {
			errs[i], writes[i] = refusal.WithOp("AckMessage", errs[i]), write
			i++
		}
	}
	var waited *store.PendingWrite // of the entry before, which nearly always shares it
	var werr error
	for i, f := range writes {
		if errs[i] != nil {
			continue
		}
		if waited == nil || f != waited {
			if waited, werr = f, f.WaitContext(ctx); werr != nil {
				werr = refusal.WithOp("AckMessage", refusal.Unsettled(ctx, werr))
			}
		}
		errs[i] = werr
	}
	return errs
}

// Retry reports that consuming failed, and returns the fate of the message when it is on disk:
//
//   - After its last attempt the message becomes a dead letter, or is parked or blocked as
//     [settings.Group].OnExhausted decides. A reason that is not empty is recorded.
//   - If a push consumer received the message, and address settings with a redelivery setting match
//     its topic, the message is delivered again after their delay (0 by default).
//   - Otherwise the message is delivered again after the duration after, counted from now.
//     [transport.BySchedule] means the retry interval of the topic and group for this attempt.
//
// The error is 40011 if after is negative, or exceeds both MaxInvisibleDuration and the longest
// interval of the group and topic, and 40013 if the handle is not valid any more.
func (b *Broker) Retry(ctx context.Context, d *tidegate.Delivery, after time.Duration, reason string) (transport.RetryResult, error) {
	if longest := b.longestRetry(d, after); after != transport.BySchedule && (after < 0 || after > longest) {
		return transport.RetryResult{}, refusal.WithOp("Retry", refusal.IllegalInvisibleTime("delay", after, 0, longest))
	}
	out, err := b.settle(ctx, d, consume.Settlement{
		Event: consume.EventFail, After: after, BySchedule: after == transport.BySchedule, Reason: reason,
	})
	if err != nil {
		return transport.RetryResult{}, refusal.WithOp("Retry", err)
	}
	return retryResult(out), nil
}

// longestRetry returns the longest time that Retry accepts: the intervals of the settings can
// exceed MaxInvisibleDuration, and clients use these intervals.
func (b *Broker) longestRetry(d *tidegate.Delivery, after time.Duration) time.Duration {
	longest := b.opts.MaxInvisibleDuration
	if after <= longest {
		return longest
	}
	if s, _, err := b.locate(d); err == nil {
		longest = max(longest, s.Policy().LongestInterval())
	}
	return longest
}

// Release returns a delivery to the queue, as [Broker.ChangeInvisibleDuration] with 0 does.
func (b *Broker) Release(ctx context.Context, d *tidegate.Delivery) error {
	_, err := b.ChangeInvisibleDuration(ctx, d, 0)
	return err
}

// ChangeInvisibleDuration keeps the message invisible for dur from now on. It returns the handle
// that replaces d.Handle, when the change is on disk. A dur of 0 returns the message to the queue:
// for a simple consumer as a timeout, for a push consumer as a release, and the attempt does not
// count. A delivery ends at the latest MaxInvisibleDuration after it was handed out; changes do not
// extend this limit. The error is 40011 if dur is negative or exceeds the limit, and 40013 if the
// handle is not valid any more.
func (b *Broker) ChangeInvisibleDuration(ctx context.Context, d *tidegate.Delivery, dur time.Duration) (string, error) {
	return b.changeInvisible(ctx, d, dur, d.Handle)
}

// RepeatChange repeats a ChangeInvisibleDuration whose response was lost. If the lost change
// replaced d.Handle and nothing has replaced the new handle, RepeatChange makes the change again
// and returns the same new handle. A dur of 0 cannot be repeated, because the release has
// invalidated the handle. Waiting and errors are those of ChangeInvisibleDuration.
func (b *Broker) RepeatChange(ctx context.Context, d *tidegate.Delivery, dur time.Duration) (string, error) {
	valid := d.Handle
	if s, h, err := b.locate(d); err == nil && dur > 0 {
		valid = s.Replacement(h).String()
	}
	return b.changeInvisible(ctx, d, dur, valid)
}

// changeInvisible replaces the valid handle by the one that follows d's. The valid handle is d's
// or, in a repetition, already its successor.
func (b *Broker) changeInvisible(ctx context.Context, d *tidegate.Delivery, dur time.Duration, valid string) (string, error) {
	if dur < 0 || dur > b.opts.MaxInvisibleDuration {
		return "", refusal.WithOp("ChangeInvisibleDuration", refusal.IllegalInvisibleTime("invisible duration", dur, 0, b.opts.MaxInvisibleDuration))
	}
	h, _ := consume.ParseHandle(d.Handle) // settle reports the error
	h.Serial++
	current := *d
	current.Handle = valid
	_, err := b.settle(ctx, &current, consume.Settlement{Event: consume.EventChange, After: dur, Serial: h.Serial})
	if long, ok := errors.AsType[*consume.TooLongError](err); ok {
		err = refusal.ConsumptionTooLong(dur, long.Left, b.opts.MaxInvisibleDuration)
	}
	if err != nil {
		return "", refusal.WithOp("ChangeInvisibleDuration", err)
	}
	return h.String(), nil
}

// DeadLetter makes the message a dead letter of its group at once, and returns when the dead letter
// is on disk. A repetition, or a call after the group has finished the message, has no effect and
// returns nil. It is also valid after the invisible duration, until another consumer receives the
// message.
//
// The fate of the message is a dead letter, or in the last attempt of a FIFO group the state that
// [settings.Group].OnExhausted specifies. It is transport.FateUntold if the group had finished the
// message before.
func (b *Broker) DeadLetter(ctx context.Context, d *tidegate.Delivery, reason string) (transport.RetryResult, error) {
	out, err := b.settle(ctx, d, consume.Settlement{Event: consume.EventDeadLetter, Attempt: d.Attempt, Reason: reason})
	if err != nil || out.To == 0 {
		return transport.RetryResult{}, refusal.WithOp("ForwardMessageToDeadLetterQueue", err)
	}
	return retryResult(out), nil
}

// settle applies a settlement to the delivery that d names, and waits until that is on disk.
func (b *Broker) settle(ctx context.Context, d *tidegate.Delivery, e consume.Settlement) (consume.Outcome, error) {
	end, err := b.calls.beginWith(ctx)
	if err != nil {
		return consume.Outcome{}, err
	}
	defer end()
	s, h, err := b.locate(d)
	if err != nil {
		return consume.Outcome{}, err
	}
	return s.Settle(ctx, h, e)
}

// retryResult returns the fate of a message after a settlement.
func retryResult(o consume.Outcome) transport.RetryResult {
	switch o.To {
	case consume.DeadLetter:
		return transport.RetryResult{Fate: transport.FateDeadLetter}
	case consume.Parked:
		return transport.RetryResult{Fate: transport.FateParked}
	}
	return transport.RetryResult{Fate: transport.FateAgain, Delay: o.Wait}
}
