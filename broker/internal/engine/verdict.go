package engine

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// Ack executes the method of broker.Broker.
func (e *Engine) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, len(ds))
	end, err := e.calls.beginWith(ctx)
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
		s, h, err := e.locate(ds[i])
		if err != nil {
			errs[i] = refusal.WithOp("AckMessage", err)
			i++
			continue
		}
		handles = append(handles[:0], h)
		for i+len(handles) < len(ds) { // deliveries of one subscription are written together
			other, h, err := e.locate(ds[i+len(handles)])
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

// settleOps has the operation in errors of each verdict.
var settleOps = map[transport.VerdictKind]string{
	transport.Retry: "Retry", transport.DeadLetter: "ForwardMessageToDeadLetterQueue", transport.Snooze: "Snooze",
	transport.NegativeAck: "Reconsume", transport.RetryTopic: "Reconsume",
}

// verdicts returns the kinds that Settle takes beside a Retry and a DeadLetter.
func verdicts() (set transport.VerdictKind) {
	for kind := range settleOps {
		set |= kind
	}
	return set &^ (transport.Retry | transport.DeadLetter)
}

// Settle executes the method of broker.Broker.
func (e *Engine) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	op, ok := settleOps[v.Kind]
	switch {
	case v.Kind == transport.Release:
		_, err := e.Extend(ctx, d, 0, false)
		return transport.RetryResult{}, err
	case !ok:
		return transport.RetryResult{}, v.Unsupported(d)
	case v.Kind == transport.RetryTopic:
		r, err := e.reconsumeLater(ctx, d, v)
		return reconsumeResult(r), refusal.WithOp(op, err)
	}
	out, err := e.settle(ctx, d, v)
	if err != nil || out.To == 0 || v.Kind == transport.Snooze { // To is 0 if there was nothing left to do
		return transport.RetryResult{}, refusal.WithOp(op, err)
	}
	return retryResult(out), nil
}

// settle applies a verdict to the delivery that d names, and waits until that is on disk.
func (e *Engine) settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (consume.Outcome, error) {
	if err := e.checkVerdict(d, v); err != nil {
		return consume.Outcome{}, err
	}
	end, err := e.calls.beginWith(ctx)
	if err != nil {
		return consume.Outcome{}, err
	}
	defer end()
	s, h, err := e.locate(d)
	if err != nil {
		return consume.Outcome{}, err
	}
	if v.Kind == transport.NegativeAck && v.Delay == 0 {
		v.Delay = time.Duration(s.Group().Settings().NegativeAck.Delay)
	}
	return s.Settle(ctx, h, v, d.Attempt)
}

// checkVerdict returns the error for a delay or level that the verdict does not take.
func (e *Engine) checkVerdict(d *tidegate.Delivery, v transport.Verdict) error {
	switch v.Kind {
	case transport.Retry:
		if longest := e.longestRetry(d, v.Delay); v.Delay != transport.BySchedule && (v.Delay < 0 || v.Delay > longest) {
			return refusal.IllegalInvisibleTime("delay", v.Delay, 0, longest)
		}
	case transport.Snooze:
		if v.Delay < 0 || v.Delay > e.opts.MaxInvisibleDuration {
			return refusal.New(protocol.CodeIllegalInvisibleTime, "duration", "it is %v; give 0 to %v", v.Delay, e.opts.MaxInvisibleDuration)
		}
	case transport.NegativeAck:
		if v.Level != 0 {
			return refusal.New(tidegate.CodeBadRequest, "level", "it is %d, but a negative acknowledgement has none; give a delay", v.Level)
		}
		if v.Delay < 0 || v.Delay > settings.MaxReconsumeDelay {
			return refusal.New(protocol.CodeIllegalInvisibleTime, "delay", "it is %v; give up to %v, or 0 for the group's", v.Delay, settings.MaxReconsumeDelay)
		}
	}
	return nil
}

// longestRetry returns the longest time that Retry accepts: the intervals of the settings can
// exceed MaxInvisibleDuration, and clients use these intervals.
func (e *Engine) longestRetry(d *tidegate.Delivery, after time.Duration) time.Duration {
	longest := e.opts.MaxInvisibleDuration
	if after <= longest {
		return longest
	}
	if s, _, err := e.locate(d); err == nil {
		longest = max(longest, s.Policy().LongestInterval())
	}
	return longest
}

// Extend executes the method of broker.Broker.
func (e *Engine) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (string, error) {
	h, err := e.extend(ctx, d, dur, repeat)
	return h, refusal.WithOp("ChangeInvisibleDuration", err)
}

