package routes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// A sendRequest is one message, or many.
type sendRequest struct {
	Message
	Messages []Message `json:"messages"`
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

	Error *Problem `json:"error,omitempty"`
}

// SendMessages stores one message, many, or a stream of lines, by the type of the body.
func (h *Messages) SendMessages(w http.ResponseWriter, r *http.Request) (int, any, error) {
	kind, err := contentType(r, TypeJSON, TypeNDJSON, TypeBytes, TypeText)
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
	if raw := r.URL.RawQuery; raw != "" && (kind == TypeJSON || kind == TypeNDJSON) {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "query",
			fmt.Sprintf("the query %.100q is only for a body of type %s or %s; in JSON, set the fields of the message", raw, TypeBytes, TypeText))
	}
	switch kind {
	case TypeNDJSON:
		return to.stream(w, r)
	case TypeJSON:
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
		if err := checkCount("messages", len(req.Messages)); err != nil {
			return 0, nil, err
		}
		results, errs, err := to.all(r.Context(), req.Messages)
		if err != nil {
			return 0, nil, err
		}
		return many(results, errs)
	}
	query, err := values(r)
	if err != nil {
		return 0, nil, err
	}
	m, err := messageOfQuery(query)
	if err != nil {
		return 0, nil, err
	}
	if m.Body, err = readBody(w, r, int64(h.MaxBody)+1); err != nil { // one more is the engine's to reject
		return 0, nil, err
	}
	return to.one(r.Context(), &m)
}

// A sending has the destination and the sender of the messages of one request.
type sending struct {
	h            *Messages
	topic        string
	client, host string
}

