package rest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/transport"
)

// maxReceive is the broker's maximum of messages in one response.
const maxReceive = 32

// releaseTimeout bounds the release of messages that a receive does not return.
const releaseTimeout = 3 * time.Second

type receiveRequest struct {
	Max               int     `json:"max"`
	MaxBytes          int     `json:"max_bytes,omitempty"`
	Wait              string  `json:"wait"`
	InvisibleDuration string  `json:"invisible_duration"`
	Filter            *filter `json:"filter,omitempty"`
	AttemptID         string  `json:"attempt_id,omitempty"`
	Repeat            bool    `json:"repeat,omitempty"`
	Push              bool    `json:"push,omitempty"`
}

type filter struct {
	Type       string `json:"type,omitempty"`
	Expression string `json:"expression"`
}

// Receive implements transport.Receiver. r.Queue must be transport.AnyQueue; any other queue fails
// with CodeNotImplemented. The broker waits for 20 s at most, unless it is configured otherwise.
func (c *Client) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	const op = "ReceiveMessage"
	if r.Queue != transport.AnyQueue {
		return nil, &tidegate.Error{Op: op, Subject: r.Topic, Code: tidegate.CodeNotImplemented,
			Message: fmt.Sprintf("HTTP cannot receive from a single queue (%d); use transport.AnyQueue", r.Queue)}
	}
	if err := errors.Join(tidegate.ValidateTopic(r.Topic), tidegate.ValidateGroup(r.Group)); err != nil {
		return nil, err
	}
	req := receiveRequest{
		Max: min(max(r.Max, 1), maxReceive), MaxBytes: max(r.MaxBytes, 0), Wait: max(r.Wait, 0).String(), InvisibleDuration: r.InvisibleDuration.String(), AttemptID: r.AttemptID, Repeat: r.Repeat, Push: r.Push,
	}
	if r.Filter.Expression != "" {
		req.Filter = &filter{Expression: r.Filter.Expression}
		if r.Filter.SQL {
			req.Filter.Type = "SQL92"
		}
	}
	var out struct {
		Messages []httpapi.Delivery `json:"messages"`
	}
	f := c.do(ctx, call{
		op: op, subject: r.Topic, method: "POST", path: []string{"groups", r.Group, "topics", r.Topic, "receive"}, body: req, out: &out, extra: max(r.Wait, 0),
	})
	if f != nil {
		f.Err.MaybeStored = false // set for a settlement or a send only
		if f.Unreadable {
			f.Err.Err = errors.Join(transport.ErrUnreadable, f.Err.Err)
		}
		return nil, f.Err
	}
	ds, now := make([]*tidegate.Delivery, len(out.Messages)), time.Now()
	for i := range out.Messages {
		ds[i] = out.Messages[i].Delivery(c.api.Endpoint(), now)
	}
	if ctx.Err() != nil {
		c.release(ctx, ds)
		return nil, &tidegate.Error{Op: op, Subject: r.Topic, Endpoint: c.api.Endpoint(), Err: context.Cause(ctx)}
	}
	return ds, nil
}

// release makes messages visible again that the caller does not receive. If the release of a
// message fails, the broker redelivers it after its invisible duration.
func (c *Client) release(ctx context.Context, ds []*tidegate.Delivery) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	for _, d := range ds {
		if _, err := c.Settle(ctx, d, transport.Verdict{Kind: transport.Release}); err != nil && ctx.Err() != nil {
			return
		}
	}
}
