package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// BrowseMessages returns stored messages of a topic without delivering them. Bodies, keys and
// properties, and filters by them, need the permission to receive from the topic.
func (h *adminRoutes) BrowseMessages(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "queue", "offset", "id", "tag", "message_group", "key", "property", "contains", "since", "before", "order", "after", "limit", "contents", "text", "state")
	query := status.MessageQuery{
		MessageFilter: status.MessageFilter{ID: q.Text("id"), Tag: q.Text("tag"), MessageGroup: q.Text("message_group"), Key: q.Text("key"), Contains: q.Text("contains")},
		Since:         q.Time("since"), Before: q.Time("before"), After: q.Text("after"), Limit: q.Number("limit"),
	}
	if q.Text("queue") != "" {
		query.Queue = new(q.Number("queue"))
	}
	if q.Text("offset") != "" {
		query.Offset = new(int64(q.Number("offset")))
	}
	query.Contents, query.Text = q.Yes("contents"), q.Yes("text")
	order, state := q.Text("order"), q.Text("state")
	properties := q.List("property")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	if query.Delayed = state == "delayed"; state != "" && !query.Delayed {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "state", "state is %.100q; give delayed, or leave it out", state)
	}
	switch order {
	case "", "oldest":
	case "newest":
		query.Newest = true
	default:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "order", "order is %.100q; give oldest or newest", order)
	}
	for _, p := range properties {
		name, value, ok := strings.Cut(p, "=")
		if !ok {
			return 0, nil, refusal.New(tidegate.CodeBadRequest, "property", "property is %.100q; give NAME=VALUE", p)
		}
		if query.Properties == nil {
			query.Properties = map[string]string{}
		}
		query.Properties[name] = value
	}
	topic := r.PathValue("topic")
	if query.Key != "" || query.Contains != "" || query.Properties != nil {
		if err := h.gate.Permit(r, access.ToRead(topic)); err != nil {
			return 0, nil, err
		}
	}
	var page status.MessagePage
	err := h.withContents(r, &query, func(room int64) (messages []*status.StoredMessage, err error) {
		page, err = h.engine.Messages(topic, query, room)
		for i := range page.Messages {
			messages = append(messages, &page.Messages[i])
		}
		return messages, err
	})
	return http.StatusOK, page, err
}

// withContents reads stored messages of the topic of a request, with the memory for a page of their
// contents, and returns their bodies as text if the query asks for text. Contents need the
// permission to receive from the topic.
func (h *adminRoutes) withContents(r *http.Request, query *status.MessageQuery, read func(room int64) ([]*status.StoredMessage, error)) error {
	if query.Contents = query.Contents || query.Text; query.Contents {
		if err := h.gate.Permit(r, access.ToRead(r.PathValue("topic"))); err != nil {
			return err
		}
	}
	held := admission.HoldOf(r.Context())
	room := pageBytes(held.Limit())
	if err := held.Resize(min(jsonFactor*(room+int64(h.maxBody)), held.Largest()), false); err != nil {
		return err
	}
	messages, err := read(room)
	size := int64(0)
	for _, m := range messages {
		if size += sizeOfMessage(m); query.Text {
			m.Body, m.BodyText = httpapi.Text(m.Body)
		}
	}
	return cmp.Or(err, held.Resize(jsonFactor*size, true))
}

// sizeOfMessage returns the approximate memory of a message in bytes.
func sizeOfMessage(m *status.StoredMessage) int64 {
	n := besideBody + len(m.Body)
	for k, v := range m.Properties {
		n += len(k) + len(v)
	}
	return int64(n)
}

// TraceMessage returns the messages of a topic that have an ID, with their fates in the groups that
// the key may observe. Their bodies, keys and properties are those of BrowseMessages.
func (h *adminRoutes) TraceMessage(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "group", "since", "before", "after", "limit", "contents", "text")
	query := status.MessageQuery{
		MessageFilter: status.MessageFilter{ID: r.PathValue("id")},
		Since:         q.Time("since"), Before: q.Time("before"), After: q.Text("after"), Limit: q.Number("limit"),
	}
	query.Contents, query.Text = q.Yes("contents"), q.Yes("text")
	group := q.Text("group")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	topic := r.PathValue("topic")
	if group != "" {
		if err := h.gate.Permit(r, access.ToBrowse(topic, group)); err != nil {
			return 0, nil, err
		}
		if _, err := h.engine.Group(group); err != nil {
			return 0, nil, err
		}
	}
	var trace status.Trace
	err := h.withContents(r, &query, func(room int64) (messages []*status.StoredMessage, err error) {
		trace, err = h.engine.Trace(topic, query, room, func(name string) bool {
			return group == name || group == "" && h.gate.Allows(r, access.ToBrowse(topic, name))
		})
		for i := range trace.Messages {
			messages = append(messages, &trace.Messages[i].StoredMessage)
			for f := range trace.Messages[i].Groups {
				h.hideContents(r, &trace.Messages[i].Groups[f])
			}
		}
		return messages, err
	})
	return http.StatusOK, trace, err
}

