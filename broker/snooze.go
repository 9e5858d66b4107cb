package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
)

// Snooze ends a delivery of a push consumer or a simple consumer without counting its attempt, and
// returns when this is on disk. The message is delivered again after dur with the same attempt
// number. Its message group waits meanwhile, as during a retry. The error is 40011 if dur is
// negative or above MaxInvisibleDuration, and 40013 if the handle is not valid any more.
func (b *Broker) Snooze(ctx context.Context, d *tidegate.Delivery, dur time.Duration) error {
	const op = "Snooze"
	if dur < 0 || dur > b.opts.MaxInvisibleDuration {
		return refusal.WithOp(op, refusal.New(tidegate.CodeIllegalInvisibleTime, "duration", "it is %v; give 0 to %v", dur, b.opts.MaxInvisibleDuration))
	}
	_, err := b.settle(ctx, d, consume.Settlement{Event: consume.EventSnooze, After: dur})
	return refusal.WithOp(op, err)
}
