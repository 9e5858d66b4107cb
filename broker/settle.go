package broker

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// Ack acknowledges deliveries. It returns when the acknowledgements are on disk. The result has an
// entry for each delivery, in their order: nil, or an error, which is 40013 if the handle is not
// valid any more. If ctx ends while Ack waits for the disk, the messages may be acknowledged, and
// the error has MaybeStored set.
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

// Settle ends a delivery by a verdict, and returns the fate of the message when it is on disk. If
// ctx ends meanwhile, the change may have happened, and the error has MaybeStored set. The error is
// 40013 if the handle is not valid any more.
//
//   - [transport.Release]: the message is ready at once. For a push consumer the attempt does not
//     count; for a simple consumer it counts as a timeout.
//
//   - [transport.Retry]: consuming failed. After its last attempt the message becomes a dead
//     letter, or is parked or blocked as [settings.Group].OnExhausted decides; a reason that is not
//     empty is recorded. If a push consumer received the message, and address settings with a
//     redelivery setting match its topic, the message is delivered again after their delay (0 by
//     default). Otherwise it is delivered again after v.Delay, counted from now;
//     [transport.BySchedule] means the retry interval of the topic and group for this attempt. The
//     error is 40011 if the delay is negative, or exceeds both MaxInvisibleDuration and the longest
//     interval of the group and topic.
//
//   - [transport.DeadLetter]: the message is a dead letter of its group at once. A repetition, or a
//     call after the group has finished the message, has no effect and no error; the fate is
//     transport.FateUntold then. It is also valid after the invisible duration, until another
//     consumer receives the message. In the last attempt of a FIFO group the message has the fate
//     that [settings.Group].OnExhausted specifies.
//
//   - [transport.Snooze]: the message is delivered again after v.Delay with the same attempt
//     number. Its message group waits meanwhile, as during a retry. The error is 40011 if the delay
//     is negative or above MaxInvisibleDuration.
//
//   - [transport.RetryTopic]: the delivery is acknowledged, and its message is stored again, as a
//     new message of the group's retry topic with a delivery time. After the maximum of retries it
//     is stored in the group's dead letter topic. A dead letter, or a retry of another group, is
//     retried like a new message of the topic that it is received from. If the process ends in
//     between, the group receives only the new message. The error is 40000 if the group has no
//     retry topics or v has both Delay and Level, and 40012 if the delay is invalid.
//
//   - [transport.NegativeAck]: the same message is delivered again after v.Delay; 0 means the
//     group's NegativeAck.Delay. The group's MaxAttempts and the delays of address settings do not
//     apply. After NegativeAck.MaxRedeliveries the message becomes a dead letter. The error is
//     40000 if v has a Level, and 40011 if the delay is negative or above 864 000 s.
func (b *Broker) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	var op string
	var out consume.Outcome
	var err error
	switch v.Kind {
	case transport.Release:
		_, err := b.Extend(ctx, d, 0, false)
		return transport.RetryResult{}, err
	case transport.Retry:
		op = "Retry"
		out, err = b.retry(ctx, d, v)
	case transport.DeadLetter:
		op = "ForwardMessageToDeadLetterQueue"
		out, err = b.settle(ctx, d, consume.Settlement{Event: consume.EventDeadLetter, Attempt: d.Attempt, Reason: v.Reason})
	case transport.Snooze:
		return transport.RetryResult{}, refusal.WithOp("Snooze", b.snooze(ctx, d, v.Delay))
	case transport.NegativeAck:
		op = "Reconsume"
		out, err = b.negativeAck(ctx, d, v)
	case transport.RetryTopic:
		r, err := b.reconsumeLater(ctx, d, v)
		return reconsumeResult(r), refusal.WithOp("Reconsume", err)
	default:
		return transport.RetryResult{}, v.Unsupported(d)
	}
	if err != nil || out.To == 0 { // there was nothing left to do
		return transport.RetryResult{}, refusal.WithOp(op, err)
	}
	return retryResult(out), nil
}

func (b *Broker) retry(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (consume.Outcome, error) {
	scheduled := v.Delay == transport.BySchedule
	if longest := b.longestRetry(d, v.Delay); !scheduled && (v.Delay < 0 || v.Delay > longest) {
		return consume.Outcome{}, refusal.IllegalInvisibleTime("delay", v.Delay, 0, longest)
	}
	return b.settle(ctx, d, consume.Settlement{Event: consume.EventFail, After: v.Delay, BySchedule: scheduled, Reason: v.Reason})
}

func (b *Broker) snooze(ctx context.Context, d *tidegate.Delivery, delay time.Duration) error {
	if delay < 0 || delay > b.opts.MaxInvisibleDuration {
		return refusal.New(tidegate.CodeIllegalInvisibleTime, "duration", "it is %v; give 0 to %v", delay, b.opts.MaxInvisibleDuration)
	}
	_, err := b.settle(ctx, d, consume.Settlement{Event: consume.EventSnooze, After: delay})
	return err
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

// Extend keeps the message invisible for dur from now on. It returns the handle that replaces
// d.Handle, when the change is on disk. A dur of 0 returns the message to the queue: for a simple
// consumer as a timeout, for a push consumer as a release, and the attempt does not count. A
// delivery ends at the latest MaxInvisibleDuration after it was handed out; changes do not extend
// this limit. The error is 40011 if dur is negative or exceeds the limit, and 40013 if the handle
// is not valid any more.
//
// With repeat, Extend repeats a call whose response was lost. If that call replaced d.Handle and
// nothing has replaced the new handle, it makes the change again and returns the same new handle. A
// dur of 0 cannot be repeated, because the release has invalidated the handle.
func (b *Broker) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (string, error) {
	valid := d.Handle
	if repeat && dur > 0 {
		if s, h, err := b.locate(d); err == nil {
			valid = s.Replacement(h).String()
		}
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

// ReconsumeLater is Settle with a RetryTopic, and returns the new message.
func (b served) ReconsumeLater(ctx context.Context, d *tidegate.Delivery, m transport.Verdict) (serving.Reconsumed, error) {
	r, err := b.reconsumeLater(ctx, d, m)
	return r, refusal.WithOp("ReconsumeLater", err)
}

func (b *Broker) reconsumeLater(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (serving.Reconsumed, error) {
	end, err := b.calls.beginWith(ctx)
	if err != nil {
		return serving.Reconsumed{}, err
	}
	defer end()
	s, h, err := b.locate(d)
	if err != nil {
		return serving.Reconsumed{}, err
	}
	out, err := b.letters.ReconsumeLater(ctx, s, h, v)
	if err != nil {
		return serving.Reconsumed{}, err
	}
	return serving.Reconsumed(out), nil
}

// reconsumeResult returns the fate of a message that was stored again.
func reconsumeResult(r serving.Reconsumed) transport.RetryResult {
	switch {
	case r.Topic == "":
		return transport.RetryResult{}
	case r.DeadLetter:
		return transport.RetryResult{Fate: transport.FateDeadLetter}
	case r.DeliverAt.IsZero():
		return transport.RetryResult{Fate: transport.FateAgain}
	}
	return transport.RetryResult{Fate: transport.FateAgain, Delay: max(time.Until(r.DeliverAt), 0)}
}

func (b *Broker) negativeAck(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (consume.Outcome, error) {
	delay := v.Delay
	if v.Level != 0 {
		return consume.Outcome{}, refusal.New(tidegate.CodeBadRequest, "level", "it is %d, but a negative acknowledgement has none; give a delay", v.Level)
	}
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
