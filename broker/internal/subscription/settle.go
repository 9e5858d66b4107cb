package subscription

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/refusal"
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

// Settle applies a settlement to the delivery of a handle, and returns when this is on disk.
func (s *Subscription) Settle(ctx context.Context, h handle.Receipt, e consume.Settlement) (consume.Outcome, error) {
	out, rest, first, err := s.settleUnsynced(h, e)
	switch {
	case err != nil:
		return out, asInvalidHandle(err)
	case first != nil:
		return out, first.join(ctx)
	case len(rest.leaving) > 0:
		return out, s.env.CarryOut(ctx, func() error { return s.writeDepartures(rest.leaving)[0] })
	case len(rest.parked) > 0:
		return out, s.env.CarryOut(ctx, func() error { return s.awaitParked(rest.parked[0]) })
	case out.Repeated != nil || out.To == 0: // the writes of the earlier request may not be on disk yet
		rest.write = s.env.Store.Groups.Barrier()
	}
	if err := rest.write.WaitContext(ctx); err != nil {
		return out, refusal.Unsettled(ctx, err)
	}
	return out, nil
}

// settleUnsynced also returns the departure of an earlier request that this one repeats, and nil if
// there is none.
func (s *Subscription) settleUnsynced(h handle.Receipt, e consume.Settlement) (out consume.Outcome, rest remaining, first *Departure, err error) {
	policy := s.Policy().Rules()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return out, rest, nil, consume.ErrNoQueue
	}
	now := time.Now()
	out, err = s.progress.Settle(h, e, &policy, now)
	rest = s.apply(now)
	return out, rest, s.leaving[out.Repeated], err
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

// A Reconsumption is a message that a consumer sends to a retry topic, or to a dead letter topic
// after the maximum of retries.
type Reconsumption struct {
	To     string            // the topic
	Retry  *deadletter.Retry // Reconsume sets its Due
	Delay  time.Duration
	Reason string // of the dead letter
}

// Reconsume ends the delivery of a handle, whose message becomes a new one, and returns when this
// is on disk. The error is 40013 if the handle is not valid any more.
func (s *Subscription) Reconsume(ctx context.Context, h handle.Receipt, r Reconsumption) error {
	d, err := s.reconsumeUnsynced(h, r)
	if err != nil {
		return asInvalidHandle(err)
	}
	return s.env.CarryOut(ctx, func() error { return s.writeDepartures([]*Departure{d})[0] })
}

func (s *Subscription) reconsumeUnsynced(h handle.Receipt, r Reconsumption) (*Departure, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return nil, consume.ErrNoQueue
	}
	now := time.Now()
	if err := s.progress.Reconsume(h, r.Reason, now); err != nil {
		return nil, err
	}
	d := s.apply(now).leaving[0]
	if r.Delay > 0 {
		r.Retry.Due = now.Add(r.Delay)
	}
	d.Redirect(r.To, r.Retry)
	s.noteReconsumption(d, &r, now)
	return d, nil
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
	return refusal.InvalidHandle("%v", reason)
}
