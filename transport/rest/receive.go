package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/internal/protocol"
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
	LiteConsumer      string  `json:"lite_consumer,omitempty"`
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
		LiteConsumer: r.LiteConsumer,
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

// maxHandles bounds the acknowledgements of one request; the broker accepts 1000.
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
				Op: op, Subject: group, Endpoint: c.api.Endpoint(), Code: protocol.CodeInternalError, MaybeStored: true,
				Message: "the response has a different number of results than the request has handles",
			}
		}
	}
	return errs
}

// settle sends a request about deliveries of a group.
func (c *Client) settle(ctx context.Context, op string, d *tidegate.Delivery, path string, body, out any) *httpapi.Failure {
	if err := tidegate.ValidateGroup(d.ConsumerGroup); err != nil {
		return &httpapi.Failure{Err: bad(op, d.ConsumerGroup, "%v", err)}
	}
	return c.do(ctx, call{op: op, subject: d.ConsumerGroup, method: "POST", path: []string{"groups", d.ConsumerGroup, path}, body: body, out: out})
}

type retryRequest struct {
	Handle string  `json:"handle"`
	After  *string `json:"after,omitempty"` // nil means the group's interval
	Reason string  `json:"reason,omitempty"`
}

// A retryResult is the fate of a message in a response.
type retryResult struct {
	Fate  string           `json:"fate"`
	Delay httpapi.Duration `json:"delay"`
}

func (r retryResult) result() transport.RetryResult {
	switch r.Fate {
	case "again":
		return transport.RetryResult{Fate: transport.FateAgain, Delay: time.Duration(r.Delay)}
	case "dead_letter":
		return transport.RetryResult{Fate: transport.FateDeadLetter}
	case "parked":
		return transport.RetryResult{Fate: transport.FateParked}
	}
	return transport.RetryResult{}
}

// settled sends a request about one delivery whose response is a retryResult.
func (c *Client) settled(ctx context.Context, op string, d *tidegate.Delivery, path string, body any) (transport.RetryResult, error) {
	var out retryResult
	if f := c.settle(ctx, op, d, path, body, &out); f != nil {
		return transport.RetryResult{}, f.Err
	}
	return out.result(), nil
}

type delayRequest struct {
	Handle string `json:"handle"`
	Delay  string `json:"delay,omitempty"`
	Level  int    `json:"level,omitempty"`
}

type changeRequest struct {
	Handle            string `json:"handle"`
	InvisibleDuration string `json:"invisible_duration"`
}

