package rest

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/transport"
)

// maxHandles bounds the acknowledgements of one request; the broker takes 1000.
const maxHandles = 1000

type ackResult struct {
	Handle string           `json:"handle"`
	Error  *httpapi.Problem `json:"error"`
}

// Ack implements transport.Settler, in requests of at most 1000 deliveries.
func (c *Client) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, 0, len(ds))
	for len(errs) < len(ds) {
		rest := ds[len(errs):]
		errs = append(errs, c.ack(ctx, rest[:min(len(rest), maxHandles)])...)
	}
	return errs
}

func (c *Client) ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	const op = "AckMessage"
	group, errs := ds[0].ConsumerGroup, make([]error, len(ds))
	var body struct {
		Handles []string `json:"handles"`
	}
	for _, d := range ds {
		body.Handles = append(body.Handles, d.Handle)
	}
	var out struct {
		Results []ackResult `json:"results"`
	}
	f := c.settle(ctx, op, ds[0], "acknowledge", body, &out)
	results := out.Results
	if f != nil && (f.Results == nil || json.Unmarshal(f.Results, &results) != nil) {
		results = nil
	}
	for i := range ds {
		switch {
		case len(results) == len(ds):
			if p := results[i].Error; p != nil {
				errs[i] = p.Error(op, group, c.api.Endpoint())
			}
		case f != nil:
			e := *f.Err
			errs[i] = &e
		default:
			errs[i] = &tidegate.Error{
				Op: op, Subject: group, Endpoint: c.api.Endpoint(), Code: tidegate.CodeInternalError, MaybeStored: true,
				Message: "the response has another number of results than the request has handles",
			}
		}
	}
	return errs
}

// settle makes a request about deliveries of a group.
func (c *Client) settle(ctx context.Context, op string, d *tidegate.Delivery, path string, body, out any) *httpapi.Failure {
	if err := tidegate.ValidateGroup(d.ConsumerGroup); err != nil {
		return &httpapi.Failure{Err: bad(op, d.ConsumerGroup, "%v", err)}
	}
	return c.do(ctx, call{op: op, subject: d.ConsumerGroup, method: "POST", path: []string{"groups", d.ConsumerGroup, path}, body: body, out: out})
}

type retryRequest struct {
	Handle string  `json:"handle"`
	After  *string `json:"after,omitempty"` // nil: the group's interval
}

// Retry implements transport.Settler. The result is zero, since HTTP does not tell it, and the
// reason is lost. A delay of transport.ByLadder is the broker's own.
func (c *Client) Retry(ctx context.Context, d *tidegate.Delivery, after time.Duration, _ string) (transport.RetryResult, error) {
	r := retryRequest{Handle: d.Handle}
	if after != transport.ByLadder {
		r.After = new(after.String())
	}
	return transport.RetryResult{}, errOf(c.settle(ctx, "ChangeInvisibleDuration", d, "retry", r, nil))
}

type changeRequest struct {
	Handle            string `json:"handle"`
	InvisibleDuration string `json:"invisible_duration"`
}

// ChangeInvisibleDuration implements transport.Settler.
func (c *Client) ChangeInvisibleDuration(ctx context.Context, d *tidegate.Delivery, dur time.Duration) (handle string, err error) {
	var out struct {
		Handle string `json:"handle"`
	}
	f := c.settle(ctx, "ChangeInvisibleDuration", d, "change-invisible-duration", changeRequest{d.Handle, dur.String()}, &out)
	return out.Handle, errOf(f)
}

type deadLetterRequest struct {
	Handle  string `json:"handle"`
	Reason  string `json:"reason,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
}

// DeadLetter implements transport.Settler.
func (c *Client) DeadLetter(ctx context.Context, d *tidegate.Delivery, reason string) error {
	return errOf(c.settle(ctx, "ForwardMessageToDeadLetterQueue", d, "dead-letter", deadLetterRequest{d.Handle, reason, d.Attempt}, nil))
}
