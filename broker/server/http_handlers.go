package server

import (
	"container/list"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// adminRoutes carry out the requests of the administration. Each one is called when the gate has
// admitted the request. It returns the status and the JSON value of the response, or an error.
type adminRoutes struct {
	engine    *engine.Engine
	gate      *auth.Gate
	snapshots string
	maxBody   int // the largest body of a message, in bytes
	surveys   *sharedSurvey
}

// newAdminRoutes returns the handlers of one engine, whose bodies have at most maxBody bytes. gate
// checks the permissions for topics in request bodies. snapshots is the directory of snapshots;
// empty means that there are none. surveys has the figures of lists.
func newAdminRoutes(e *engine.Engine, g *auth.Gate, snapshots string, maxBody int, surveys *sharedSurvey) *adminRoutes {
	return &adminRoutes{e, g, snapshots, maxBody, surveys}
}

// allFailed is the error of a request about several things all of which failed
// with one code.
type allFailed struct {
	error
	results any
}

// Unwrap returns the failure that the others are like.
func (e *allFailed) Unwrap() error { return e.error }

// manyResults returns the response of a request about several items with the errors errs: 200, or
// 207 if some failed, or the error itself if all failed with one code.
func manyResults[T any](results []T, errs []error) (int, any, error) {
	if err := alike(errs); err != nil {
		return 0, nil, &allFailed{err, results}
	}
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return http.StatusMultiStatus, allResults[T]{results}, nil
	}
	return http.StatusOK, allResults[T]{results}, nil
}

// allResults has a result for each thing that a request was about, in their order.
type allResults[T any] struct {
	Results []T `json:"results"`
}

// alike returns the error of a request, for middleware, if all items failed with one code, and nil
// otherwise.
func alike(errs []error) error {
	return refusal.Common(len(errs), func(i int) error { return errs[i] })
}

// checkCount rejects a number of entries that one request cannot have.
func checkCount(field string, n int) error {
	if n < 1 || n > refusal.MaxMany {
		return refusal.New(tidegate.CodeBadRequest, field, "%s has %d entries; give 1 to %d", field, n, refusal.MaxMany)
	}
	return nil
}

// httpClient returns the client ID of a request: the header x-mq-client-id, as over gRPC, or else
// the client's address. With keys, the key precedes it.
func httpClient(r *http.Request) (string, error) { return auth.ClientOf(r, remoteHost(r)) }

func remoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr // of a listener without ports
	}
	return host
}

// responseCut returns the error of a request whose client does not read the whole response. The
// connection is closed, so that a partial response does not look complete.
func responseCut(err error) error {
	if err == nil {
		return nil
	}
	return &refusal.Cut{Status: err}
}

// messageRoutes carry out the requests about messages. Each one is called when the gate has
// admitted the request. It returns the status and the JSON value of the response, or an error;
// or status 0 if it has written the response. All fields are set before the first call, and not
// changed afterwards.
type messageRoutes struct {
	Engine messageEngine
	Gate   *auth.Gate

	Life           context.Context   //nolint:containedctx // the server's own: it ends when the server begins to end
	Bodies         *admission.Budget // of requests and responses under way
	MaxBody        int               // the largest body of a message, in bytes
	MaxLongPolling time.Duration     // of a receive
	IdleTimeout    time.Duration     // how long a stream may bring no line

	server *Server
}

// whileAllowed returns a context that ends with ctx, with session.ErrDraining as its
// cause when the server ends, or with session.ErrNewRules when other access rules hold.
// stop must be called.
func (s *Server) whileAllowed(ctx context.Context) (parked context.Context, stop func()) {
	parked, cancel := context.WithCancelCause(ctx)
	drained := context.AfterFunc(s.life, func() { cancel(session.ErrDraining) })
	changed := context.AfterFunc(s.gate.Regime().Over(), func() { cancel(session.ErrNewRules) })
	return parked, func() {
		drained()
		changed()
		cancel(nil)
	}
}

// readRequest is readJSON for a request about messages: the body is required, must be declared
// as JSON, and can be larger.
func (h *messageRoutes) readRequest(w http.ResponseWriter, r *http.Request, v any) error {
	if _, err := contentType(r, typeJSON); err != nil {
		return err
	}
	raw, err := readBody(w, r, h.maxRequest())
	if err != nil {
		return err
	}
	return decodeJSON(raw, v)
}

