package failover

import (
	"context"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// from returns the endpoint that delivered d, and d with the endpoint's inner names.
func (t *Transport) from(op string, d *tidegate.Delivery) (*end, *tidegate.Delivery, error) {
	e, server := t.inner(d.Endpoint)
	if e == nil {
		return nil, nil, &tidegate.Error{Op: op, Subject: d.Topic, Endpoint: d.Endpoint, Code: tidegate.CodeIllegalAccessPoint,
			Message: "none of the endpoints delivered the message; settle it with the transport that received it"}
	}
	inner := *d
	inner.Endpoint = server
	return e, &inner, nil
}

// Ack acknowledges each delivery at the endpoint that it came from, at all endpoints at the same
// time. The error of a delivery has CodeIllegalAccessPoint if it came from none of the endpoints;
// the others are those of the endpoint's transport.
func (t *Transport) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, len(ds))
	lists, places := make([][]*tidegate.Delivery, len(t.ends)), make([][]int, len(t.ends))
	for n, d := range ds {
		e, inner, err := t.from("AckMessage", d)
		if err != nil {
			errs[n] = err
			continue
		}
		lists[e.index], places[e.index] = append(lists[e.index], inner), append(places[e.index], n)
	}
	t.each(func(e *end) {
		if len(lists[e.index]) == 0 {
			return
		}
		for k, err := range e.Transport.Ack(ctx, lists[e.index]) {
			errs[places[e.index][k]] = e.wrap(err)
		}
	})
	return errs
}

// Retry reports a failed consumption to the endpoint of the delivery. Its errors are those of Ack.
func (t *Transport) Retry(ctx context.Context, d *tidegate.Delivery, after time.Duration, reason string) (transport.RetryResult, error) {
	e, inner, err := t.from("ChangeInvisibleDuration", d)
	if err != nil {
		return transport.RetryResult{}, err
	}
	r, err := e.Transport.Retry(ctx, inner, after, reason)
	return r, e.wrap(err)
}

// Release releases the message at the endpoint of the delivery. Its errors are those of Ack.
func (t *Transport) Release(ctx context.Context, d *tidegate.Delivery) error {
	e, inner, err := t.from("ChangeInvisibleDuration", d)
	if err != nil {
		return err
	}
	return e.wrap(e.Transport.Release(ctx, inner))
}

// ChangeInvisibleDuration changes the invisible duration at the endpoint of the delivery. Its
// errors are those of Ack.
func (t *Transport) ChangeInvisibleDuration(ctx context.Context, d *tidegate.Delivery, dur time.Duration) (string, error) {
	e, inner, err := t.from("ChangeInvisibleDuration", d)
	if err != nil {
		return "", err
	}
	handle, err := e.Transport.ChangeInvisibleDuration(ctx, inner, dur)
	return handle, e.wrap(err)
}

// RepeatChange repeats a change at the endpoint of the delivery. Its errors are those of Ack.
func (t *Transport) RepeatChange(ctx context.Context, d *tidegate.Delivery, dur time.Duration) (string, error) {
	e, inner, err := t.from("ChangeInvisibleDuration", d)
	if err != nil {
		return "", err
	}
	handle, err := e.Transport.RepeatChange(ctx, inner, dur)
	return handle, e.wrap(err)
}

// DeadLetter makes the message a dead letter at the endpoint of the delivery. Its errors are those
// of Ack.
func (t *Transport) DeadLetter(ctx context.Context, d *tidegate.Delivery, reason string) (transport.RetryResult, error) {
	e, inner, err := t.from("ForwardMessageToDeadLetterQueue", d)
	if err != nil {
		return transport.RetryResult{}, err
	}
	result, err := e.Transport.DeadLetter(ctx, inner, reason)
	return result, e.wrap(err)
}

// Snooze postpones the message at the endpoint of the delivery. Its errors are those of Ack.
func (t *Transport) Snooze(ctx context.Context, d *tidegate.Delivery, dur time.Duration) error {
	e, inner, err := t.from("Snooze", d)
	if err != nil {
		return err
	}
	return e.wrap(e.Transport.Snooze(ctx, inner, dur))
}

// Reconsume ends a failed delivery at its endpoint, as its ReconsumeMode states. Its errors are
// those of Ack.
func (t *Transport) Reconsume(ctx context.Context, d *tidegate.Delivery, mode transport.ReconsumeMode) (transport.RetryResult, error) {
	e, inner, err := t.from("Reconsume", d)
	if err != nil {
		return transport.RetryResult{}, err
	}
	result, err := e.Transport.Reconsume(ctx, inner, mode)
	return result, e.wrap(err)
}

// missing returns the error of an operation that an endpoint's transport does not support.
func (e *end) missing(op, subject string) error {
	return &tidegate.Error{Op: op, Subject: subject, Endpoint: e.outer(""), Code: tidegate.CodeNotImplemented,
		Message: fmt.Sprintf("the transport of %q does not support the operation", e.Name)}
}
