package consumer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// SimpleOptions are the settings of a simple consumer. The zero value is valid.
type SimpleOptions struct {
	// InvisibleDuration is the time to acknowledge a received message. The server delivers the
	// message again if the time ends first. At most 12 h; RocketMQ rejects less than 10 s. Default:
	// 30 s.
	InvisibleDuration time.Duration

	// LongPolling is the time for which the server waits for a message. Servers have a minimum and
	// a maximum: RocketMQ waits for at least 5 s and at most 20 s. Default: 20 s.
	LongPolling time.Duration

	// BatchSize is the number of messages that [Simple.All] receives in one request, at most 32.
	// The invisible time of all of them begins with the receive. If the loop ends early, the
	// remaining messages are redelivered when that time has ended. Default: 1.
	BatchSize int
}

// A Simple consumer receives messages on request. A message that is not acknowledged within its
// invisible time is delivered again.
//
// Several goroutines may share a consumer, but not a delivery. The consumer starts no goroutine and
// needs no Close. Create one with [NewSimple].
type Simple struct {
	transport Transport
	sub       Subscription
	opts      SimpleOptions
}

// NewSimple returns a consumer of sub that receives through t. The error joins all faults of the
// arguments.
func NewSimple(t Transport, sub Subscription, opts SimpleOptions) (*Simple, error) {
	var f faults
	if t == nil {
		f.add("transport", "it is nil; give the transport to receive through")
	}
	if sub.Retry != nil {
		f.add("Subscription.Retry", "a simple consumer's retries follow the invisible duration; set it for push consumers only")
	}
	if len(sub.Topics) > 0 {
		f.add("Subscription.Topics", "a simple consumer receives from one topic; set Topic, and use one simple consumer for each topic")
	}
	if sub.Lite {
		f.add("Subscription.Lite", "a simple consumer has no lite topics; use NewPush or NewBatch")
	}
	f.invisible(opts.InvisibleDuration)
	f.notNegative("LongPolling", int64(opts.LongPolling), opts.LongPolling)
	if opts.BatchSize < 0 || opts.BatchSize > maxBatch {
		f.add("BatchSize", "%d is not between 1 and %d; give such a number, or 0 for 1", opts.BatchSize, maxBatch)
	}
	f.subscription(sub)
	if err := f.err(); err != nil {
		return nil, err
	}
	if opts.InvisibleDuration == 0 {
		opts.InvisibleDuration = defaultInvisibleDuration
	}
	if opts.LongPolling == 0 {
		opts.LongPolling = defaultLongPolling
	}
	if opts.BatchSize == 0 {
		opts.BatchSize = 1
	}
	return &Simple{transport: t, sub: sub, opts: opts}, nil
}

// Receive waits for messages and returns between 1 and n of them. It returns none and a nil error
// if there was no message within LongPolling. n is 1 to 32. If ctx ends first, Receive returns an
// error that wraps its cause.
func (s *Simple) Receive(ctx context.Context, n int) ([]*tidegate.Delivery, error) {
	if n < 1 || n > maxBatch {
		return nil, fmt.Errorf("consumer: %w", &tidegate.Error{
			Op: "ReceiveMessage", Subject: "n", Code: tidegate.CodeBadRequest,
			Message: fmt.Sprintf("%d is not between 1 and %d", n, maxBatch),
		})
	}
	return s.transport.Receive(ctx, transport.ReceiveRequest{
		Group: s.sub.Group, Topic: s.sub.Topic, Queue: transport.AnyQueue, Filter: s.sub.Filter,
		Max: n, InvisibleDuration: s.opts.InvisibleDuration, Wait: s.opts.LongPolling,
	})
}

// Ack acknowledges the delivery in one attempt. The error matches [tidegate.ErrInvalidHandle] if
// the invisible time has ended. RocketMQ may report no error in this case, although the message is
// delivered again.
//
// If the response to a ChangeInvisibleDuration was lost, d.Handle may have been replaced. If the
// server rejects the handle, Ack therefore requests the valid one and repeats the attempt once. It
// sets d.Handle and d.InvisibleUntil then. Settle does the same. Neither can
// request the valid handle from a server without [transport.Capabilities].RepeatChange.
func (s *Simple) Ack(ctx context.Context, d *tidegate.Delivery) error {
	return s.settle(ctx, d, func() error {
		errs := s.transport.Ack(ctx, []*tidegate.Delivery{d})
		if len(errs) != 1 {
			return &tidegate.Error{Op: "AckMessage", Subject: d.ID, Message: "the transport returned a different number of results than deliveries"}
		}
		return errs[0]
	})
}