// hideContents removes the keys and properties of a dead letter that the key may not receive, as
// ListDeadLetters does.
func (h *adminRoutes) hideContents(r *http.Request, f *status.Fate) {
	if d := f.DeadLetter; d != nil && !h.gate.Allows(r, access.ToReceive(tidegate.DeadLetterTopic(f.Group), f.Group)) {
		d.Keys, d.Properties = nil, nil
	}
}

// A rewindRequest moves a group to another position: to is "earliest", "latest" or a time (RFC
// 3339); offsets are by queue number.
type rewindRequest struct {
	Topic   string           `json:"topic"`
	To      string           `json:"to"`
	Offsets map[string]int64 `json:"offsets"`
	DryRun  bool             `json:"dry_run"`
}

// A rewindResult is the result of a rewind by queue.
type rewindResult struct {
	Queues []status.QueueRewind `json:"queues"`
}

// RewindGroup sets a group's position in a topic.
func (h *adminRoutes) RewindGroup(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req rewindRequest
	if err := readJSON(w, r, &req); err != nil {
		return 0, nil, err
	}
	to, err := req.position()
	if err != nil {
		return 0, nil, err
	}
	group := r.PathValue("group")
	// A group at the beginning of a topic can throttle the producers of the topic.
	if err := h.gate.Permit(r, access.OnBoth(access.Admin, req.Topic, group)); err != nil {
		return 0, nil, err
	}
	if req.DryRun {
		queues, err := h.engine.PlanRewind(group, req.Topic, to)
		return http.StatusOK, plan{rewindResult{notNil(queues)}}, err
	}
	queues, err := h.engine.Rewind(r.Context(), group, req.Topic, to)
	return http.StatusOK, rewindResult{notNil(queues)}, err
}

func (r rewindRequest) position() (p status.Position, err error) {
	switch r.To {
	case "":
	case "earliest":
		p.Earliest = true
	case "latest":
		p.Latest = true
	default:
		if p.Time, err = time.Parse(time.RFC3339, r.To); err != nil {
			return p, refusal.New(tidegate.CodeBadRequest, "to", "to is %.100q; give earliest, latest or a time such as 2026-01-31T12:00:00Z", r.To)
		}
	}
	for text, offset := range r.Offsets {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return p, refusal.New(tidegate.CodeBadRequest, "offsets", "offsets has the key %.100q; give queue numbers as keys", text)
		}
		if p.Offsets == nil {
			p.Offsets = map[int]int64{}
		}
		p.Offsets[int(n)] = offset
	}
	return p, nil
}

// parkedRedriveRequest sends parked message groups on: one, all of a topic, or
// all. With dead_letter the failed message becomes a dead letter.
type parkedRedriveRequest struct {
	Topic        string `json:"topic"`
	MessageGroup string `json:"message_group"`
	DeadLetter   bool   `json:"dead_letter"`
}

// ListParked returns the parked and blocked message groups of a consumer group.
func (h *adminRoutes) ListParked(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "topic", "state", "after", "limit")
	parked := status.ParkedQuery{Topic: q.Text("topic"), State: q.Text("state"), After: q.Text("after"), Limit: q.Number("limit")}
	if q.Err != nil {
		return 0, nil, q.Err
	}
	if err := h.permitTopic(r, access.Observe, parked.Topic); err != nil {
		return 0, nil, err
	}
	page, err := h.engine.Parked(r.PathValue("group"), parked)
	return http.StatusOK, page, err
}

// permitTopic rejects a request about parked message groups unless the key has the right for the
// group on the topic, or on each topic of the group if the request names none.
func (h *adminRoutes) permitTopic(r *http.Request, a access.Action, topic string) error {
	group := r.PathValue("group")
	if topic != "" {
		return h.gate.Permit(r, access.OnBoth(a, topic, group))
	}
	g, err := h.engine.Group(group)
	if err != nil {
		return nil //nolint:nilerr // the engine reports it
	}
	needs := make([]access.Need, len(g.Topics))
	for i := range g.Topics {
		needs[i] = access.OnBoth(a, g.Topics[i].Topic, group)
	}
	return h.gate.Permit(r, needs...)
}