// extend replaces the valid handle by the one that follows d's. The valid handle is d's or, in a
// repetition, already its successor.
func (e *Engine) extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (string, error) {
	if dur < 0 || dur > e.opts.MaxInvisibleDuration {
		return "", refusal.IllegalInvisibleTime("invisible duration", dur, 0, e.opts.MaxInvisibleDuration)
	}
	end, err := e.calls.beginWith(ctx)
	if err != nil {
		return "", err
	}
	defer end()
	s, valid, err := e.locate(d)
	if err != nil {
		return "", err
	}
	next := valid
	next.Serial++
	if repeat && dur > 0 {
		valid = s.Replacement(valid)
	}
	err = s.Extend(ctx, valid, dur, next.Serial)
	if long, ok := errors.AsType[*consume.TooLongError](err); ok {
		err = refusal.ConsumptionTooLong(dur, long.Left, e.opts.MaxInvisibleDuration)
	}
	if err != nil {
		return "", err
	}
	return next.String(), nil
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
func (e *Engine) ReconsumeLater(ctx context.Context, d *tidegate.Delivery, m transport.Verdict) (Reconsumed, error) {
	r, err := e.reconsumeLater(ctx, d, m)
	return r, refusal.WithOp("ReconsumeLater", err)
}

func (e *Engine) reconsumeLater(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (Reconsumed, error) {
	end, err := e.calls.beginWith(ctx)
	if err != nil {
		return Reconsumed{}, err
	}
	defer end()
	s, h, err := e.locate(d)
	if err != nil {
		return Reconsumed{}, err
	}
	out, err := e.letters.ReconsumeLater(ctx, s, h, v)
	if err != nil {
		return Reconsumed{}, err
	}
	return out, nil
}

// reconsumeResult returns the fate of a message that was stored again.
func reconsumeResult(r Reconsumed) transport.RetryResult {
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

// locate returns the subscription and the receipt of a delivery's handle. The handle of another
// broker, or of a deleted topic or group, is not valid.
func (e *Engine) locate(d *tidegate.Delivery) (*Subscription, consume.Handle, error) {
	h, err := consume.ParseHandle(d.Handle)
	if err != nil {
		return nil, h, refusal.InvalidHandle("%v", err)
	}
	s := e.catalog.Find(h.Group, h.Place.Topic)
	if s == nil || int(h.Place.Queue) >= len(s.Topic().Queues()) {
		return nil, h, refusal.InvalidHandle("its topic or consumer group no longer exists")
	}
	if d.ConsumerGroup != "" && d.ConsumerGroup != s.Group().Name() {
		return nil, h, refusal.InvalidHandle("it belongs to group %q, not to %q", s.Group().Name(), d.ConsumerGroup)
	}
	if d.Topic != "" && d.Topic != s.Topic().Name() && !retriesFor(s, d.Topic) {
		return nil, h, refusal.InvalidHandle("it belongs to topic %q, not to %q", s.Topic().Name(), d.Topic)
	}
	return s, h, nil
}

// TopicOf returns the topic of the delivery that a receipt handle names, also after its end, and
// the original topic, which receives show. The two differ if the message is in the group's retry
// topic. The error is 40013 if the handle is not one of this broker.
func (e *Engine) TopicOf(receiptHandle string) (topic, original string, err error) {
	if !e.calls.Begin() {
		return "", "", refusal.Closed()
	}
	defer e.calls.End()
	s, h, err := e.locate(&tidegate.Delivery{Handle: receiptHandle})
	if err != nil {
		return "", "", err
	}
	topic = s.Topic().Name()
	switch from, retry := s.Group().Settings().RetryTopic.Original(topic, s.Group().Name()); {
	case !retry:
		return topic, topic, nil
	case from != "":
		return topic, from, nil
	}
	m, ok, err := e.store.Get(h.Place) // the retry topic is one for all topics, so read the message
	if err != nil {
		return "", "", refusal.Store(err)
	}
	if !ok {
		return "", "", refusal.InvalidHandle("the message was deleted")
	}
	return topic, deadletter.RealTopic(&m, topic), nil
}

// retriesFor reports whether the subscription is to one of the group's retry topics for the topic.
func retriesFor(s *Subscription, topic string) bool {
	c, group, name := &s.Group().Settings().RetryTopic, s.Group().Name(), s.Topic().Name()
	return c.RetryName(topic, group) == name || c.RedriveName(topic, group) == name
}

// Return returns deliveries that did not reach a consumer to the queue: they are ready again at
// once, and the attempt does not count. Handles that are not valid any more change nothing.
func (e *Engine) Return(_ context.Context, ds []*tidegate.Delivery) {
	if !e.calls.Begin() {
		return
	}
	defer e.calls.End()
	var writes []*store.PendingWrite
	for i := 0; i < len(ds); {
		s, h, err := e.locate(ds[i])
		if i++; err != nil {
			continue
		}
		handles := []consume.Handle{h}
		for ; i < len(ds); i++ { // those of the same topic and group are written together
			other, h, err := e.locate(ds[i])
			if err != nil || other != s {
				break
			}
			handles = append(handles, h)
		}
		writes = append(writes, s.Release(handles))
	}
	for _, f := range writes {
		_ = f.Wait() // other calls report a store that fails
	}
}