// settle calls try, and once more if it failed because a lost response replaced the handle.
func (s *Simple) settle(ctx context.Context, d *tidegate.Delivery, try func() error) error {
	err := try()
	if !errors.Is(err, tidegate.ErrInvalidHandle) || !s.transport.Capabilities(d.Endpoint).RepeatChange {
		return err
	}
	before, now := d.Handle, time.Now()
	handle, lost := s.transport.Extend(ctx, d, s.opts.InvisibleDuration, true)
	if lost != nil || handle == "" || handle == before {
		return err // the lease has ended
	}
	d.Handle, d.InvisibleUntil = handle, now.Add(s.opts.InvisibleDuration)
	return try()
}

// ChangeInvisibleDuration sets the end of the invisible time to dur from now, 0 to 12 h. A longer
// time gives the program more time to process the message; a shorter one causes an earlier
// redelivery. If the server accepts, ChangeInvisibleDuration sets d.Handle and d.InvisibleUntil.
// Otherwise it does not change d. The error matches [tidegate.ErrInvalidHandle] if the invisible
// time has ended.
//
// After a lost response the call can be repeated if dur is not 0 and the server supports it
// ([transport.Capabilities].RepeatChange); RocketMQ does not. A dur of 0 returns the message to the
// queue, so a repetition gets ErrInvalidHandle if the first call was successful.
func (s *Simple) ChangeInvisibleDuration(ctx context.Context, d *tidegate.Delivery, dur time.Duration) error {
	if dur < 0 || dur > maxInvisibleDuration {
		return fmt.Errorf("consumer: %w", &tidegate.Error{
			Op: "ChangeInvisibleDuration", Subject: "duration", Code: protocol.CodeIllegalInvisibleTime,
			Message: fmt.Sprintf("%v is not between 0 and %v", dur, maxInvisibleDuration),
		})
	}
	now := time.Now()
	handle, err := s.transport.Extend(ctx, d, dur, dur > 0) // the response to an earlier call may have been lost
	if err != nil {
		return err
	}
	if handle != "" {
		d.Handle = handle
	}
	d.InvisibleUntil = now.Add(dur)
	return nil
}

// All receives messages until ctx ends, and then ends without an error.
//
// After a failed receive All yields the error with a nil delivery. If the loop continues, All waits
// before the next receive: for 1 s, multiplied by 1.6 after each further failure up to 30 s, or for
// the time that the server requests if that is longer. If no server responds, the wait is at most
// 5 s, and ends early, once in an outage, when a server responds to a ping. After it has yielded
// the error, All ends if the transport is closed, the server rejects the arguments, or the server
// has rejected the credentials for a minute.
//
//	for d, err := range c.All(ctx) {
//		if err != nil { log.Print(err); continue }
//		…
//		err = c.Ack(ctx, d)
//	}
func (s *Simple) All(ctx context.Context) iter.Seq2[*tidegate.Delivery, error] {
	return func(yield func(*tidegate.Delivery, error) bool) {
		var refused verdict.Refusals
		var outage recovery
		for failures := 0; ctx.Err() == nil; {
			start := time.Now()
			ds, err := s.Receive(ctx, s.opts.BatchSize)
			if err != nil {
				if ctx.Err() != nil || !yield(nil, err) || refused.Failed(err, time.Now()) {
					return
				}
				wait := receiveWait(receiveBackoff, failures, err)
				failures++
				if outage.await(ctx, s.transport, wait, err) != nil {
					return
				}
				continue
			}
			failures, outage = 0, recovery{}
			refused.Succeeded()
			if rest := minPoll - time.Since(start); len(ds) == 0 && rest > 0 && backoff.Sleep(ctx, rest) != nil {
				return
			}
			for _, d := range ds {
				if !yield(d, nil) {
					return
				}
			}
		}
	}
}