type deadLetterRequest struct {
	Handle  string `json:"handle"`
	Reason  string `json:"reason,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
}

// Settle implements transport.Settler. A Retry with transport.BySchedule means the broker's own
// interval. The HTTP API has no request of its own for a Release: the broker knows whether the
// receive had Push set.
func (c *Client) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	const opChange = "ChangeInvisibleDuration"
	switch v.Kind {
	case transport.Release:
		_, err := c.Extend(ctx, d, 0, false)
		return transport.RetryResult{}, err
	case transport.Retry:
		r := retryRequest{Handle: d.Handle, Reason: v.Reason}
		if v.Delay != transport.BySchedule {
			r.After = new(v.Delay.String())
		}
		return c.settled(ctx, opChange, d, "retry", r)
	case transport.DeadLetter:
		return c.settled(ctx, "ForwardMessageToDeadLetterQueue", d, "dead-letter", deadLetterRequest{d.Handle, v.Reason, d.Attempt})
	case transport.Snooze:
		return transport.RetryResult{}, errOf(c.settle(ctx, opChange, d, "snooze", delayRequest{Handle: d.Handle, Delay: v.Delay.String()}, nil))
	case transport.NegativeAck:
		return c.settled(ctx, "Reconsume", d, "negative-acknowledge", delayOf(d, v))
	case transport.RetryTopic:
		return c.reconsume(ctx, d, v)
	}
	return transport.RetryResult{}, v.Unsupported(d)
}

// delayOf is the request of a RetryTopic or NegativeAck.
func delayOf(d *tidegate.Delivery, v transport.Verdict) delayRequest {
	r := delayRequest{Handle: d.Handle, Level: v.Level}
	if v.Delay != 0 {
		r.Delay = v.Delay.String()
	}
	return r
}

func (c *Client) reconsume(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	var out struct {
		DeadLetter bool             `json:"dead_letter"`
		Delay      httpapi.Duration `json:"delay"`
	}
	if f := c.settle(ctx, "Reconsume", d, "reconsume-later", delayOf(d, v), &out); f != nil {
		return transport.RetryResult{}, f.Err
	}
	if out.DeadLetter {
		return transport.RetryResult{Fate: transport.FateDeadLetter}, nil
	}
	return transport.RetryResult{Fate: transport.FateAgain, Delay: time.Duration(out.Delay)}, nil
}

// Extend implements transport.Settler. The HTTP API has no repetition of a change.
func (c *Client) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, _ bool) (handle string, err error) {
	var out struct {
		Handle string `json:"handle"`
	}
	f := c.settle(ctx, "ChangeInvisibleDuration", d, "change-invisible-duration", changeRequest{d.Handle, dur.String()}, &out)
	return out.Handle, errOf(f)
}

// A liteChange is the change of the lite topics of a consumer in a request.
type liteChange struct {
	LiteTopics *[]string  `json:"lite_topics,omitempty"`
	Add        []string   `json:"add,omitempty"`
	Remove     []string   `json:"remove,omitempty"`
	Start      *liteStart `json:"start,omitempty"`
}

type liteStart struct {
	From   string     `json:"from,omitempty"`
	Last   int64      `json:"last,omitempty"`
	Offset int64      `json:"offset,omitempty"`
	Time   *time.Time `json:"time,omitempty"`
}

func liteConsumerPath(c transport.LiteConsumer, more ...string) []string {
	return append([]string{"groups", c.Group, "topics", c.Topic, "lite-consumers", c.ID}, more...)
}

func checkLite(op string, c transport.LiteConsumer) error {
	if err := errors.Join(tidegate.ValidateTopic(c.Topic), tidegate.ValidateGroup(c.Group)); err != nil {
		return err
	}
	if c.ID == "" {
		return bad(op, c.Group, "the ID of the consumer is empty; give each consumer its own")
	}
	return nil
}

// SyncLite implements transport.LiteSubscriber.
func (c *Client) SyncLite(ctx context.Context, s transport.LiteSync) error {
	const op = "SyncLite"
	if err := checkLite(op, s.LiteConsumer); err != nil {
		return err
	}
	method, body := "PATCH", liteChange{}
	switch s.Action {
	case transport.LiteSet:
		all := append([]string{}, s.Topics...)
		method, body.LiteTopics = "PUT", &all
	case transport.LiteAdd:
		body.Add = s.Topics
	case transport.LiteRemove:
		body.Remove = s.Topics
	default:
		return bad(op, s.Group, "the action is %d; give set (0), add (1) or remove (2)", s.Action)
	}
	if s.Action != transport.LiteSet && len(s.Topics) == 0 {
		return nil
	}
	switch at := s.Start; {
	case at == transport.LiteStart{}:
	case at.Oldest:
		body.Start = &liteStart{From: "oldest"}
	case at.Newest:
		body.Start = &liteStart{From: "newest"}
	case !at.Time.IsZero():
		body.Start = &liteStart{Time: &at.Time}
	default:
		body.Start = &liteStart{Last: at.Last, Offset: at.Offset}
	}
	return errOf(c.do(ctx, call{op: op, subject: s.Group, method: method, path: liteConsumerPath(s.LiteConsumer), body: body}))
}

// ServeLite implements transport.LiteSubscriber. It makes one request, whose response is a stream. If
// the broker or the connection ends the stream, ServeLite returns an error.
func (c *Client) ServeLite(ctx context.Context, of transport.LiteConsumer, ended func(liteTopic string)) error {
	const op = "ServeLite"
	if err := checkLite(op, of); err != nil {
		return err
	}
	r := httpapi.Request{Op: op, Subject: of.Group, Path: httpapi.Path(liteConsumerPath(of, "ended")...), MaxResponse: c.limit, Reads: true}
	err := c.api.Lines(ctx, &r, func(text []byte) error {
		var line struct {
			LiteTopic string           `json:"lite_topic"`
			Error     *httpapi.Problem `json:"error"`
		}
		if err := json.Unmarshal(text, &line); err != nil {
			return bad(op, of.Group, "a line of the response is not JSON: %v", err)
		}
		if line.Error != nil {
			return line.Error.Error(op, of.Group, c.api.Endpoint())
		}
		ended(line.LiteTopic)
		return nil
	})
	switch f, failed := errors.AsType[*httpapi.Failure](err); {
	case ctx.Err() != nil:
		return nil //nolint:nilerr // the caller has ended it
	case failed:
		return f.Err
	case err == nil:
		return &tidegate.Error{Op: op, Subject: of.Group, Endpoint: c.api.Endpoint(), Err: fmt.Errorf("%w: the broker has ended the stream", tidegate.ErrUnavailable)}
	}
	return err
}
