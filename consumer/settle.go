package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// settleTimeout bounds one attempt to settle.
const settleTimeout = 3 * time.Second

// settleBackoff paces repeated settlements.
var settleBackoff = backoff.Exponential{
	Initial: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, Max: 5 * time.Second, MinConnectTimeout: 20 * time.Second,
}

// errPerhaps tells that a delivery may have been settled by a try of before.
var errPerhaps = errors.New("an earlier try, whose answer was lost, may have settled it")

// tell carries out a verdict, again and again where that can help and as long
// as the delivery is ours. It does not stop with Run's ctx: an unsaid
// acknowledgement is a duplicate. The error is errPerhaps, with the server's
// own, where the handle was not valid any more after a try that may have worked.
func (r *run) tell(h *held, v verdict) (transport.RetryResult, error) {
	ctx, cancel := context.WithDeadline(r.detached, h.until)
	defer cancel()
	maybe := false    // a try may have worked
	var settled error // it seems to have
	for n := 0; ; n++ {
		result, told := r.tellOnce(ctx, h, v)
		if told == nil {
			return result, nil
		}
		maybe = maybe || perhaps(told)
		if maybe && errors.Is(told, tidegate.ErrInvalidHandle) {
			settled = fmt.Errorf("%w: %w", errPerhaps, told)
		}
		err, harmless := told, v.action != deadLetterNow || r.transport.Capabilities().IdempotentDeadLetter
		if h.unsure && errors.Is(told, tidegate.ErrInvalidHandle) {
			found := r.recover(ctx, h)
			if found == nil {
				settled = nil
				continue
			}
			if !errors.Is(found, tidegate.ErrInvalidHandle) {
				err, harmless = found, true // it is not known yet which handle is valid
			}
		}
		delay := settleBackoff.Delay(n)
		if e, ok := errors.AsType[*tidegate.Error](err); ok {
			delay = max(delay, e.RetryAfter)
		}
		if !canRepeat(err, harmless) || backoff.Sleep(ctx, delay) != nil {
			return result, cmp.Or(settled, err)
		}
	}
}

func (r *run) tellOnce(ctx context.Context, h *held, v verdict) (transport.RetryResult, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	switch v.action {
	case ack:
		return transport.RetryResult{}, ackOne(ctx, r.transport, &h.current)
	case deadLetterNow:
		return transport.RetryResult{}, r.transport.DeadLetter(ctx, &h.current, v.reason)
	}
	delay := v.delay
	if v.byServer {
		delay = transport.ByLadder
	}
	return r.transport.Retry(ctx, &h.current, delay, v.reason)
}

func ackOne(ctx context.Context, s transport.Settler, d *tidegate.Delivery) error {
	errs := s.Ack(ctx, []*tidegate.Delivery{d})
	if len(errs) != 1 {
		return &tidegate.Error{Op: "AckMessage", Subject: d.ID, Message: "the transport did not return one result for one delivery"}
	}
	return errs[0]
}

// perhaps reports whether what failed with err may have worked all the same. A
// [tidegate.Error] knows: a request that reached nobody did nothing, nor did
// one that was answered, but for what MaybeStored says.
func perhaps(err error) bool {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.MaybeStored
	}
	return transport.Classify(err) == transport.Transient
}

func permanent(err error) bool {
	return transport.Classify(err) == transport.Permanent && !errors.Is(err, tidegate.ErrInvalidHandle)
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