// RedriveParked has parked message groups delivered again.
func (h *adminRoutes) RedriveParked(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var req parkedRedriveRequest
	if err := readJSON(w, r, &req); err != nil {
		return 0, nil, err
	}
	if err := h.permitTopic(r, access.Admin, req.Topic); err != nil {
		return 0, nil, err
	}
	done, err := h.engine.RedriveParked(r.Context(), r.PathValue("group"), status.ParkedSelection(req))
	return http.StatusOK, done, err
}

// A sendRequest is one message, or many.
type sendRequest struct {
	jsonMessage
	Messages []jsonMessage `json:"messages"`
}

// A sendResult is the result for one message.
type sendResult struct {
	Line int    `json:"line,omitempty"` // of a stream, from 1
	ID   string `json:"id,omitempty"`   // empty if the line could not be read

	Topic  string `json:"topic,omitempty"`
	Queue  *int   `json:"queue,omitempty"` // not of a message that waits for its delivery time
	Offset *int64 `json:"offset,omitempty"`

	// RecallHandle recalls a delayed message before its delivery time.
	RecallHandle string `json:"recall_handle,omitempty"`

	Error *problem `json:"error,omitempty"`
}

// SendMessages stores one message, many, or a stream of lines, by the type of the body.
func (h *messageRoutes) SendMessages(w http.ResponseWriter, r *http.Request) (int, any, error) {
	kind, err := contentType(r, typeJSON, typeNDJSON, typeBytes, typeText)
	if err != nil {
		return 0, nil, err
	}
	client, err := httpClient(r)
	if err != nil {
		return 0, nil, err
	}
	to := httpSending{h: h, topic: r.PathValue("topic"), client: client, host: remoteHost(r)}
	if err := tidegate.ValidateTopic(to.topic); err != nil {
		return 0, nil, err
	}
	if raw := r.URL.RawQuery; raw != "" && (kind == typeJSON || kind == typeNDJSON) {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "query",
			"the query %.100q is only for a body of type %s or %s; in JSON, set the fields of the message", raw, typeBytes, typeText)
	}
	switch kind {
	case typeNDJSON:
		return to.stream(w, r)
	case typeJSON:
		var req sendRequest
		if err := h.readRequest(w, r, &req); err != nil {
			return 0, nil, err
		}
		if req.Messages == nil {
			return to.one(r.Context(), &req.jsonMessage)
		}
		if !reflect.ValueOf(req.jsonMessage).IsZero() {
			return 0, nil, refusal.New(tidegate.CodeBadRequest, "messages", "messages and other keys exclude each other; give each message its own keys")
		}
		if err := checkCount("messages", len(req.Messages)); err != nil {
			return 0, nil, err
		}
		results, errs, err := to.all(r.Context(), req.Messages)
		if err != nil {
			return 0, nil, err
		}
		return manyResults(results, errs)
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

// An httpSending has the destination and the sender of the messages of one request.
type httpSending struct {
	h            *messageRoutes
	topic        string
	client, host string
}

func (to *httpSending) one(ctx context.Context, m *jsonMessage) (int, any, error) {
	results, errs, err := to.all(ctx, []jsonMessage{*m})
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
func (to *httpSending) all(ctx context.Context, in []jsonMessage) ([]sendResult, []error, error) {
	results, errs := make([]sendResult, len(in)), make([]error, len(in))
	list, at := make([]engine.Incoming, 0, len(in)), make([]int, 0, len(in))
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
	err := to.h.server.through(ctx, call, func(ctx context.Context) error {
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
		if results[i].Error = problemOf(err); err != nil {
			results[i] = sendResult{ID: results[i].ID, Error: results[i].Error}
		}
	}
	return results, errs, nil
}

// stored fills in where a message lies.
func (r *sendResult) stored(at tidegate.Receipt) {
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
func (to *httpSending) stream(w http.ResponseWriter, r *http.Request) (int, any, error) {
	h, out := to.h, newLineWriter(w)
	lines, err := newLineReader(r.Body, 2*h.MaxBody+maxAdminBody, admission.HoldOf(r.Context())) // base64 makes four bytes of three
	if err != nil {
		return 0, nil, err
	}
	// If a connection cannot do both at the same time (HTTP/2 always can), the responses follow the
	// lines.
	_ = out.Control.EnableFullDuplex()
	defer h.endReading(out)()
	if r.Header.Get("Expect") == "" { // the client may wait for our go-ahead before it sends the first line
		if err := out.Open(); err != nil {
			return 0, nil, responseCut(err)
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
			return 0, nil, responseCut(err)
		}
		if len(batch.at) > 0 {
			if err := h.Gate.StillAllowed(r); err != nil {
				return 0, nil, responseCut(out.End(err))
			}
			results, err := batch.store(r.Context(), to)
			if err == nil {
				err = writeLines(out, results...)
			}
			if err != nil {
				return 0, nil, responseCut(err)
			}
		}
		if end != nil {
			return to.endStream(out, end)
		}
	}
}

// endReading ends the wait for a line when the server ends. The handler must call stop before it
// returns: net/http panics if a connection is used later.
func (h *messageRoutes) endReading(out *lineWriter) (stop func()) {
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
func (to *httpSending) endStream(out *lineWriter, err error) (int, any, error) {
	switch late := errors.Is(err, os.ErrDeadlineExceeded); {
	case errors.Is(err, io.EOF):
		return 0, nil, nil
	case to.h.isDraining() && (late || errors.Is(err, tidegate.ErrClosed)):
		err = closing()
	case late: // net/http has ended the request's context as well
		err = refusal.New(protocol.CodeRequestTimeout, "body", "no line arrived for %v", to.h.IdleTimeout)
	case refusal.CodeOf(err) == tidegate.CodeTooManyRequests:
	default:
		return 0, nil, responseCut(err)
	}
	return 0, nil, responseCut(out.End(err))
}

// A streamBatch is some lines of a stream. A line that could not be read has an error
// in place of a message.
type streamBatch struct {
	messages []jsonMessage // of the lines without an error
	at       []int         // numbers of the lines
	errs     []error
}

// gather reads a line and those after it that have arrived already. The error,
// which comes with the last lines, is io.EOF if there will be no more.
func (to *httpSending) gather(lines *lineReader) (b streamBatch, _ error) {
	for size := 0; len(b.at) < maxStreamBatch && size < maxStreamBytes; {
		line, err := lines.Next()
		var m jsonMessage
		switch {
		case errors.Is(err, errLineTooLong):
			err = refusal.New(protocol.CodePayloadTooLarge, "line", "the line exceeds the limit of %d bytes", lines.Max)
		case err != nil:
			return b, err
		case len(line) == 0:
			return b, nil // a sign of life
		default:
			err = decodeJSON(line, &m)
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
func (b *streamBatch) store(ctx context.Context, to *httpSending) ([]sendResult, error) {
	var sent []sendResult
	if len(b.messages) > 0 {
		var err error
		var cut *refusal.Cut
		if sent, _, err = to.all(ctx, b.messages); errors.As(err, &cut) || ctx.Err() != nil {
			return nil, err
		} else if err != nil { // the middleware's answer is each message's
			sent = make([]sendResult, len(b.messages))
			for i := range sent {
				sent[i] = sendResult{ID: b.messages[i].ID, Error: problemOf(err)}
			}
		}
	}
	results := make([]sendResult, len(b.at))
	for i, err := range b.errs {
		if err != nil {
			results[i].Error = problemOf(err)
		} else {
			results[i], sent = sent[0], sent[1:]
		}
		results[i].Line = b.at[i]
	}
	return results, nil
}

// defaultInvisible is the invisible duration of a message received over HTTP if the client requests
// none. The engine's bounds apply.
const defaultInvisible = 30 * time.Second

// jsonFactorOfMessages is how many times the size of a delivery's body its response over HTTP
// takes: the body, its base64 and the JSON around that, which grows by doubling.
const jsonFactorOfMessages = 5

// An httpReceiveRequest requests messages. Missing keys have the documented defaults.
type httpReceiveRequest struct {
	Max               *int               `json:"max"`                // 1; without end in a stream
	MaxBytes          int                `json:"max_bytes"`          // no bound
	Wait              *settings.Duration `json:"wait"`               // 0; for ever in a stream
	InvisibleDuration *settings.Duration `json:"invisible_duration"` // defaultInvisible
	Filter            struct {
		Type       string `json:"type"`       // TAG
		Expression string `json:"expression"` // *
	} `json:"filter"`
	AttemptID string `json:"attempt_id"` // none
	Repeat    bool   `json:"repeat"`     // false: new messages come if the attempt has none in flight
	Push      bool   `json:"push"`       // false: a time-out makes the message ready at once
	Text      bool   `json:"text"`       // false: all bodies are base64

	LiteConsumer string `json:"lite_consumer"` // none: the topic has no lite topics
}

// poll converts a receive for the engine, except for Max and Wait. least and most are the engine's
// bounds of an invisible duration.
func (q *httpReceiveRequest) poll(group, topic string, least, most time.Duration) (engine.Request, error) {
	p := engine.Request{ReceiveRequest: transport.ReceiveRequest{
		Group: group, Topic: topic, Queue: transport.AnyQueue, Push: q.Push, AttemptID: q.AttemptID, Repeat: q.Repeat, MaxBytes: q.MaxBytes,
		InvisibleDuration: min(max(defaultInvisible, least), most), Filter: tidegate.Filter{Expression: q.Filter.Expression},
	}}
	if q.InvisibleDuration != nil {
		p.InvisibleDuration = time.Duration(*q.InvisibleDuration)
	}
	switch q.Filter.Type {
	case "", "TAG":
	case "SQL92":
		p.Filter.SQL = true
	default:
		return p, refusal.New(protocol.CodeIllegalFilterExpression, "filter.type", "filter.type is %.50q; give TAG or SQL92", q.Filter.Type)
	}
	if q.MaxBytes < 0 {
		return p, refusal.New(tidegate.CodeBadRequest, "max_bytes", "max_bytes is %d; give 1 or more, or leave it out for no limit", q.MaxBytes)
	}
	if q.Wait != nil && *q.Wait < 0 {
		return p, refusal.New(protocol.CodeIllegalPollingTime, "wait", "wait is %v; it must not be negative", time.Duration(*q.Wait))
	}
	return p, nil
}

// ReceiveMessages receives messages of a topic for a group: once, or as a stream of lines if the
// client accepts that.
//
// It releases the messages if the client was gone before the response, or if the response could not
// be written. The end of a connection after the write is not a failure: a client that has read its
// response may close the connection.
func (h *messageRoutes) ReceiveMessages(w http.ResponseWriter, r *http.Request) (int, any, error) {
	client, err := httpClient(r)
	if err != nil {
		return 0, nil, err
	}
	var req httpReceiveRequest
	if err := h.readRequest(w, r, &req); err != nil {
		return 0, nil, err
	}
	least, most := h.Engine.InvisibleBounds()
	p, err := req.poll(r.PathValue("group"), r.PathValue("topic"), least, most)
	if err != nil {
		return 0, nil, err
	}
	if req.LiteConsumer != "" {
		p.LiteConsumer = auth.ScopedTo(r, req.LiteConsumer)
	}
	from := httpReceiving{h: h, client: client, poll: p, text: req.Text}
	if strings.Contains(r.Header.Get("Accept"), typeNDJSON) {
		return from.stream(w, r, &req)
	}
	from.poll.Max = 1
	if req.Max != nil {
		if from.poll.Max = *req.Max; *req.Max < 1 || *req.Max > refusal.MaxReceive {
			return 0, nil, refusal.New(tidegate.CodeBadRequest, "max",
				"max is %d; give 1 to %d, or request a stream with the header Accept: %s", *req.Max, refusal.MaxReceive, typeNDJSON)
		}
	}
	var shortened *settings.Duration // the wait, if it is shorter than requested
	if req.Wait != nil {
		from.poll.Wait = min(time.Duration(*req.Wait), h.MaxLongPolling)
		if from.poll.Wait < time.Duration(*req.Wait) {
			shortened = new(settings.Duration(from.poll.Wait))
		}
	}
	ds, err := from.some(r)
	if err != nil {
		return 0, nil, err
	}
	held := admission.HoldOf(r.Context())
	if err := held.Resize(held.Bytes(), true); err != nil {
		return 0, nil, err
	}
	answer, err := json.Marshal(struct {
		Messages    []httpapi.Delivery `json:"messages"`
		LongestWait *settings.Duration `json:"longest_wait,omitempty"`
	}{from.json(ds), shortened})
	if err == nil {
		err = r.Context().Err()
	}
	if err == nil {
		w.Header().Set("Content-Type", typeJSON)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		if _, err = w.Write(answer); err == nil {
			err = http.NewResponseController(w).Flush()
		}
		if errors.Is(err, http.ErrNotSupported) {
			err = nil // all of it is sent when this returns
		}
	}
	if err != nil {
		h.server.release(r.Context(), ds) // the client did not get them
	}
	return 0, nil, responseCut(err)
}

// An httpReceiving is the receives of one request.
type httpReceiving struct {
	h      *messageRoutes
	client string
	poll   engine.Request
	text   bool
}

// some receives once. It returns none if there is none in time, or when the
// server ends or other access rules hold, by which the request is asked again.
func (f *httpReceiving) some(r *http.Request) (ds []*tidegate.Delivery, err error) {
	call := Call{Op: "ReceiveMessage", ClientID: f.client, Topic: f.poll.Topic, Group: f.poll.Group, Messages: f.poll.Max}
	err = f.h.server.through(r.Context(), call, func(ctx context.Context) (err error) {
		place, err := f.h.server.parkHTTP(r)
		if err != nil {
			return err
		}
		defer place.Release()
		listed, holder, delist, err := f.h.server.enlistHTTP(ctx, r, f.client, &f.poll)
		if err != nil {
			return err
		}
		defer func() { delist(err == nil) }()
		parked, stop := f.h.server.whileAllowed(listed)
		defer stop()
		held := admission.HoldOf(r.Context())
		held.Release() // of the previous batch
		f.poll.Memory = admission.BodiesIn(held, f.poll.Max, jsonFactorOfMessages)
		f.poll.Holder = holder
		ds, err = f.h.Engine.Poll(parked, f.poll)
		if err != nil && ctx.Err() == nil && session.EndedHere(parked) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := f.h.Gate.StillAllowed(r); err != nil {
		f.h.server.release(r.Context(), ds)
		return nil, err
	}
	return ds, nil
}

func (f *httpReceiving) json(ds []*tidegate.Delivery) []httpapi.Delivery {
	out, now := make([]httpapi.Delivery, len(ds)), time.Now()
	for i, d := range ds {
		out[i] = httpapi.DeliveryOf(d, f.text, now)
	}
	return out
}

// stream writes deliveries as they arrive, one on each line. It ends after the requested number,
// after the requested time without a delivery, or at the end of the client or the server.
func (f *httpReceiving) stream(w http.ResponseWriter, r *http.Request, req *httpReceiveRequest) (int, any, error) {
	h, left := f.h, -1
	switch {
	case req.AttemptID != "":
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "attempt_id", "attempt_id identifies one receive, and a stream has many; leave it out")
	case req.Repeat:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "repeat", "repeat repeats one receive, and a stream has many; leave it out")
	case req.MaxBytes != 0:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "max_bytes", "max_bytes limits one receive, and a stream has many; leave it out, and read the stream at your own speed")
	case req.Max != nil && *req.Max < 1:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "max", "max is %d; give 1 or more, or leave it out for an endless stream", *req.Max)
	case req.Max != nil:
		left = *req.Max
	}
	out := newLineWriter(w)
	last := time.Now()
	for {
		f.poll.Max, f.poll.Wait = refusal.MaxReceive, h.MaxLongPolling
		if left >= 0 {
			f.poll.Max = min(left, refusal.MaxReceive)
		}
		if !out.Begun() {
			f.poll.Wait = 0 // errors of the request are reported before the stream begins
		} else if req.Wait != nil {
			f.poll.Wait = min(f.poll.Wait, max(time.Duration(*req.Wait)-time.Since(last), 0))
		}
		ds, err := f.some(r)
		if !out.Begun() && err != nil {
			return 0, nil, err
		}
		out.Begin()
		switch _, cut := errors.AsType[*refusal.Cut](err); {
		case cut || r.Context().Err() != nil && err != nil:
			return 0, nil, responseCut(err)
		case err != nil:
			return 0, nil, responseCut(out.End(err))
		case len(ds) > 0:
			held := admission.HoldOf(r.Context())
			if err = held.Resize(held.Bytes(), true); err != nil {
				break
			}
			if err = r.Context().Err(); err == nil {
				err = writeLines(out, f.json(ds)...)
			}
			last, left = time.Now(), left-len(ds)
		case h.isDraining():
			return 0, nil, nil
		default:
			err = out.Alive()
		}
		if err != nil {
			h.server.release(r.Context(), ds)
			return 0, nil, responseCut(err)
		}
		if left == 0 || req.Wait != nil && time.Since(last) >= time.Duration(*req.Wait) && len(ds) == 0 {
			return 0, nil, nil
		}
	}
}