// maxRequest bounds one request about messages, in bytes: base64 makes four of three.
func (h *messageRoutes) maxRequest() int64 {
	return min(max(16<<20, 2*int64(h.MaxBody)+maxAdminBody), h.Bodies.Largest()/bodyFactor-firstRead)
}

// A jsonMessage is a message in a request over HTTP. A key that is missing or null has its zero
// value.
type jsonMessage struct {
	ID           string             `json:"id"`   // one is made if it is missing
	Body         []byte             `json:"body"` // base64
	BodyText     *string            `json:"body_text"`
	Tag          string             `json:"tag"`
	Keys         []string           `json:"keys"`
	Properties   map[string]string  `json:"properties"`
	MessageGroup string             `json:"message_group"`
	LiteTopic    string             `json:"lite_topic"`
	Priority     int                `json:"priority"`
	DeliverAt    *time.Time         `json:"deliver_at"`
	DeliverAfter *settings.Duration `json:"deliver_after"`
	TraceContext string             `json:"trace_context"`
	BornAt       *time.Time         `json:"born_at"`
	BornHost     string             `json:"born_host"`
}

// Message converts m for the engine, and rejects the faults that only HTTP can have; the engine
// checks the rest. The result has its ID in both cases.
func (m *jsonMessage) Message(topic string, now time.Time) (*tidegate.Message, error) {
	out := &tidegate.Message{
		ID: m.ID, Topic: topic, Tag: m.Tag, Keys: m.Keys, MessageGroup: m.MessageGroup, LiteTopic: m.LiteTopic, Priority: m.Priority,
		Properties: m.Properties, TraceContext: m.TraceContext, Body: m.Body,
	}
	if m.ID == "" {
		out.ID = tidegate.NewMessageID()
	}
	switch {
	case m.Body != nil && m.BodyText != nil:
		return out, refusal.New(tidegate.CodeBadRequest, "body", "body and body_text exclude each other; give base64 in body, or text in body_text")
	case len(m.ID) > refusal.MaxMessageID:
		return out, refusal.TooLong(protocol.CodeIllegalMessageID, "id", len(m.ID), refusal.MaxMessageID)
	case len(m.TraceContext) > refusal.MaxTraceContext:
		return out, refusal.TooLong(protocol.CodeMessagePropertiesTooLarge, "trace_context", len(m.TraceContext), refusal.MaxTraceContext)
	case len(m.BornHost) > refusal.MaxBornHost:
		return out, refusal.TooLong(protocol.CodeMessagePropertiesTooLarge, "born_host", len(m.BornHost), refusal.MaxBornHost)
	case m.DeliverAt != nil && m.DeliverAfter != nil:
		return out, refusal.New(protocol.CodeIllegalDeliveryTime, "deliver_at", "deliver_at and deliver_after exclude each other; give one of them")
	case m.DeliverAfter != nil && *m.DeliverAfter < 0:
		return out, refusal.New(protocol.CodeIllegalDeliveryTime, "deliver_after",
			"deliver_after is %v; it must not be negative", time.Duration(*m.DeliverAfter))
	case m.DeliverAt != nil && !refusal.Storable(*m.DeliverAt):
		return out, refusal.New(protocol.CodeIllegalDeliveryTime, "deliver_at", "%s", outside("deliver_at", *m.DeliverAt))
	case m.BornAt != nil && !refusal.Storable(*m.BornAt):
		return out, refusal.New(tidegate.CodeBadRequest, "born_at", "%s", outside("born_at", *m.BornAt))
	}
	if m.BodyText != nil {
		out.Body = []byte(*m.BodyText)
	}
	if m.DeliverAt != nil {
		out.DeliverAt = *m.DeliverAt
	} else if m.DeliverAfter != nil {
		out.DeliverAt = now.Add(time.Duration(*m.DeliverAfter))
	}
	return out, nil
}

func outside(field string, t time.Time) string {
	return fmt.Sprintf("%s is %s; give a time between 1970 and %d", field, t.Format(time.RFC3339), refusal.LastYear)
}

