package subscription

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// Ack acknowledges deliveries, and sets an error in errs for each handle that is not valid any
// more. It returns the write of the change, which is nil if no handle is valid.
func (s *Subscription) Ack(handles []handle.Receipt, errs []error) *store.PendingWrite {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for i, h := range handles {
		err := consume.ErrNoQueue
		if s.gone == nil {
			err = s.progress.Ack(h, now)
		}
		errs[i] = asInvalidHandle(err)
	}
	return s.apply(now).write
}

// Release returns deliveries that are still valid to the queue, as if they had not been made. The
// write is nil if there are none.
func (s *Subscription) Release(handles []handle.Receipt) *store.PendingWrite {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return nil
	}
	now := time.Now()
	for _, h := range handles {
		s.progress.Release(h, now)
	}
	return s.apply(now).write
}

// releaseGrants is Release for deliveries that a receive does not return.
func (s *Subscription) releaseGrants(grants []consume.Grant) {
	handles := make([]handle.Receipt, len(grants))
	for i := range grants {
		handles[i] = grants[i].Receipt
	}
	s.Release(handles)
}

// An Outcome is the result of a settlement.
type Outcome struct {
	To   consume.State // 0 if the group had finished the message before
	Wait time.Duration // until the next delivery
}

// Settle applies a settlement to the delivery of a handle, and returns when this is on disk.
func (s *Subscription) Settle(ctx context.Context, h handle.Receipt, e consume.Settlement) (Outcome, error) {
	out, err := s.settleUnsynced(h, e)
	switch {
	case err != nil:
		return out.Outcome, err
	case out.first != nil:
		return out.Outcome, out.first.join(ctx)
	case out.rest != nil:
		return out.Outcome, s.env.CarryOut(ctx, out.rest)
	}
	if err := out.write.WaitContext(ctx); err != nil {
		return out.Outcome, fail.Unsettled(ctx, err)
	}
	return out.Outcome, nil
}

// A settled is the result of a settlement before the wait for the disk.
type settled struct {
	Outcome
	write *store.PendingWrite // to wait for, if rest and first are nil
	rest  func() error        // the work without the lock: a dead letter, or a parked message group; nil for none
	first *Leaving            // departure of an earlier request, which this one repeats; nil for none
}

func (s *Subscription) settleUnsynced(h handle.Receipt, e consume.Settlement) (settled, error) {
	policy := s.Policy().Rules()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return settled{}, asInvalidHandle(consume.ErrNoQueue)
	}
	now := time.Now()
	did, err := s.progress.Settle(h, e, &policy, now)
	effects := s.apply(now)
	out := settled{write: effects.write, Outcome: Outcome{To: did.To, Wait: did.Wait}}
	switch {
	case err != nil:
		return settled{}, asInvalidHandle(err)
	case len(effects.leaving) > 0:
		out.rest = func() error { return s.env.Depart(effects.leaving)[0] }
	case len(effects.parked) > 0:
		p := effects.parked[0]
		out.rest = func() error { return s.env.AwaitParked(s.Consumed(), &p.group, p.write) }
	case did.Repeated != nil && s.leaving[did.Repeated] != nil:
		out.first = s.leaving[did.Repeated]
	case did.Repeated != nil || did.To == 0: // the writes of the earlier request may not be on disk yet
		out.write = s.env.Store.Groups.Add(func(*store.Batch) {}, nil)
	}
	return out, nil
}

// Attempt returns the attempt of the delivery of a handle. The error is 40013 if the handle is not
// valid any more.
func (s *Subscription) Attempt(h handle.Receipt) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return 0, asInvalidHandle(consume.ErrNoQueue)
	}
	l, err := s.progress.Current(h, time.Now())
	if err != nil {
		return 0, asInvalidHandle(err)
	}
	return l.Attempt, nil
}

// Replacement returns the handle that replaced h by a change of the invisible duration, or h.
func (s *Subscription) Replacement(h handle.Receipt) handle.Receipt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return h
	}
	return s.progress.Replacement(h)
}

// Reconsume ends the delivery of a handle, and returns its message, which leaves for a reason, and
// the time. The error is 40013 if the handle is not valid any more.
func (s *Subscription) Reconsume(h handle.Receipt, reason string) (*Leaving, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := time.Now(), consume.ErrNoQueue
	if s.gone == nil {
		err = s.progress.Reconsume(h, reason, now)
	}
	if err != nil {
		return nil, now, asInvalidHandle(err)
	}
	return s.apply(now).leaving[0], now, nil
}

// asInvalidHandle returns the error of a receipt handle that is not valid, for the reason that
// package consume returned. Other errors, and nil, stay as they are.
func asInvalidHandle(reason error) error {
	if _, ok := errors.AsType[*consume.TooLongError](reason); ok || reason == nil {
		return reason
	}
	if _, ok := errors.AsType[*tidegate.Error](reason); ok {
		return reason
	}
	return fail.InvalidHandle("%v", reason)
}
