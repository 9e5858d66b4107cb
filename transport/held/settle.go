package held

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Ack implements [transport.Settler] with one Link.Settle for each link.
func (t *Table) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	const op = "AckMessage"
	errs := make([]error, len(ds))
	batch := make([]settlement, 0, len(ds))
	which := make([]int, 0, len(ds)) // of ds
	now := t.lock()
	for i, d := range ds {
		err := context.Cause(ctx)
		var m *message
		if err == nil {
			m, err = t.shelf.Begin(d.Handle, now)
		}
		if err != nil {
			errs[i] = failure(op, d.Topic, err)
			continue
		}
		batch = append(batch, settlement{message: m, Outcome: accepted})
		which = append(which, i)
	}
	t.unlock(now)
	for len(batch) > 0 {
		n := 1
		for n < len(batch) && batch[n].Link == batch[0].Link {
			n++
		}
		results := settle(ctx, batch[:n])
		now := t.lock()
		for i, s := range batch[:n] {
			err := errAt(results, i)
			t.shelf.Finish(s.message, err, false, now)
			if err != nil {
				errs[which[i]] = failure(op, ds[which[i]].Topic, err)
			}
		}
		t.unlock(now)
		batch, which = batch[n:], which[n:]
	}
	return errs
}

// Settle implements [transport.Settler]. In a FIFO group a message that is to come again waits in
// this process. A Retry must have a delay that is not negative; [transport.BySchedule] fails with
// CodeNotImplemented.
func (t *Table) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	switch v.Kind {
	case transport.Release:
		return transport.RetryResult{}, t.release(ctx, d)
	case transport.Retry:
		return t.retry(ctx, d, v.Delay, v.Reason)
	case transport.DeadLetter:
		return t.deadLetter(ctx, d, v.Reason)
	case transport.Snooze:
		return transport.RetryResult{}, t.snooze(ctx, d, v.Delay)
	}
	return transport.RetryResult{}, v.Unsupported(d)
}

// retry carries out a Retry. In a FIFO group the message waits in this process;
// otherwise its outcome is [Retried]. In the last attempt it becomes a dead letter. The delay must
// not be negative; [transport.BySchedule] fails with CodeNotImplemented. The result is zero.
func (t *Table) retry(ctx context.Context, d *tidegate.Delivery, after time.Duration, reason string) (transport.RetryResult, error) {
	const op = "RetryMessage"
	none := transport.RetryResult{}
	if err := t.refused(ctx, after); err != nil {
		return none, failure(op, d.Topic, err)
	}
	if reason == "" {
		reason = "the last attempt failed"
	}
	now := t.lock()
	s, err := t.shelf.Retry(d.Handle, after, reason, now)
	t.unlock(now)
	if err == nil && s != nil {
		err = t.finish(ctx, *s, false)
	}
	if err != nil {
		return none, failure(op, d.Topic, err)
	}
	return none, nil
}

// deadLetter carries out a DeadLetter. A second call for the same delivery succeeds and does
// nothing until the invisible duration of the delivery is over.
func (t *Table) deadLetter(ctx context.Context, d *tidegate.Delivery, reason string) (transport.RetryResult, error) {
	const op = "ForwardMessageToDeadLetterQueue"
	none := transport.RetryResult{}
	if err := context.Cause(ctx); err != nil {
		return none, failure(op, d.Topic, err)
	}
	if reason == "" {
		reason = "the consumer rejected the message"
	}
	now := t.lock()
	m, err := t.shelf.Begin(d.Handle, now)
	again := t.shelf.Buried(d.Handle)
	t.unlock(now)
	switch {
	case again:
		return none, nil
	case err == nil:
		err = t.finish(ctx, settlement{message: m, Outcome: deadLettered, Reason: reason}, true)
	}
	if err != nil {
		return none, failure(op, d.Topic, err)
	}
	return transport.RetryResult{Fate: transport.FateDeadLetter}, nil
}

// release carries out a Release without a request. A delivery of a push receive stays in
// this process, the first for the next receive; another one is [Retried].
func (t *Table) release(ctx context.Context, d *tidegate.Delivery) error {
	const op = "ChangeInvisibleDuration"
	if err := t.refused(ctx, 0); err != nil {
		return failure(op, d.Topic, err)
	}
	now := t.lock()
	err := t.shelf.Release(d.Handle, now)
	t.unlock(now)
	if err != nil {
		return failure(op, d.Topic, err)
	}
	return nil
}

// snooze carries out a Snooze without a request: the message waits in this process. If
// half of Options.MaxHeld messages wait already, it returns to the system instead, a second later
// at the latest: [Released], so that the system delivers it again earlier than after dur, without a
// failed attempt. In a FIFO group a message always waits here, to keep the order.
func (t *Table) snooze(ctx context.Context, d *tidegate.Delivery, dur time.Duration) error {
	const op = "SnoozeMessage"
	if err := t.refused(ctx, dur); err != nil {
		return failure(op, d.Topic, err)
	}
	now := t.lock()
	err := t.shelf.Snooze(d.Handle, dur, now)
	t.unlock(now)
	if err != nil {
		return failure(op, d.Topic, err)
	}
	return nil
}

// Extend implements [transport.Settler] without a request. A dur of 0 ends the
// lease at once.
func (t *Table) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, _ bool) (string, error) {
	const op = "ChangeInvisibleDuration"
	if err := t.refused(ctx, dur); err != nil {
		return "", failure(op, d.Topic, err)
	}
	now := t.lock()
	handle, err := t.shelf.Change(d.Handle, dur, now)
	t.unlock(now)
	if err != nil {
		return "", failure(op, d.Topic, err)
	}
	return handle, nil
}

// finish carries out a settlement that has begun.
func (t *Table) finish(ctx context.Context, s settlement, bury bool) error {
	err := errAt(settle(ctx, []settlement{s}), 0)
	now := t.lock()
	t.shelf.Finish(s.message, err, bury, now)
	t.unlock(now)
	return err
}

// refused returns why a call with this ctx and duration does nothing.
func (*Table) refused(ctx context.Context, dur time.Duration) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case dur == transport.BySchedule:
		return &tidegate.Error{Code: tidegate.CodeNotImplemented, Message: "the system has no retry schedule"}
	case dur < 0:
		return &tidegate.Error{Code: tidegate.CodeIllegalInvisibleTime, Message: dur.String() + " is negative"}
	}
	return nil
}
