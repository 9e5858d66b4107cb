package server

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// settlement reads a request about deliveries of a group, and returns the
// group and the client.
func (h *messageRoutes) settlement(w http.ResponseWriter, r *http.Request, v any) (group, client string, err error) {
	group = r.PathValue("group")
	if client, err = httpClient(r); err != nil {
		return "", "", err
	}
	if err := tidegate.ValidateGroup(group); err != nil {
		return "", "", err
	}
	return group, client, h.readRequest(w, r, v)
}

// An ackRequest names the deliveries that were consumed.
type ackRequest struct {
	Handles []string `json:"handles"`
}

// An ackResult is the result for one handle.
type ackResult struct {
	Handle string   `json:"handle"`
	Error  *problem `json:"error,omitempty"`
}

// Acknowledge marks deliveries as consumed. Each handle has a result of its own.
func (h *messageRoutes) Acknowledge(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req ackRequest
	group, client, err := h.settlement(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	if err := checkCount("handles", len(req.Handles)); err != nil {
		return 0, nil, err
	}
	ds, errs := make([]tidegate.Delivery, len(req.Handles)), make([]error, len(req.Handles))
	list, at := make([]*tidegate.Delivery, 0, len(ds)), make([]int, 0, len(ds))
	for i, handle := range req.Handles {
		ds[i].ConsumerGroup, ds[i].Handle = group, handle
		if errs[i] = h.permitHandle(r, &ds[i]); errs[i] == nil { // a rejection is that handle's own
			list, at = append(list, &ds[i]), append(at, i)
		}
	}
	if len(list) > 0 {
		call := Call{Op: "AckMessage", ClientID: client, Group: group, Messages: len(list)}
		err = h.server.through(r.Context(), call, func(ctx context.Context) error {
			acked := h.Engine.Ack(ctx, list)
			if len(acked) != len(list) {
				return fmt.Errorf("the engine gave %d results for %d handles", len(acked), len(list))
			}
			for n, i := range at {
				errs[i] = acked[n]
			}
			return alike(errs)
		})
		if err != nil && alike(errs) != err { //nolint:errorlint // the very error that next returned
			return 0, nil, err
		}
	}
	results := make([]ackResult, len(req.Handles))
	for i, handle := range req.Handles {
		results[i] = ackResult{handle, problemOf(errs[i])}
	}
	return manyResults(results, errs)
}

// A handleRequest has the keys of every request about one delivery.
type handleRequest struct {
	Handle string `json:"handle"`
}

func (r *handleRequest) handle() string { return r.Handle }

// settleOne reads a request about one delivery, and checks the permission to settle it.
func (h *messageRoutes) settleOne(w http.ResponseWriter, r *http.Request, req interface{ handle() string }) (d *tidegate.Delivery, client string, err error) {
	group, client, err := h.settlement(w, r, req)
	if err != nil {
		return nil, "", err
	}
	d = &tidegate.Delivery{ConsumerGroup: group, Handle: req.handle()}
	return d, client, h.permitHandle(r, d)
}

// A changeRequest sets the invisible duration of a delivery.
type changeRequest struct {
	handleRequest

	InvisibleDuration *settings.Duration `json:"invisible_duration"`
}

// A changeResult is the state after a changeRequest.
type changeResult struct {
	Handle         string    `json:"handle"` // in place of the one that was given
	InvisibleUntil time.Time `json:"invisible_until"`
}

// ChangeInvisible changes the invisible duration of a delivery.
func (h *messageRoutes) ChangeInvisible(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req changeRequest
	d, client, err := h.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	if req.InvisibleDuration == nil {
		return 0, nil, refusal.New(protocol.CodeIllegalInvisibleTime, "invisible_duration",
			"invisible_duration is missing; give the time for which the message stays invisible, or \"0s\" to release it")
	}
	var out changeResult
	dur := time.Duration(*req.InvisibleDuration)
	err = h.server.through(r.Context(), changeCall(client, d.ConsumerGroup), func(ctx context.Context) (err error) {
		out.InvisibleUntil = time.Now().Add(dur) // or a little later
		out.Handle, err = h.Engine.Extend(ctx, d, dur, false)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, out, nil
}

// changeCall is the equivalent RPC of the requests that postpone a message.
func changeCall(client, group string) Call {
	return Call{Op: "ChangeInvisibleDuration", ClientID: client, Group: group, Messages: 1}
}

// A retryResult is the fate of a message that was not consumed. It has no fate if the group had
// finished the message before.
type retryResult struct {
	Fate  string             `json:"fate,omitempty"`
	Delay *settings.Duration `json:"delay,omitempty"` // until the next delivery; only of "again"
}

// fates are the texts of fates in responses.
var fates = map[transport.Fate]string{
	transport.FateAgain: "again", transport.FateDeadLetter: "dead_letter", transport.FateParked: "parked",
}

// settle ends a delivery by a verdict, and returns the response with the fate of the message.
func (h *messageRoutes) settle(r *http.Request, call Call, d *tidegate.Delivery, v transport.Verdict) (int, any, error) {
	var result transport.RetryResult
	err := h.server.through(r.Context(), call, func(ctx context.Context) (err error) {
		result, err = h.Engine.Settle(ctx, d, v)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	out := retryResult{Fate: fates[result.Fate]}
	if result.Fate == transport.FateAgain {
		out.Delay = new(settings.Duration(result.Delay))
	}
	return http.StatusOK, out, nil
}

// A snoozeRequest ends a delivery without counting its attempt.
type snoozeRequest struct {
	handleRequest

	Delay *settings.Duration `json:"delay"`
}

// Snooze ends a delivery without counting its attempt.
func (h *messageRoutes) Snooze(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req snoozeRequest
	d, client, err := h.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	if req.Delay == nil {
		return 0, nil, refusal.New(protocol.CodeIllegalInvisibleTime, "delay",
			"delay is missing; give the time until the next delivery, or \"0s\" for none")
	}
	return noContent(h.server.through(r.Context(), changeCall(client, d.ConsumerGroup), func(ctx context.Context) error {
		_, err := h.Engine.Settle(ctx, d, transport.Verdict{Kind: transport.Snooze, Delay: time.Duration(*req.Delay)})
		return err
	}))
}

// A retryRequest reports that a delivery failed.
type retryRequest struct {
	handleRequest

	After   *settings.Duration `json:"after"`
	Attempt int                `json:"attempt"` // the group's own interval after this one; 0: after that of the handle
	Reason  string             `json:"reason"`  // of the dead letter, if it becomes one
}

// Retry ends a failed delivery: the message is delivered again, becomes a dead letter, or parks its
// message group.
func (h *messageRoutes) Retry(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req retryRequest
	d, client, err := h.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	var after time.Duration
	switch {
	case req.After != nil && req.Attempt != 0:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "after",
			"after (the time until the next delivery) and attempt (for the group's interval after that attempt) exclude each other; give one of them")
	case req.After != nil:
		after = max(time.Duration(*req.After), transport.BySchedule+1) // too short, and nothing else
	case req.Attempt < 0:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "attempt", "attempt is %d; give 1 or more, 1 is the first delivery", req.Attempt)
	default:
		if _, err := h.Engine.Group(d.ConsumerGroup); err != nil {
			return 0, nil, err
		}
		d.Attempt = req.Attempt
		if after, err = h.Engine.RetryInterval(d); err != nil {
			return 0, nil, err
		}
	}
	v := transport.Verdict{Kind: transport.Retry, Delay: after, Reason: wire.BoundReason(req.Reason)}
	return h.settle(r, changeCall(client, d.ConsumerGroup), d, v)
}

// A deadLetterRequest reports that no further delivery can succeed.
type deadLetterRequest struct {
	handleRequest

	Reason  string `json:"reason"`
	Attempt int    `json:"attempt"`
}

// DeadLetter makes a delivery's message a dead letter.
func (h *messageRoutes) DeadLetter(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req deadLetterRequest
	d, client, err := h.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	if req.Reason == "" {
		req.Reason = "the consumer requested a dead letter"
	}
	d.Attempt = req.Attempt
	call := Call{Op: "ForwardMessageToDeadLetterQueue", ClientID: client, Group: d.ConsumerGroup, Messages: 1}
	return h.settle(r, call, d, transport.Verdict{Kind: transport.DeadLetter, Reason: req.Reason})
}

// A recallRequest names a delayed message.
type recallRequest struct {
	RecallHandle string `json:"recall_handle"`
}

// A recallResult is the message that was recalled.
type recallResult struct {
	ID string `json:"id"`
}

// RecallMessage removes a delayed message before its delivery time.
func (h *messageRoutes) RecallMessage(w http.ResponseWriter, r *http.Request) (int, any, error) {
	client, err := httpClient(r)
	if err != nil {
		return 0, nil, err
	}
	var req recallRequest
	if err := h.readRequest(w, r, &req); err != nil {
		return 0, nil, err
	}
	topic := r.PathValue("topic")
	var out recallResult
	err = h.server.through(r.Context(), Call{Op: "RecallMessage", ClientID: client, Topic: topic}, func(ctx context.Context) (err error) {
		out.ID, err = h.Engine.Recall(ctx, topic, req.RecallHandle)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, out, nil
}

func noContent(err error) (int, any, error) {
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, nil
}

// A reconsumeRequest has a delivery consumed later through the group's retry topic. At most one of
// its options is set.
type reconsumeRequest struct {
	handleRequest

	Delay settings.Duration `json:"delay"`
	Level int               `json:"level"`
}

// A reconsumeResult is where and when the message is delivered next.
type reconsumeResult struct {
	engine.Reconsumed

	Delay settings.Duration `json:"delay"` // until DeliverAt, in the broker's clock
}

// ReconsumeLater has a delivery consumed later through the group's retry
// topic: after a delay, after a level's delay, or, with neither, after that of
// the next level (TDMQ for Pulsar: retry and dead letters).
func (h *messageRoutes) ReconsumeLater(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req reconsumeRequest
	d, client, err := h.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	if err := h.permitReconsume(r, d); err != nil {
		return 0, nil, err
	}
	var out reconsumeResult
	call := Call{Op: "ReconsumeLater", ClientID: client, Group: d.ConsumerGroup, Messages: 1}
	err = h.server.through(r.Context(), call, func(ctx context.Context) (err error) {
		out.Reconsumed, err = h.Engine.ReconsumeLater(ctx, d, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Duration(req.Delay), Level: req.Level})
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	if !out.DeliverAt.IsZero() {
		out.Delay = settings.Duration(max(time.Until(out.DeliverAt), 0))
	}
	return http.StatusOK, out, nil
}

// A negativeAckRequest is a negative acknowledgement of a delivery.
type negativeAckRequest struct {
	handleRequest

	Delay settings.Duration `json:"delay"`
}

// NegativeAcknowledge has a delivery delivered again after a delay, or after the
// group's.
func (h *messageRoutes) NegativeAcknowledge(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req negativeAckRequest
	d, client, err := h.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	call := Call{Op: "NegativeAck", ClientID: client, Group: d.ConsumerGroup, Messages: 1}
	return h.settle(r, call, d, transport.Verdict{Kind: transport.NegativeAck, Delay: time.Duration(req.Delay)})
}
