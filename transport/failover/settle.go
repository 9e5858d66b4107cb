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

// Settle ends the delivery at its endpoint. Its errors are those of Ack.
func (t *Transport) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	e, inner, err := t.from("Settle", d)
	if err != nil {
		return transport.RetryResult{}, err
	}
	r, err := e.Transport.Settle(ctx, inner, v)
	return r, e.wrap(err)
}

// Extend changes the invisible duration at the endpoint of the delivery. Its errors are those of
// Ack.
func (t *Transport) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (string, error) {
	e, inner, err := t.from("ChangeInvisibleDuration", d)
	if err != nil {
		return "", err
	}
	handle, err := e.Transport.Extend(ctx, inner, dur, repeat)
	return handle, e.wrap(err)
}

// missing returns the error of an operation that an endpoint's transport does not support.
func (e *end) missing(op, subject string) error {
	return &tidegate.Error{Op: op, Subject: subject, Endpoint: e.outer(""), Code: tidegate.CodeNotImplemented,
		Message: fmt.Sprintf("the transport of %q does not support the operation", e.Name)}
}