// Incoming returns a message with the values that only its producer knows.
func (m *jsonMessage) Incoming(out *tidegate.Message, client, host string) engine.Incoming {
	in := engine.Incoming{Message: out, BornHost: m.BornHost, Client: client}
	if m.BornAt != nil {
		in.BornAt = *m.BornAt
	}
	if in.BornHost == "" && len(host) <= refusal.MaxBornHost {
		in.BornHost = host
	}
	return in
}

// messageOfQuery returns the message of a URL whose request has the body: id, tag, key (several),
// message_group, lite_topic, priority, deliver_at, deliver_after, trace_context, and property.NAME.
func messageOfQuery(query map[string][]string) (m jsonMessage, err error) {
	one := map[string]*string{
		"id": &m.ID, "tag": &m.Tag, "message_group": &m.MessageGroup, "lite_topic": &m.LiteTopic, "trace_context": &m.TraceContext,
	}
	for key, values := range query {
		last := values[len(values)-1]
		bad := func(format string, args ...any) error {
			return refusal.New(tidegate.CodeBadRequest, key, "%s", "the query parameter "+fmt.Sprintf("%.100q ", key)+fmt.Sprintf(format, args...))
		}
		name, property := strings.CutPrefix(key, "property.")
		switch {
		case key == "key":
			m.Keys = values
			continue
		case len(values) > 1:
			return m, bad("is given %d times; only key may be repeated", len(values))
		case property:
			if m.Properties == nil {
				m.Properties = map[string]string{}
			}
			m.Properties[name] = last
		case one[key] != nil:
			*one[key] = last
		case key == "priority":
			if m.Priority, err = strconv.Atoi(last); err != nil {
				return m, bad("is %.100q; give a whole number from 0 on", last)
			}
		case key == "deliver_at":
			at, err := time.Parse(time.RFC3339, last)
			if err != nil {
				return m, bad("is %.100q; give a time in the form of RFC 3339, such as 2026-01-31T15:04:05Z", last)
			}
			m.DeliverAt = &at
		case key == "deliver_after":
			d, err := time.ParseDuration(last)
			if err != nil {
				return m, bad("is %.100q; give a duration such as 1m30s", last)
			}
			m.DeliverAfter = new(settings.Duration(d))
		default:
			return m, bad("is unknown; the parameters are id, tag, key, message_group, lite_topic, priority, deliver_at, deliver_after, trace_context and property.NAME")
		}
	}
	return m, nil
}

// A messageEngine is the part of the engine that requests about messages need. Tests have one that
// fails or panics.
type messageEngine interface {
	transport.Settler
	Append(ctx context.Context, msgs []engine.Incoming) []transport.SendResult
	Poll(ctx context.Context, p engine.Request) ([]*tidegate.Delivery, error)
	InvisibleBounds() (least, most time.Duration)
	Recall(ctx context.Context, topic, recallHandle string) (id string, err error)
	TopicOf(handle string) (topic, original string, err error)
	Group(name string) (status.Group, error)
	ReconsumeLater(ctx context.Context, d *tidegate.Delivery, m transport.Verdict) (engine.Reconsumed, error)
	RetryInterval(d *tidegate.Delivery) (time.Duration, error)
}

// isDraining reports whether the server has begun to end.
func (h *messageRoutes) isDraining() bool { return h.Life.Err() != nil }

// permitHandle checks the permission to settle a delivery by the topic in its handle, because the
// request names only the group. It sets the topic. A retry belongs to the topic of the receive, or
// for a receive from the retry topic to that topic.
func (h *messageRoutes) permitHandle(r *http.Request, d *tidegate.Delivery) error {
	if !h.Gate.Restricts(r) {
		return nil
	}
	topic, original, bad := h.Engine.TopicOf(d.Handle)
	if bad != nil {
		d.Topic = noTopic
		return nil //nolint:nilerr // the engine rejects it, each among many by itself
	}
	d.Topic = topic
	if topic != original && h.Gate.Allows(r, access.ToReceive(topic, d.ConsumerGroup)) {
		return nil
	}
	return h.Gate.Permit(r, access.ToReceive(original, d.ConsumerGroup))
}

// permitReconsume permits a request to send a delivery to the group's retry topics if the client
// may consume it (TDMQ for Pulsar: retry and dead letters).
func (h *messageRoutes) permitReconsume(r *http.Request, d *tidegate.Delivery) error {
	if !h.Gate.Restricts(r) {
		return nil
	}
	if needs := auth.NeedsOfReconsume(h.Engine, d); needs != nil {
		return h.Gate.Permit(r, needs...)
	}
	return nil
}

