package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

const (
	// maxReceive is the largest batch of one receive. RocketMQ's proxy has 32, and so have the
	// settings of consumers in the same process; a server can allow its clients more.
	maxReceive     = 128
	settingReceive = 32

	// maxAttemptID is the maximum length of an attempt ID in bytes. RocketMQ's clients send UUIDs.
	maxAttemptID = 255
)

// Receive is Poll without an owner.
func (b *Broker) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	return serve(b).Poll(ctx, serving.Poll{ReceiveRequest: r})
}

// Poll receives up to p.Max messages, at most 128, and waits for the first one up to p.Wait. It
// returns no deliveries and no error if there was no message. The attempt number of each delivery
// is written before Poll returns it; it is on disk if it is above 1.
//
// A receive with the AttemptID of an earlier receive repeats it. If the earlier receive still
// waits, Poll ends it. If deliveries of the earlier receive are still in flight, Poll returns them
// with the same attempts, the rest of their invisible durations, and new handles that replace the
// old ones. If none is in flight, Poll receives new messages, or returns none at once if p.Repeat
// is set.
//
// Poll creates a group that does not exist. The new group begins at the oldest message. Poll
// rejects an invisible duration out of bounds (40011), an AttemptID of more than 255 bytes, a
// negative Max or Wait, and a Queue below transport.AnyQueue. If ctx ends, Poll returns its cause
// and takes no message.
func (b served) Poll(ctx context.Context, p serving.Poll) ([]*tidegate.Delivery, error) {
	ds, err := b.poll(ctx, p)
	return ds, refusal.WithOp("ReceiveMessage", err)
}

func (b *Broker) poll(ctx context.Context, p serving.Poll) ([]*tidegate.Delivery, error) {
	if !b.calls.Begin() {
		return nil, refusal.Closed()
	}
	defer b.calls.End()
	r, err := b.checkPoll(p)
	if err != nil {
		return nil, err
	}
	if err := b.store.Broken(); err != nil {
		return nil, refusal.Store(err)
	}
	s, err := b.catalog.Subscribe(ctx, p.Group, p.Topic)
	if err != nil {
		return nil, err
	}
	if p.Queue >= len(s.Topic().Queues()) {
		return nil, nil // RocketMQ: nothing is there
	}
	if p.Owner != "" {
		b.owners.Own(p.Owner, engine.OwnerPlace{Group: s.Group().ID(), Topic: s.Topic().ID()}, time.Now())
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return s.Receive(ctx, &r)
}

// checkPoll returns the request of a receive.
func (b *Broker) checkPoll(p serving.Poll) (r engine.Request, err error) {
	if err := tidegate.ValidateGroup(p.Group); err != nil {
		return r, err
	}
	if p.Max == 0 {
		p.Max = 1
	}
	switch {
	case p.Max < 0:
		return r, refusal.New(tidegate.CodeBadRequest, "batch size", "it is %d; give 1 to %d", p.Max, maxReceive)
	case p.Queue < transport.AnyQueue:
		return r, refusal.New(tidegate.CodeBadRequest, "queue", "it is %d; give a queue's number, or -1 for any", p.Queue)
	case p.MaxBytes < 0:
		return r, refusal.New(tidegate.CodeBadRequest, "max bytes", "it is %d; give the largest number of bytes, or 0 for no bound", p.MaxBytes)
	case p.Wait < 0:
		return r, refusal.New(protocol.CodeIllegalPollingTime, "wait", "it is %v; it must not be negative", p.Wait)
	case p.Repeat && p.AttemptID == "":
		return r, refusal.New(tidegate.CodeBadRequest, "attempt ID", "it is empty; give the ID of the receive to repeat")
	case len(p.AttemptID) > maxAttemptID:
		return r, refusal.New(tidegate.CodeBadRequest, "attempt ID", "it has %d bytes; the limit is %d", len(p.AttemptID), maxAttemptID)
	}
	p.Max = min(p.Max, maxReceive)
	if p.Owner != "" {
		p.InvisibleDuration = min(consume.OwnedLease, b.opts.MaxInvisibleDuration)
	} else if d := p.InvisibleDuration; d < b.opts.MinInvisibleDuration || d > b.opts.MaxInvisibleDuration {
		return r, refusal.IllegalInvisibleTime("invisible duration", d, b.opts.MinInvisibleDuration, b.opts.MaxInvisibleDuration)
	}
	r = engine.Request{ReceiveRequest: p.ReceiveRequest, Owner: p.Owner, Holder: p.Holder, Encoder: p.Encoder, Memory: p.Memory, Watch: p.Watch}
	r.Match, err = compileFilter(p.Filter)
	return r, err
}
