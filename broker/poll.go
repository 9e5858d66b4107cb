package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/transport"
)

const (
	// maxReceive is the largest batch of one receive (RocketMQ's proxy: 32).
	maxReceive = 32

	// maxReceiveBytes bounds the bodies of one receive beyond the first.
	maxReceiveBytes = 16 << 20

	// maxChunk is how many messages are read at a time while none of them can
	// be delivered, and maxPassed about how many before a receive looks whether
	// it should end.
	maxChunk  = 256
	maxPassed = 4096

	// maxReplays is how many attempt IDs a subscription remembers.
	maxReplays = 1024
)

// A Poll is a receive with what a server knows of the client.
type Poll struct {
	transport.ReceiveRequest

	// Owner, if not empty, is a client whose signs of life (Broker.Touch) keep
	// what it received invisible for others, in place of InvisibleDuration: for a
	// minute after the last sign, for 3 hours in all.
	Owner string

	// Prepare, if not nil, is called with the deliveries while their attempts are
	// being written, to save time: what it makes of them must be thrown away
	// unless Poll then returns them without an error. It must not wait or call the broker.
	Prepare func([]*tidegate.Delivery)
}

// A grant is one delivery about to be handed out.
type grant struct {
	lease   *lease
	handle  handle
	attempt int
	due     time.Time
	message *store.Message // nil: not read yet
}

// Receive is [Broker.Poll] without an owner.
func (b *Broker) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	return b.Poll(ctx, Poll{ReceiveRequest: r})
}

// Poll receives up to p.Max messages, at most 32, and waits for the first one
// up to p.Wait. It returns none, and no error, if there was none. The attempt
// number of every delivery is written before Poll returns it. A group that
// does not exist is made; it begins with the oldest message. Max, Queue and
// Wait below zero, and an invisible duration out of bounds (40011), are
// refused. If ctx ends, Poll returns its cause and takes no message with it.
func (b *Broker) Poll(ctx context.Context, p Poll) ([]*tidegate.Delivery, error) {
	ds, err := b.poll(ctx, p)
	return ds, withOp("ReceiveMessage", err)
}

func (b *Broker) poll(ctx context.Context, p Poll) ([]*tidegate.Delivery, error) {
	if !b.begin() {
		return nil, closedError()
	}
	defer b.end()
	match, err := b.checkPoll(&p)
	if err != nil {
		return nil, err
	}
	if err := b.store.Broken(); err != nil {
		return nil, storeError(err)
	}
	s, err := b.subscribe(ctx, p.Group, p.Topic)
	if err != nil {
		return nil, err
	}
	if p.Queue >= len(*s.topic.queues.Load()) {
		return nil, nil // RocketMQ: nothing is there
	}
	if p.Owner != "" {
		b.Touch(p.Owner)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if grants := s.replay(&p); grants != nil {
		return s.deliveries(&p, grants)
	}
	var timeout <-chan time.Time
	if p.Wait > 0 {
		t := time.NewTimer(p.Wait)
		defer t.Stop()
		timeout = t.C
	}
	for last := false; ; {
		grants, flight, w, err := s.take(&p, match)
		if len(grants) > 0 {
			return s.handOut(ctx, &p, grants, flight)
		}
		if err != nil {
			return nil, err
		}
		if w != nil && p.Wait <= 0 || last {
			s.leave(w)
			return nil, nil
		}
		if last, err = b.await(ctx, w, timeout); last || err != nil {
			s.leave(w)
		}
		if err != nil {
			return nil, err
		}
		if last {
			s.expire() // what is due in this very moment is looked at once more
		}
	}
}

// await returns when there may be something for a receive, at once if w is
// nil, or with late set when its time is over.
func (b *Broker) await(ctx context.Context, w *waiter, timeout <-chan time.Time) (late bool, err error) {
	woken := alreadyWoken
	if w != nil {
		woken = w.woken
	}
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-b.life.Done():
		return false, closedError()
	case <-b.store.Failed():
		return false, storeError(b.store.Broken())
	default:
	}
	select {
	case <-woken:
		return false, nil
	case <-timeout:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-b.life.Done():
		return false, closedError()
	case <-b.store.Failed():
		return false, storeError(b.store.Broken())
	}
}

// alreadyWoken is what a receive waits for that has more to look at.
var alreadyWoken = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (b *Broker) checkPoll(p *Poll) (*filter.Filter, error) {
	if err := tidegate.ValidateGroup(p.Group); err != nil {
		return nil, err
	}
	if p.Max == 0 {
		p.Max = 1
	}
	switch {
	case p.Max < 0:
		return nil, newError(tidegate.CodeBadRequest, "batch size", "it is %d; give 1 to %d", p.Max, maxReceive)
	case p.Queue < transport.AnyQueue:
		return nil, newError(tidegate.CodeBadRequest, "queue", "it is %d; give a queue's number, or -1 for any", p.Queue)
	case p.Wait < 0:
		return nil, newError(tidegate.CodeIllegalPollingTime, "wait", "it is %v; it may not be negative", p.Wait)
	}
	p.Max = min(p.Max, maxReceive)
	if p.Owner != "" {
		p.InvisibleDuration = ownedLease
	} else if d := p.InvisibleDuration; d < b.opts.MinInvisibleDuration || d > b.opts.MaxInvisibleDuration {
		return nil, newError(tidegate.CodeIllegalInvisibleTime, "invisible duration", "it is %v; give %v to %v", d,
			b.opts.MinInvisibleDuration, b.opts.MaxInvisibleDuration)
	}
	return compileFilter(p.Filter)
}
