package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/transport"
)

var _ transport.Snoozer = (*Broker)(nil)

// Snooze ends a delivery without counting its attempt: the message is delivered again
// after dur with the same attempt number, whether a push consumer or a simple one
// received it. Its message group waits meanwhile, as during a retry. Snooze returns when
// that is on disk. 40011 for a dur that is negative or above MaxInvisibleDuration, 40013 if
// the handle is not valid any more.
func (b *Broker) Snooze(ctx context.Context, d *tidegate.Delivery, dur time.Duration) error {
	const op = "Snooze"
	if dur < 0 || dur > b.opts.MaxInvisibleDuration {
		return fail.WithOp(op, fail.New(tidegate.CodeIllegalInvisibleTime, "duration", "it is %v; give 0 to %v", dur, b.opts.MaxInvisibleDuration))
	}
	_, err := b.settle(ctx, d, consume.Settlement{Event: consume.EventSnooze, After: dur})
	return fail.WithOp(op, err)
}
