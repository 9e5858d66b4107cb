package server

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/server/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// settlement reads a request about deliveries of a group, and returns the
// group and the client.
func (s *Server) settlement(w http.ResponseWriter, r *http.Request, v any) (group, client string, err error) {
	group = r.PathValue("group")
	if client, err = httpClient(r); err != nil {
		return "", "", err
	}
	if err := tidegate.ValidateGroup(group); err != nil {
		return "", "", err
	}
	return group, client, s.readRequest(w, r, v)
}

type ackRequest struct {
	Handles []string `json:"handles"`
}

// An ackResult is what became of one handle.
type ackResult struct {
	Handle string       `json:"handle"`
	Error  *web.Problem `json:"error,omitempty"`
}

func (s *Server) acknowledge(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req ackRequest
	group, client, err := s.settlement(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	if err := web.CheckCount("handles", len(req.Handles)); err != nil {
		return 0, nil, err
	}
	ds, errs := make([]tidegate.Delivery, len(req.Handles)), make([]error, len(req.Handles))
	list, at := make([]*tidegate.Delivery, 0, len(ds)), make([]int, 0, len(ds))
	for i, h := range req.Handles {
		fill(&ds[i], group, "", "", h)
		if errs[i] = s.permitHandle(r, &ds[i]); errs[i] == nil { // a refusal is that handle's own
			list, at = append(list, &ds[i]), append(at, i)
		}
	}
	if len(list) > 0 {
		call := Call{Op: "AckMessage", ClientID: client, Group: group, Messages: len(list)}
		err = s.through(r.Context(), call, func(ctx context.Context) error {
			acked := s.b.Ack(ctx, list)
			if len(acked) != len(list) {
				return fmt.Errorf("the engine gave %d results for %d handles", len(acked), len(list))
			}
			for n, i := range at {
				errs[i] = acked[n]
			}
			return web.Alike(errs)
		})
		if err != nil && web.Alike(errs) != err { //nolint:errorlint // the very error that next returned
			return 0, nil, err
		}
	}
	results := make([]ackResult, len(req.Handles))
	for i, h := range req.Handles {
		results[i] = ackResult{h, web.ProblemOf(errs[i])}
	}
	return web.Many(results, errs)
}

// A handleRequest is what every request about one delivery has.
type handleRequest struct {
	Handle string `json:"handle"`
}

func (r *handleRequest) handle() string { return r.Handle }

// settleOne reads a request about one delivery, which who sends it may settle.
func (s *Server) settleOne(w http.ResponseWriter, r *http.Request, req interface{ handle() string }) (d *tidegate.Delivery, client string, err error) {
	group, client, err := s.settlement(w, r, req)
	if err != nil {
		return nil, "", err
	}
	d = new(tidegate.Delivery)
	fill(d, group, "", "", req.handle())
	return d, client, s.permitHandle(r, d)
}

type changeRequest struct {
	handleRequest

	InvisibleDuration *broker.Duration `json:"invisible_duration"`
}

type changeResult struct {
	Handle         string    `json:"handle"` // in place of the one that was given
	InvisibleUntil time.Time `json:"invisible_until"`
}

func (s *Server) changeInvisible(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req changeRequest
	d, client, err := s.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	if req.InvisibleDuration == nil {
		return 0, nil, refusal.New(tidegate.CodeIllegalInvisibleTime, "invisible_duration",
			"invisible_duration is missing; give how long the message is to be kept from others, or \"0s\" to give it back")
	}
	var out changeResult
	dur := time.Duration(*req.InvisibleDuration)
	err = s.through(r.Context(), changeCall(client, d.ConsumerGroup), func(ctx context.Context) (err error) {
		out.InvisibleUntil = time.Now().Add(dur) // or a little later
		out.Handle, err = s.b.ChangeInvisibleDuration(ctx, d, dur)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, out, nil
}

// changeCall is what the ways to postpone a message are on the other wire.
func changeCall(client, group string) Call {
	return Call{Op: "ChangeInvisibleDuration", ClientID: client, Group: group, Messages: 1}
}

// A retryResult is what becomes of a message that was not consumed. Without a fate the group was
// done with the message before.
type retryResult struct {
	Fate  string           `json:"fate,omitempty"`
	Delay *broker.Duration `json:"delay,omitempty"` // until the next delivery; only of "again"
}

// fates are the texts of those that a client is told.
var fates = map[transport.Fate]string{
	transport.FateAgain: "again", transport.FateDeadLetter: "dead_letter", transport.FateParked: "parked",
}

// retried makes the response of a request whose deliveries end with a result.
func retried(r transport.RetryResult, err error) (int, any, error) {
	if err != nil {
		return 0, nil, err
	}
	out := retryResult{Fate: fates[r.Fate]}
	if r.Fate == transport.FateAgain {
		out.Delay = new(broker.Duration(r.Delay))
	}
	return http.StatusOK, out, nil
}

type snoozeRequest struct {
	handleRequest

	Delay *broker.Duration `json:"delay"`
}

// snooze ends a delivery without counting its attempt.
func (s *Server) snooze(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req snoozeRequest
	d, client, err := s.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	if req.Delay == nil {
		return 0, nil, refusal.New(tidegate.CodeIllegalInvisibleTime, "delay",
			"delay is missing; give the time until the next delivery, or \"0s\" for none")
	}
	return noContent(s.through(r.Context(), changeCall(client, d.ConsumerGroup), func(ctx context.Context) error {
		return s.b.Snooze(ctx, d, time.Duration(*req.Delay))
	}))
}

type retryRequest struct {
	handleRequest

	After   *broker.Duration `json:"after"`
	Attempt int              `json:"attempt"` // the group's own interval after this one; 0: after that of the handle
	Reason  string           `json:"reason"`  // of the dead letter, if it becomes one
}

func (s *Server) retry(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req retryRequest
	d, client, err := s.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	var after time.Duration
	switch {
	case req.After != nil && req.Attempt != 0:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "after",
			"after, the time until the next delivery, and attempt, for the group's own interval after that one, exclude one another")
	case req.After != nil:
		after = max(time.Duration(*req.After), transport.ByLadder+1) // too short, and nothing else
	case req.Attempt < 0:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "attempt", fmt.Sprintf("attempt is %d; the first delivery is 1", req.Attempt))
	default:
		if _, err := s.b.Group(d.ConsumerGroup); err != nil {
			return 0, nil, err
		}
		d.Attempt = req.Attempt
		if after, err = s.b.RetryInterval(d); err != nil {
			return 0, nil, err
		}
	}
	var result transport.RetryResult
	err = s.through(r.Context(), changeCall(client, d.ConsumerGroup), func(ctx context.Context) (err error) {
		result, err = s.b.Retry(ctx, d, after, wire.Bounded(req.Reason))
		return err
	})
	return retried(result, err)
}

type deadLetterRequest struct {
	handleRequest

	Reason  string `json:"reason"`
	Attempt int    `json:"attempt"`
}

func (s *Server) deadLetter(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req deadLetterRequest
	d, client, err := s.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	if req.Reason == "" {
		req.Reason = "the consumer gave it up"
	}
	d.Attempt = req.Attempt
	call := Call{Op: "ForwardMessageToDeadLetterQueue", ClientID: client, Group: d.ConsumerGroup, Messages: 1}
	var result transport.RetryResult
	err = s.through(r.Context(), call, func(ctx context.Context) (err error) {
		result, err = s.b.DeadLetterResult(ctx, d, req.Reason)
		return err
	})
	return retried(result, err)
}

type recallRequest struct {
	RecallHandle string `json:"recall_handle"`
}

type recallResult struct {
	ID string `json:"id"`
}

func (s *Server) recallMessage(w http.ResponseWriter, r *http.Request) (int, any, error) {
	client, err := httpClient(r)
	if err != nil {
		return 0, nil, err
	}
	var req recallRequest
	if err := s.readRequest(w, r, &req); err != nil {
		return 0, nil, err
	}
	topic := r.PathValue("topic")
	var out recallResult
	err = s.through(r.Context(), Call{Op: "RecallMessage", ClientID: client, Topic: topic}, func(ctx context.Context) (err error) {
		out.ID, err = s.b.Recall(ctx, topic, req.RecallHandle)
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

type reconsumeRequest struct {
	handleRequest

	Delay broker.Duration `json:"delay"`
	Level int             `json:"level"`
}

type reconsumeResult struct {
	broker.Reconsumed

	Delay broker.Duration `json:"delay"` // until DeliverAt, in the broker's clock
}

// reconsumeLater has a delivery consumed later through the group's retry
// topic: after a delay, after a level's delay, or, with neither, after that of
// the next level (TDMQ for Pulsar: retry and dead letters).
func (s *Server) reconsumeLater(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req reconsumeRequest
	d, client, err := s.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	if err := s.permitReconsume(r, d); err != nil {
		return 0, nil, err
	}
	var out reconsumeResult
	call := Call{Op: "ReconsumeLater", ClientID: client, Group: d.ConsumerGroup, Messages: 1}
	err = s.through(r.Context(), call, func(ctx context.Context) (err error) {
		out.Reconsumed, err = s.b.ReconsumeLater(ctx, d, broker.ReconsumeMode{Delay: time.Duration(req.Delay), Level: req.Level})
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	if !out.DeliverAt.IsZero() {
		out.Delay = broker.Duration(max(time.Until(out.DeliverAt), 0))
	}
	return http.StatusOK, out, nil
}

type negativeAckRequest struct {
	handleRequest

	Delay broker.Duration `json:"delay"`
}

// negativeAcknowledge has a delivery delivered again after a delay, or after the
// group's.
func (s *Server) negativeAcknowledge(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req negativeAckRequest
	d, client, err := s.settleOne(w, r, &req)
	if err != nil {
		return 0, nil, err
	}
	call := Call{Op: "NegativeAck", ClientID: client, Group: d.ConsumerGroup, Messages: 1}
	var result transport.RetryResult
	err = s.through(r.Context(), call, func(ctx context.Context) (err error) {
		result, err = s.b.Reconsume(ctx, d, transport.ReconsumeMode{Negative: true, Delay: time.Duration(req.Delay)})
		return err
	})
	return retried(result, err)
}
