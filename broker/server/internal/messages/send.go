package messages

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/transport"
)

// A sendRequest is one message, or many.
type sendRequest struct {
	web.Message
	Messages []web.Message `json:"messages"`
}

// A SendResult is the result for one message.
type SendResult struct {
	Line int    `json:"line,omitempty"` // of a stream, from 1
	ID   string `json:"id,omitempty"`   // empty if the line could not be read

	Topic  string `json:"topic,omitempty"`
	Queue  *int   `json:"queue,omitempty"` // not of a message that waits for its delivery time
	Offset *int64 `json:"offset,omitempty"`

	// RecallHandle recalls a delayed message before its delivery time.
	RecallHandle string `json:"recall_handle,omitempty"`

	Error *web.Problem `json:"error,omitempty"`
}

// SendMessages stores one message, many, or a stream of lines, by the type of the body.
func (h *Handlers) SendMessages(w http.ResponseWriter, r *http.Request) (int, any, error) {
	kind, err := web.ContentType(r, web.TypeJSON, web.TypeNDJSON, web.TypeBytes, web.TypeText)
	if err != nil {
		return 0, nil, err
	}
	client, err := httpClient(r)
	if err != nil {
		return 0, nil, err
	}
	to := sending{h: h, topic: r.PathValue("topic"), client: client, host: remoteHost(r)}
	if err := tidegate.ValidateTopic(to.topic); err != nil {
		return 0, nil, err
	}
	if raw := r.URL.RawQuery; raw != "" && (kind == web.TypeJSON || kind == web.TypeNDJSON) {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "query",
			fmt.Sprintf("the query %.100q is only for a body of type %s or %s; in JSON, set the fields of the message", raw, web.TypeBytes, web.TypeText))
	}
	switch kind {
	case web.TypeNDJSON:
		return to.stream(w, r)
	case web.TypeJSON:
		var req sendRequest
		if err := h.readRequest(w, r, &req); err != nil {
			return 0, nil, err
		}
		if req.Messages == nil {
			return to.one(r.Context(), &req.Message)
		}
		if !reflect.ValueOf(req.Message).IsZero() {
			return 0, nil, refusal.New(tidegate.CodeBadRequest, "messages", "messages and other keys exclude each other; give each message its own keys")
		}
		if err := web.CheckCount("messages", len(req.Messages)); err != nil {
			return 0, nil, err
		}
		results, errs, err := to.all(r.Context(), req.Messages)
		if err != nil {
			return 0, nil, err
		}
		return web.Many(results, errs)
	}
	query, err := web.Values(r)
	if err != nil {
		return 0, nil, err
	}
	m, err := web.MessageOfQuery(query)
	if err != nil {
		return 0, nil, err
	}
	if m.Body, err = web.ReadBody(w, r, int64(h.MaxBody)+1); err != nil { // one more is the engine's to reject
		return 0, nil, err
	}
	return to.one(r.Context(), &m)
}

// A sending has the destination and the sender of the messages of one request.
type sending struct {
	h            *Handlers
	topic        string
	client, host string
}

func (to *sending) one(ctx context.Context, m *web.Message) (int, any, error) {
	results, errs, err := to.all(ctx, []web.Message{*m})
	if err == nil {
		err = errs[0]
	}
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, results[0], nil
}

// all stores messages and returns a result for each, and its failure. The error is that of a
// request whose response the middleware replaced.
func (to *sending) all(ctx context.Context, in []web.Message) ([]SendResult, []error, error) {
	results, errs := make([]SendResult, len(in)), make([]error, len(in))
	list, at := make([]serving.Incoming, 0, len(in)), make([]int, 0, len(in))
	call := Call{Op: "SendMessage", ClientID: to.client, Topic: to.topic, Messages: len(in)}
	now := time.Now()
	for i := range in {
		m, err := in[i].Message(to.topic, now)
		results[i].ID, errs[i] = m.ID, err
		call.MessageIDs = append(call.MessageIDs, m.ID)
		if err == nil {
			list, at = append(list, in[i].Incoming(m, to.client, to.host)), append(at, i)
		}
	}
	err := to.h.Server.Through(ctx, call, func(ctx context.Context) error {
		var sent []transport.SendResult
		if len(list) > 0 {
			sent = to.h.Engine.Append(ctx, list)
		}
		if len(sent) != len(list) {
			return fmt.Errorf("the engine gave %d results for %d messages", len(sent), len(list))
		}
		for n, i := range at {
			if errs[i] = sent[n].Err; errs[i] == nil {
				results[i].stored(sent[n].Receipt)
			}
		}
		return web.Alike(errs)
	})
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if err != nil && web.Alike(errs) != err { //nolint:errorlint // the very error that next returned
		return nil, nil, err
	}
	for i, err := range errs {
		if results[i].Error = web.ProblemOf(err); err != nil {
			results[i] = SendResult{ID: results[i].ID, Error: results[i].Error}
		}
	}
	return results, errs, nil
}

// stored fills in where a message lies.
func (r *SendResult) stored(at tidegate.Receipt) {
	r.ID, r.Topic, r.RecallHandle = at.MessageID, at.Topic, at.RecallHandle
	if at.Queue >= 0 {
		r.Queue, r.Offset = &at.Queue, &at.Offset
	}
}