func (to *sending) one(ctx context.Context, m *Message) (int, any, error) {
	results, errs, err := to.all(ctx, []Message{*m})
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
func (to *sending) all(ctx context.Context, in []Message) ([]SendResult, []error, error) {
	results, errs := make([]SendResult, len(in)), make([]error, len(in))
	list, at := make([]engine.Incoming, 0, len(in)), make([]int, 0, len(in))
	call := MessageCall{Op: "SendMessage", ClientID: to.client, Topic: to.topic, Messages: len(in)}
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
		return alike(errs)
	})
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if err != nil && alike(errs) != err { //nolint:errorlint // the very error that next returned
		return nil, nil, err
	}
	for i, err := range errs {
		if results[i].Error = ProblemOf(err); err != nil {
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

const (
	// maxStreamBatch and maxStreamBytes bound the messages of a stream that are stored at once, and
	// therefore its memory besides one line.
	maxStreamBatch = 64
	maxStreamBytes = 1 << 20
)

// stream stores a message for each line and responds to each with a line, in
// their order, when it is stored. Lines that have arrived by then are stored together.
func (to *sending) stream(w http.ResponseWriter, r *http.Request) (int, any, error) {
	h, out := to.h, NewLineWriter(w)
	lines, err := newLineReader(r.Body, 2*h.MaxBody+maxAdminBody, transit.Of(r.Context())) // base64 makes four bytes of three
	if err != nil {
		return 0, nil, err
	}
	// If a connection cannot do both at the same time (HTTP/2 always can), the responses follow the
	// lines.
	_ = out.Control.EnableFullDuplex()
	defer h.endReading(out)()
	if r.Header.Get("Expect") == "" { // the client may wait for our go-ahead before it sends the first line
		if err := out.Open(); err != nil {
			return 0, nil, gone(err)
		}
	}
	for {
		_ = out.Control.SetReadDeadline(time.Now().Add(to.h.IdleTimeout))
		if h.isDraining() {
			return to.endStream(out, closing())
		}
		lines.Retained = 0
		if err := lines.Hold(true); err != nil {
			return to.endStream(out, err)
		}
		batch, end := to.gather(lines)
		if err := lines.Hold(false); err != nil {
			return to.endStream(out, err)
		}
		if err := out.Open(); err != nil { // a client that waits for "100 Continue" has it by now
			return 0, nil, gone(err)
		}
		if len(batch.at) > 0 {
			if err := h.Gate.StillAllowed(r); err != nil {
				return 0, nil, gone(out.End(err))
			}
			results, err := batch.store(r.Context(), to)
			if err == nil {
				err = Write(out, results...)
			}
			if err != nil {
				return 0, nil, gone(err)
			}
		}
		if end != nil {
			return to.endStream(out, end)
		}
	}
}

// endReading ends the wait for a line when the server ends. The handler must call stop before it
// returns: net/http panics if a connection is used later.
func (h *Messages) endReading(out *LineWriter) (stop func()) {
	ended := make(chan struct{})
	unregister := context.AfterFunc(h.Life, func() {
		defer close(ended)
		_ = out.Control.SetReadDeadline(time.Now())
	})
	return func() {
		if !unregister() {
			<-ended // it has begun
		}
	}
}

func closing() error { return fmt.Errorf("the broker is closed or closing: %w", tidegate.ErrClosed) }

// endStream reports the reason for the end of a stream, unless the stream is complete.
func (to *sending) endStream(out *LineWriter, err error) (int, any, error) {
	switch late := errors.Is(err, os.ErrDeadlineExceeded); {
	case errors.Is(err, io.EOF):
		return 0, nil, nil
	case to.h.isDraining() && (late || errors.Is(err, tidegate.ErrClosed)):
		err = closing()
	case late: // net/http has ended the request's context as well
		err = refusal.New(tidegate.CodeRequestTimeout, "body", fmt.Sprintf("no line arrived for %v", to.h.IdleTimeout))
	case refusal.CodeOf(err) == tidegate.CodeTooManyRequests:
	default:
		return 0, nil, gone(err)
	}
	return 0, nil, gone(out.End(err))
}

// A streamBatch is some lines of a stream. A line that could not be read has an error
// in place of a message.
type streamBatch struct {
	messages []Message // of the lines without an error
	at       []int     // numbers of the lines
	errs     []error
}

// gather reads a line and those after it that have arrived already. The error,
// which comes with the last lines, is io.EOF if there will be no more.
func (to *sending) gather(lines *lineReader) (b streamBatch, _ error) {
	for size := 0; len(b.at) < maxStreamBatch && size < maxStreamBytes; {
		line, err := lines.Next()
		var m Message
		switch {
		case errors.Is(err, errLineTooLong):
			err = refusal.New(protocol.CodePayloadTooLarge, "line", fmt.Sprintf("the line exceeds the limit of %d bytes", lines.Max))
		case err != nil:
			return b, err
		case len(line) == 0:
			return b, nil // a sign of life
		default:
			err = Decode(line, &m)
		}
		if err == nil {
			b.messages = append(b.messages, m)
		}
		b.at, b.errs = append(b.at, lines.Number), append(b.errs, err)
		size += len(line)
		if lines.Retained = size; !lines.Ready() {
			break
		}
	}
	return b, nil
}

// store stores the batch and returns a result for each line.
func (b *streamBatch) store(ctx context.Context, to *sending) ([]SendResult, error) {
	var sent []SendResult
	if len(b.messages) > 0 {
		var err error
		var cut *refusal.Cut
		if sent, _, err = to.all(ctx, b.messages); errors.As(err, &cut) || ctx.Err() != nil {
			return nil, err
		} else if err != nil { // the middleware's answer is each message's
			sent = make([]SendResult, len(b.messages))
			for i := range sent {
				sent[i] = SendResult{ID: b.messages[i].ID, Error: ProblemOf(err)}
			}
		}
	}
	results := make([]SendResult, len(b.at))
	for i, err := range b.errs {
		if err != nil {
			results[i].Error = ProblemOf(err)
		} else {
			results[i], sent = sent[0], sent[1:]
		}
		results[i].Line = b.at[i]
	}
	return results, nil
}