// noTopic is the name of no topic.
const noTopic = " "

const (
	// auditCapacity is the number of records that the audit log keeps in memory.
	auditCapacity = 10_000

	// maxAuditText bounds each text of a record, in bytes, so that a full ring takes a few MiB.
	maxAuditText = 256

	defaultAuditPage = 100
	maxAuditPage     = 1000
)

// An auditRing keeps the newest records. When it is full, a new record replaces the oldest one of
// the key that has the most, so a key with many requests cannot remove the records of the others.
// The zero value is empty. Several goroutines may share it.
type auditRing struct {
	mu    sync.Mutex
	all   list.List             // guarded by mu: *record, the oldest first
	byKey map[string]*list.List // guarded by mu: the elements of all with each key that has any, the oldest first
	added int64                 // guarded by mu: the number of the newest record, from 1
}

// An auditRecord has a number that counts all records.
type auditRecord struct {
	status.AuditRecord
	number int64
}

// Add adds a record. Its texts are cut to 256 bytes and copied, because they can be parts of the
// memory of a request.
func (g *auditRing) Add(r *status.AuditRecord) {
	c := &auditRecord{AuditRecord: *r}
	for _, text := range []*string{&c.Key, &c.Peer, &c.Operation, &c.Subject, &c.Query, &c.Result} {
		*text = cut(*text)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all.Len() == auditCapacity {
		g.dropLocked(c.Key)
	}
	if g.byKey == nil {
		g.byKey = map[string]*list.List{}
	}
	own := g.byKey[c.Key]
	if own == nil {
		own = list.New()
		g.byKey[c.Key] = own
	}
	g.added++
	c.number = g.added
	own.PushBack(g.all.PushBack(c))
}

// dropLocked removes the oldest record of the key with the most records, which is key if no other
// one has more. There are at most as many keys as records.
func (g *auditRing) dropLocked(key string) {
	most := g.byKey[key]
	for k, own := range g.byKey {
		if most == nil || own.Len() > most.Len() {
			key, most = k, own
		}
	}
	if e, ok := most.Remove(most.Front()).(*list.Element); ok {
		g.all.Remove(e)
	}
	if most.Len() == 0 {
		delete(g.byKey, key)
	}
}

func cut(text string) string {
	if len(text) <= maxAuditText {
		return strings.Clone(text)
	}
	const more = "..."
	return strings.ToValidUTF8(text[:maxAuditText-len(more)], "") + more
}

// Page returns the records that a query selects, the newest first. It looks at auditCapacity
// records at most. The error is 40000 for a wrong Limit or After.
func (g *auditRing) Page(q *status.AuditQuery) (status.AuditPage, error) {
	page := status.AuditPage{Records: []status.AuditRecord{}}
	limit := q.Limit
	if limit < 0 || limit > maxAuditPage {
		return page, refusal.New(tidegate.CodeBadRequest, "limit", "limit is %d; give 1 to %d, or leave it out for %d", limit, maxAuditPage, defaultAuditPage)
	}
	if limit == 0 {
		limit = defaultAuditPage
	}
	var after int64 // 0: no limit
	if q.After != "" {
		var err error
		if after, err = strconv.ParseInt(q.After, 10, 64); err != nil || after < 1 {
			return page, refusal.New(tidegate.CodeBadRequest, "after", "after is %.100q; give next of the page before", q.After)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var last int64 // the number of the last record of the page
	for e := g.all.Back(); e != nil; e = e.Prev() {
		r, ok := e.Value.(*auditRecord)
		if !ok || after > 0 && r.number >= after || !wanted(q, &r.AuditRecord) {
			continue
		}
		if len(page.Records) == limit {
			page.Next = strconv.FormatInt(last, 10)
			break
		}
		page.Records, last = append(page.Records, r.AuditRecord), r.number
	}
	return page, nil
}

// wanted reports whether a query selects a record.
func wanted(q *status.AuditQuery, r *status.AuditRecord) bool {
	is := func(text, want string) bool { return want == "" || text == want }
	return !r.Time.Before(q.Since) && is(r.Key, q.Key) && is(r.Subject, q.Subject) && is(r.Operation, q.Operation)
}
