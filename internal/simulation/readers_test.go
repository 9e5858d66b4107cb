package simulation

import (
	"context"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// handleBatch reacts to each message of a batch like handle, one after the other.
func (r *reader) handleBatch(ctx context.Context, ds []*tidegate.Delivery) error {
	result := make(consumer.BatchResult, len(ds))
	for i, d := range ds {
		result[i] = r.handle(consumer.BatchContext(ctx, i), d)
	}
	return result
}

// receive runs a simple consumer until ctx ends. It acknowledges a message that its reaction
// accepts, and lets the others time out.
func (r *reader) receive(ctx context.Context) {
	c, err := consumer.NewSimple(r.w.clients[r.client].Transport, consumer.Subscription{Group: r.group.name, Topic: r.group.topic},
		consumer.SimpleOptions{InvisibleDuration: r.invisible, LongPolling: 5 * time.Second})
	if err != nil {
		r.w.t.Error(err)
		return
	}
	for ctx.Err() == nil {
		ds, err := c.Receive(ctx, 1+r.concurrency)
		if err != nil && ctx.Err() == nil {
			r.w.book.note("%s of %s: receive failed: %v", r.name, r.group.name, err)
			wait(ctx, time.Second)
		}
		for _, d := range ds {
			r.work(ctx, c, d)
		}
	}
}

// work handles one delivery of a simple consumer within its invisible time.
func (r *reader) work(ctx context.Context, c *consumer.Simple, d *tidegate.Delivery) {
	work, cancel := context.WithDeadline(ctx, d.InvisibleUntil)
	defer cancel()
	if work.Err() != nil {
		return
	}
	failed := r.try(work, d) != nil
	if dice := newDice(r.w.plan.seed, fmt.Sprint("change ", r.name, d.ID, d.Attempt)); dice.chance(0.2) {
		_ = c.ChangeInvisibleDuration(work, d, dice.span(time.Second, r.invisible)) // not repeated
	}
	if failed {
		return // the message is delivered again when its invisible time has ended
	}
	for range 3 {
		if err := c.Ack(work, d); err == nil || work.Err() != nil {
			return
		}
		wait(work, 100*time.Millisecond)
	}
}

// try is handle with an error for a panic.
func (r *reader) try(ctx context.Context, d *tidegate.Delivery) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return r.handle(ctx, d)
}
