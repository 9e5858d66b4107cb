package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/console"
	"github.com/tidegate/tidegate/internal/nearest"
	"github.com/tidegate/tidegate/internal/protocol"
)

// An endpoint executes one HTTP request. It returns the status and
// the JSON body (nil: none), or an error, which becomes a problem; or status
// 0 if it has written the response itself.
type endpoint func(w http.ResponseWriter, r *http.Request) (status int, body any, err error)

// A route is one operation over HTTP. A new one needs a line in routes and an
// entry in openapi.yaml, which a test compares.
type route struct {
	op     string // its operationId in openapi.yaml, and its name in metrics
	method string
	path   string
	ok     int   // the status of its success; 201 and 207 are besides 200
	takes  input // unknown parameters are rejected: without them the request would select more
	serve  endpoint
}

// An input is a part of a request that a route accepts in addition to its path.
type input int

const (
	noInput   input = 0
	bodyInput input = 1 << iota
	queryInput
	matchInput                          // the header If-Match
	anyInput   = bodyInput | queryInput // the endpoint itself rejects unknown values, or ignores them
)

// check rejects a request with inputs that the route does not accept.
func (i input) check(w http.ResponseWriter, r *http.Request) error {
	if i&queryInput == 0 && r.URL.RawQuery != "" {
		text := fmt.Sprintf("the query %.200q: this operation accepts no query parameters", r.URL.RawQuery)
		if i&bodyInput != 0 {
			text += "; give them in the body, as JSON"
		}
		return refusal.New(tidegate.CodeBadRequest, "query", "%s", text)
	}
	if i&matchInput == 0 && r.Method != http.MethodGet && r.Method != http.MethodHead && r.Header.Get(headerIfMatch) != "" {
		return refusal.New(tidegate.CodeBadRequest, headerIfMatch,
			"this operation ignores revisions, so the header If-Match would have no effect; leave it out. Changes of topics, groups, address settings and limits accept it")
	}
	if i&bodyInput == 0 {
		return readNothing(w, r)
	}
	return nil
}

// opLogin and opLogout are the ops that begin and end a session.
const (
	opLogin  = "login"
	opLogout = "logout"
)

// opOther is the op of requests that no route takes.
const opOther = "other"

// pattern is the route's for a ServeMux.
func (rt route) pattern() string { return strings.TrimSpace(rt.method + " " + rt.path) }

// enlistHTTP adds a receive to those of its client. The context that it returns ends with ctx, or
// when the client or the server ends. The caller calls delist, with whether the receive succeeded.
func (s *Server) enlistHTTP(ctx context.Context, r *http.Request, client string, p *engine.Request) (parked context.Context, holder *engine.Holder, delist func(served bool), err error) {
	parked, c, delist, err := s.sessions.Park(ctx, client, func() string { return s.gate.Origin(client, r.RemoteAddr) })
	if err != nil {
		return nil, nil, nil, err
	}
	c.OverHTTP()
	c.At(r.RemoteAddr)
	c.Receives(p.Group, p.Topic, p.Filter)
	return parked, c.Holder(), delist, nil
}

// routes returns all that there is over HTTP.
func (s *Server) routes() []route {
	admin := newAdminRoutes(s.engine, s.gate, s.o.SnapshotDir, s.maxBody, s.surveys)
	data := &messageRoutes{
		Engine: s.messages, Gate: s.gate, Life: s.life, Bodies: s.bodies, MaxBody: s.maxBody,
		MaxLongPolling: s.o.MaxLongPolling, IdleTimeout: idleTimeout, server: s,
	}
	routes := []route{
		// Data.
		{"sendMessages", "POST", "/v1/topics/{topic}/messages", http.StatusOK, anyInput, data.SendMessages},
		{"recallMessage", "POST", "/v1/topics/{topic}/recall", http.StatusOK, bodyInput, data.RecallMessage},
		{"receiveMessages", "POST", "/v1/groups/{group}/topics/{topic}/receive", http.StatusOK, bodyInput, data.ReceiveMessages},
		{"putLiteConsumer", "PUT", "/v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}", http.StatusNoContent, bodyInput, admin.PutLiteConsumer},
		{"patchLiteConsumer", "PATCH", "/v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}", http.StatusNoContent, bodyInput, admin.PatchLiteConsumer},
		{"deleteLiteConsumer", "DELETE", "/v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}", http.StatusNoContent, noInput, admin.DeleteLiteConsumer},
		{"listEndedLite", "GET", "/v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}/ended", http.StatusOK, noInput, s.listEndedLite},
		{"acknowledge", "POST", "/v1/groups/{group}/acknowledge", http.StatusOK, bodyInput, data.Acknowledge},
		{"changeInvisibleDuration", "POST", "/v1/groups/{group}/change-invisible-duration", http.StatusOK, bodyInput, data.ChangeInvisible},
		{"snooze", "POST", "/v1/groups/{group}/snooze", http.StatusNoContent, bodyInput, data.Snooze},
		{"retry", "POST", "/v1/groups/{group}/retry", http.StatusOK, bodyInput, data.Retry},
		{"deadLetter", "POST", "/v1/groups/{group}/dead-letter", http.StatusOK, bodyInput, data.DeadLetter},
		{"reconsumeLater", "POST", "/v1/groups/{group}/reconsume-later", http.StatusOK, bodyInput, data.ReconsumeLater},
		{"negativeAcknowledge", "POST", "/v1/groups/{group}/negative-acknowledge", http.StatusOK, bodyInput, data.NegativeAcknowledge},
	}
	for _, rt := range []route{
		// Administration.
		{"listTopics", "GET", "/v1/topics", http.StatusOK, queryInput, admin.ListTopics},
		{"getTopic", "GET", "/v1/topics/{topic}", http.StatusOK, noInput, admin.GetTopic},
		{"browseMessages", "GET", "/v1/topics/{topic}/messages", http.StatusOK, queryInput, admin.BrowseMessages},
		{"traceMessage", "GET", "/v1/topics/{topic}/messages/{id}", http.StatusOK, queryInput, admin.TraceMessage},
		{"putTopic", "PUT", "/v1/topics/{topic}", http.StatusOK, bodyInput | matchInput, admin.PutTopic},
		{"deleteTopic", "DELETE", "/v1/topics/{topic}", http.StatusNoContent, matchInput, admin.DeleteTopic},
		{"purgeTopic", "POST", "/v1/topics/{topic}/purge", http.StatusOK, queryInput, admin.PurgeTopic},
		{"listLiteTopics", "GET", "/v1/topics/{topic}/lite-topics", http.StatusOK, queryInput, admin.ListLiteTopics},
		{"deleteLiteTopic", "DELETE", "/v1/topics/{topic}/lite-topics/{lite_topic}", http.StatusNoContent, noInput, admin.DeleteLiteTopic},
		{"listGroups", "GET", "/v1/groups", http.StatusOK, queryInput, admin.ListGroups},
		{"getGroup", "GET", "/v1/groups/{group}", http.StatusOK, noInput, admin.GetGroup},
		{"putGroup", "PUT", "/v1/groups/{group}", http.StatusOK, bodyInput | matchInput, admin.PutGroup},
		{"patchGroup", "PATCH", "/v1/groups/{group}", http.StatusOK, bodyInput | matchInput, admin.PatchGroup},
		{"deleteGroup", "DELETE", "/v1/groups/{group}", http.StatusNoContent, matchInput, admin.DeleteGroup},
		{"getThrottle", "GET", "/v1/throttle", http.StatusOK, noInput, admin.GetThrottle},
		{"putThrottle", "PUT", "/v1/throttle", http.StatusOK, bodyInput | matchInput, admin.PutThrottle},
		{"patchThrottle", "PATCH", "/v1/throttle", http.StatusOK, bodyInput | matchInput, admin.PatchThrottle},
		{"postSnapshot", "POST", "/v1/snapshot", http.StatusCreated, noInput, admin.PostSnapshot},
		{"listAddressSettings", "GET", "/v1/address-settings", http.StatusOK, noInput, admin.ListAddressSettings},
		{"getAddressSettings", "GET", "/v1/address-settings/{match}", http.StatusOK, noInput, admin.GetAddressSettings},
		{"putAddressSettings", "PUT", "/v1/address-settings/{match}", http.StatusOK, bodyInput | matchInput, admin.PutAddressSettings},
		{"deleteAddressSettings", "DELETE", "/v1/address-settings/{match}", http.StatusNoContent, matchInput, admin.DeleteAddressSettings},
		{"getTopicAddressSettings", "GET", "/v1/topics/{topic}/address-settings", http.StatusOK, noInput, admin.GetTopicAddressSettings},

		{"rewindGroup", "POST", "/v1/groups/{group}/rewind", http.StatusOK, bodyInput, admin.RewindGroup},
		{"listParked", "GET", "/v1/groups/{group}/parked", http.StatusOK, queryInput, admin.ListParked},
		{"redriveParked", "POST", "/v1/groups/{group}/parked/redrive", http.StatusOK, bodyInput, admin.RedriveParked},
		{"listDeadLetters", "GET", "/v1/groups/{group}/dead-letters", http.StatusOK, queryInput, admin.ListDeadLetters},
		{"listDeadLetterClasses", "GET", "/v1/groups/{group}/dead-letters/classes", http.StatusOK, queryInput, admin.ListDeadLetterClasses},
		{"listQueues", "GET", "/v1/topics/{topic}/queues", http.StatusOK, queryInput, admin.ListQueues},
		{"listGroupQueues", "GET", "/v1/groups/{group}/topics/{topic}/queues", http.StatusOK, queryInput, admin.ListGroupQueues},
		{"listLeases", "GET", "/v1/groups/{group}/topics/{topic}/leases", http.StatusOK, queryInput, admin.ListLeases},
		{"getSchedule", "GET", "/v1/groups/{group}/topics/{topic}/schedule", http.StatusOK, noInput, admin.GetSchedule},
		{"listFailures", "GET", "/v1/groups/{group}/failures", http.StatusOK, queryInput, admin.ListFailures},
		{"purgeDeadLetters", "DELETE", "/v1/groups/{group}/dead-letters", http.StatusOK, queryInput, admin.PurgeDeadLetters},
		{"redriveDeadLetters", "POST", "/v1/groups/{group}/dead-letters/redrive", http.StatusOK, bodyInput, admin.RedriveDeadLetters},

		// About the server.
		{opLogin, "POST", "/v1/session", http.StatusOK, noInput, s.login},
		{"whoami", "GET", "/v1/session", http.StatusOK, noInput, s.whoami},
		{opLogout, "DELETE", "/v1/session", http.StatusNoContent, noInput, s.logout},
		{"listClients", "GET", "/v1/clients", http.StatusOK, queryInput, s.listClients},
		{"overview", "GET", "/v1/overview", http.StatusOK, noInput, s.overview},
		{"listAudit", "GET", "/v1/audit", http.StatusOK, queryInput, s.listAudit},
		{"live", "GET", "/v1/live", http.StatusOK, queryInput, s.live},
		{"history", "GET", "/v1/history", http.StatusOK, queryInput, s.history},
		{"health", "GET", "/healthz", http.StatusOK, anyInput, s.healthz},
		{"readiness", "GET", "/readyz", http.StatusOK, anyInput, s.readyz},
		{"metrics", "GET", "/metrics", http.StatusOK, anyInput, from(s.metricsHandler())},
		{"openapi", "GET", "/v1/openapi.yaml", http.StatusOK, anyInput, s.openapi},
	} {
		rt.serve = rt.serve.reportingAbsentTopics()
		routes = append(routes, rt)
	}
	return routes
}

// reportingAbsentTopics returns an endpoint that reports a topic as absent, with 40402, if its name
// is one that this broker permits and RocketMQ does not. The requests about messages fail as on
// RocketMQ, with 40002.
func (do endpoint) reportingAbsentTopics() endpoint {
	return func(w http.ResponseWriter, r *http.Request) (int, any, error) {
		status, body, err := do(w, r)
		e, ok := errors.AsType[*tidegate.Error](err)
		if ok && e.Code == protocol.CodeIllegalTopic && strings.Contains(e.Subject, ".") && tidegate.ValidateTopic(e.Subject) == nil {
			absent := *e
			absent.Code = tidegate.CodeTopicNotFound
			err = &absent
		}
		return status, body, err
	}
}

// opConsole is the op of requests for the files of the web console.
const opConsole = "console"

// pages returns the routes of the web console. They are no part of the API, so openapi.yaml does
// not have them.
func (s *Server) pages() []route {
	if s.o.NoConsole {
		return nil
	}
	files := from(console.Handler())
	return []route{
		{opConsole, "GET", strings.TrimSuffix(console.Path, "/"), http.StatusMovedPermanently, anyInput, files},
		{opConsole, "GET", console.Path, http.StatusOK, anyInput, files},
	}
}

// from makes an endpoint of a handler of someone else's.
func from(h http.Handler) endpoint {
	return func(w http.ResponseWriter, r *http.Request) (int, any, error) {
		h.ServeHTTP(w, r)
		return 0, nil, nil
	}
}

// mux returns the handler of all routes. The first request builds it: a start need not wait for its
// patterns.
func (s *Server) mux() http.Handler {
	all := append(s.routes(), s.pages()...)
	for _, rt := range all {
		s.requests.ExpectHTTP(rt.op, rt.ok)
	}
	s.requests.ExpectHTTP(opOther, http.StatusNotFound)
	built := sync.OnceValue(func() *http.ServeMux { return s.muxOf(all) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { built().ServeHTTP(w, r) })
}

// muxOf builds the handler of routes, with a response for other methods and paths.
func (s *Server) muxOf(all []route) *http.ServeMux {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	var paths []string
	add := func(rt route) { mux.HandleFunc(rt.pattern(), s.run(rt)) }
	for _, rt := range all {
		add(rt)
		if methods[rt.path] == nil {
			paths = append(paths, rt.path)
		}
		methods[rt.path] = append(methods[rt.path], rt.method)
	}
	slices.Sort(paths)
	for path, list := range methods {
		add(route{op: opOther, path: path, takes: anyInput, serve: func(w http.ResponseWriter, r *http.Request) (int, any, error) {
			writeNotAllowed(w, r, list)
			return 0, nil, nil
		}})
	}
	add(route{op: opOther, path: "/", takes: anyInput, serve: func(w http.ResponseWriter, r *http.Request) (int, any, error) {
		writeProblem(w, &problem{Status: http.StatusNotFound, Detail: nothingAt(r.URL.Path, paths)})
		return 0, nil, nil
	}})
	return mux
}

// nothingAt returns the error of an unknown path, with a suggestion if a known path differs in one
// word.
func nothingAt(path string, paths []string) string {
	asked := strings.Split(path, "/")
	filled := make([]string, 0, len(paths)) // with the names that were given
	for _, p := range paths {
		words := strings.Split(p, "/")
		if len(words) != len(asked) {
			continue
		}
		for i, w := range words {
			if strings.HasPrefix(w, "{") && asked[i] != "" {
				words[i] = asked[i]
			}
		}
		filled = append(filled, strings.Join(words, "/"))
	}
	if n := nearest.Name(path, filled); n != "" {
		return fmt.Sprintf("the path %.200q does not exist; did you mean %s? GET /v1/openapi.yaml describes all paths", path, n)
	}
	return fmt.Sprintf("the path %.200q does not exist; the paths are %s; GET /v1/openapi.yaml describes them", path, strings.Join(paths, ", "))
}

// run returns a handler that checks permissions, writes the result of the route's endpoint, counts
// every response, and recovers from panics.
func (s *Server) run(rt route) http.HandlerFunc {
	return func(writer http.ResponseWriter, r *http.Request) {
		begin, w, held := time.Now(), &answered{ResponseWriter: writer}, holdHTTP(r, s.bodies)
		defer held.Release()
		conn := limitOf(r)
		defer conn.End()
		if !conn.Begin() {
			panic(http.ErrAbortHandler)
		}
		defer func() { s.requests.ObserveHTTP(rt.op, begin, w.outcome(), w.stream()) }()
		status, body, err := func() (status int, body any, err error) {
			defer s.recovered(r.Method+" "+r.URL.Path, &err)
			in, err := s.enter(w, r, rt)
			conn.Authenticated(err == nil && auth.Authenticated(in))
			if err == nil {
				in = untimed(in.WithContext(admission.WithHold(in.Context(), &held)), w)
				err = rt.takes.check(w, in)
			}
			if err != nil {
				return 0, nil, err
			}
			status, body, err = rt.serve(w, in)
			plan, planned := body.(plan)
			if planned {
				body = plan.Result
			}
			if audited[rt.op] && !planned {
				s.audit(in, rt.op, body, err)
			}
			return status, body, err
		}()
		_, cut := errors.AsType[*refusal.Cut](err)
		if e, ok := errors.AsType[*tidegate.Error](err); err != nil && (!ok || e.Code == 0) && r.Context().Err() != nil || gaveUp(r.Context(), err) {
			cut = true // the client gave up: it reads no answer
		}
		_, known := errors.AsType[*notReady](err) // it was logged when it happened
		if !cut && !known && err != nil && refusal.CodeOf(err) == tidegate.CodeInternalServerError && !errors.Is(err, tidegate.ErrClosed) {
			if e, ok := errors.AsType[*tidegate.Error](err); ok && e.Err != nil {
				s.storeFailed(e.Err)
			}
			s.logFailure(r.Context(), "HTTP request failed", "operation", rt.op, "method", r.Method, "path", r.URL.Path, "error", err)
		}
		w.allow()
		switch {
		case cut, err != nil && w.status != 0: // there can be no answer, or no other one
			w.cut = true
			panic(http.ErrAbortHandler)
		case err != nil:
			writeProblem(w, problemOf(err))
		case status == 0:
		case body == nil:
			w.WriteHeader(status)
		default:
			writeJSON(w, status, "application/json", body)
		}
	}
}

// answered records the response to a request.
type answered struct {
	http.ResponseWriter
	status int  // 0: not yet
	cut    bool // the connection was cut instead
}

// outcome returns the status that the client got, 0 if it got none.
func (a *answered) outcome() int {
	if a.cut {
		return 0
	}
	return a.status
}

// stream reports whether the response lasts until the client ends it.
func (a *answered) stream() bool { return a.Header().Get("Content-Type") == typeNDJSON }

// WriteHeader implements http.ResponseWriter.
func (a *answered) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
		a.allow()
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answered) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
		a.allow()
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap lets an http.ResponseController find the connection.
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// enter returns an admitted request with its principal. Package auth has the rules. An
// unknown route needs administrator rights.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, rt route) (*http.Request, error) {
	needs, open := auth.NeedsOfRoute(rt.pattern())
	switch {
	case rt.op == opOther: // the response only reports that nothing exists
		needs = auth.NeedsOfNoRoute
	case open:
		return r, nil
	}
	enter := func() (*http.Request, error) { return s.gate.Enter(w, r, rt.pattern(), needs(r)) }
	if rt.op == opLogin {
		return s.enterLogin(w, r, enter)
	}
	return enter()
}

// overview serves GET /v1/overview.
func (s *Server) overview(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	survey, err := s.surveys.Get(r.Context())
	if err != nil {
		return 0, nil, err
	}
	o := status.Overview{Version: s.o.Version, Started: survey.Opened, Now: time.Now(), Ready: true, Clients: int64(s.sessions.Len())}
	if err := s.notReady(); err != nil {
		o.Ready, o.NotReady = false, problemOf(err).Detail
	}
	budgets := s.budgets()
	for _, use := range slices.Sorted(maps.Keys(budgets)) {
		b := budgets[use]
		o.Memory = append(o.Memory, status.MemoryUse{Use: use, Held: b.Held(), Limit: b.Limit(), Rejected: b.Refused()})
	}
	s.filler.Fill(&o, survey)
	return http.StatusOK, compact{Value: o}, nil
}

// history serves GET /v1/history.
func (s *Server) history(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	in := queryOf(r, "window", "topics", "groups")
	q := engine.HistoryQuery{Observer: s.gate.Observer(r)}
	window := in.Text("window")
	names, err := namesOf(in)
	if err != nil {
		return 0, nil, err
	}
	switch window {
	case "", "hour":
	case "day":
		q.Day = true
	default:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "window", "window is %.100q; give hour or day", window)
	}
	q.Topics, q.Groups = names.Topics, names.Groups
	h, err := s.engine.History(r.Context(), q)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, compact{Value: h}, nil
}

// module is the path of the module of this package.
const module = "github.com/tidegate/tidegate"

// moduleVersion returns the version of this module in the program, and "unknown" if the program
// does not have it.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module && m.Version != "" {
			return m.Version
		}
	}
	return "unknown"
}

// audited are the operations over HTTP that change settings, copy data, or remove or move messages
// that are not the client's. Each call of them that the gate has admitted is a line of the log and
// a record of GET /v1/audit, except a dry run, which changes nothing. A logout is one if it ends a
// session.
var audited = map[string]bool{
	"putTopic": true, "deleteTopic": true, "purgeTopic": true, "deleteLiteTopic": true,
	"putGroup": true, "patchGroup": true, "deleteGroup": true, "rewindGroup": true, "redriveParked": true,
	"purgeDeadLetters": true, "redriveDeadLetters": true,
	"putThrottle": true, "patchThrottle": true, "postSnapshot": true,
	opLogin:              true,
	"putAddressSettings": true, "deleteAddressSettings": true,
}

// audit logs and records an operation with its principal, subject and result. The record of an
// edited redrive has the ID of the new message in its query, as that of a purge by a client that
// sent the message itself.
func (s *Server) audit(r *http.Request, op string, body any, err error) {
	subject, result := "broker", "ok"
	for _, part := range []string{"topic", "group", "match"} {
		if name := r.PathValue(part); name != "" {
			subject = name
		}
	}
	if name := r.PathValue("lite_topic"); name != "" {
		subject += "/" + name
	}
	if err != nil {
		result = err.Error()
	}
	query := r.URL.RawQuery
	if done, ok := body.(status.DeadLetterRedrive); ok && done.SentAs != "" {
		query = url.Values{"sent_as": {done.SentAs}}.Encode()
	}
	query = query[:min(len(query), 200)]
	args := []any{"operation", op, "subject", subject, "key", auth.NameOf(r), "peer", r.RemoteAddr, "result", result}
	if query != "" {
		args = append(args, "query", query)
	}
	s.records.Add(&status.AuditRecord{
		Time: time.Now(), Key: auth.NameOf(r), Peer: r.RemoteAddr, Operation: op, Subject: subject, Query: query, Result: result,
	})
	s.log.Log(r.Context(), slog.LevelInfo, "audit", args...)
}

// listAudit serves GET /v1/audit.
func (s *Server) listAudit(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "since", "key", "subject", "operation", "after", "limit")
	query := status.AuditQuery{
		Since: q.Time("since"), Key: q.Text("key"), Subject: q.Text("subject"), Operation: q.Text("operation"), After: q.Text("after"), Limit: q.Number("limit"),
	}
	if q.Err != nil {
		return 0, nil, q.Err
	}
	page, err := s.records.Page(&query)
	return http.StatusOK, page, err
}

const (
	// maxLive bounds the live streams at a time. A key can hold as many as it leaves free for
	// others, which is half of them if no other key has any.
	maxLive = 64

	maxWatched = 100 // names in one stream

	defaultEvery       = 2 * time.Second
	minEvery, maxEvery = time.Second, time.Minute
	liveRetryAfter     = 10 * time.Second
)

// live serves GET /v1/live until the client disconnects, the server stops, or the rules reject it.
// Streams of the same interval have their lines at the same moments, so that they share a survey.
func (s *Server) live(w http.ResponseWriter, r *http.Request) (int, any, error) {
	every, watch, err := s.watchOf(r)
	if err != nil {
		return 0, nil, err
	}
	key := auth.NameOf(r)
	if err := s.streams.begin(key, s.gate.Restricts(r)); err != nil {
		return 0, nil, err
	}
	defer s.streams.end(key)
	place, err := s.parkHTTP(r)
	if err != nil {
		return 0, nil, err
	}
	defer place.Release()
	out := newLineWriter(w)
	for {
		rules := s.gate.Regime().Over()
		err := s.gate.Recheck(r)
		if err == nil {
			err = s.writeLive(r, out, watch)
		}
		if err != nil {
			if !out.Begun() || r.Context().Err() != nil {
				return 0, nil, err
			}
			return 0, nil, out.End(err)
		}
		if !s.awaitTick(r.Context(), rules, every) {
			return 0, nil, nil
		}
	}
}

// liveStreams counts the live streams of each key. The zero value is empty.
type liveStreams struct {
	mu    sync.Mutex
	total int            // guarded by mu
	byKey map[string]int // guarded by mu: keys that have any
}

// begin counts a stream of a key. The error is 42900 if there is no place, or none for the key.
// Without access rules all clients are one.
func (l *liveStreams) begin(key string, shares bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := ""
	switch own := l.byKey[key]; {
	case l.total >= maxLive:
		text = fmt.Sprintf("there are %d live streams, which is the limit", maxLive)
	case shares && own >= maxLive-l.total-1:
		text = fmt.Sprintf("there are %d live streams, %d of them of this key, which is its share of %d", l.total, own, maxLive)
	}
	if text != "" {
		return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: liveRetryAfter,
			Message: text + "; close one, or read GET /v1/overview from time to time"}
	}
	if l.byKey == nil {
		l.byKey = map[string]int{}
	}
	l.total++
	l.byKey[key]++
	return nil
}

func (l *liveStreams) end(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.byKey[key]--; l.byKey[key] == 0 {
		delete(l.byKey, key)
	}
}

// count returns the number of streams.
func (l *liveStreams) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// writeLive writes the lines of one moment.
func (s *Server) writeLive(r *http.Request, out *lineWriter, watch *liveWatch) error {
	survey, err := s.surveys.Get(r.Context())
	if err != nil {
		return err
	}
	return writeLines(out, watch.Lines(survey, s.gate.Observer(r), time.Now())...)
}

// awaitTick waits until the next multiple of a duration, or until other rules hold. It returns
// false if the stream is to end.
func (s *Server) awaitTick(ctx, rules context.Context, every time.Duration) bool {
	now := time.Now()
	t := time.NewTimer(now.Truncate(every).Add(every).Sub(now))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-rules.Done():
		return true
	case <-s.draining:
	case <-ctx.Done():
	}
	return false
}

// watchOf reads the query.
func (s *Server) watchOf(r *http.Request) (every time.Duration, w *liveWatch, err error) {
	q := queryOf(r, "every", "topics", "groups")
	every = defaultEvery
	if text := q.Text("every"); text != "" {
		if every, err = time.ParseDuration(text); err != nil || every < minEvery || every > maxEvery {
			return 0, nil, refusal.New(tidegate.CodeBadRequest, "every", "every is %.100q; give a duration from %v to %v, such as 2s", text, minEvery, maxEvery)
		}
	}
	w, err = namesOf(q)
	return every, w, err
}

// namesOf reads the topics and groups that a query names.
func namesOf(q *urlQuery) (*liveWatch, error) {
	w := &liveWatch{}
	for _, list := range []struct {
		key string
		to  *[]string
	}{{"topics", &w.Topics}, {"groups", &w.Groups}} {
		if text := q.Text(list.key); text != "" {
			*list.to = strings.Split(text, ",")
		}
	}
	if q.Err != nil {
		return nil, q.Err
	}
	if n := len(w.Topics) + len(w.Groups); n > maxWatched {
		return nil, refusal.New(tidegate.CodeBadRequest, "topics", "the request names %d topics and groups; the limit is %d", n, maxWatched)
	}
	return w, nil
}

// login serves POST /v1/session.
func (s *Server) login(w http.ResponseWriter, r *http.Request) (int, any, error) {
	token, expires, err := s.gate.Login(w, r)
	if err != nil {
		return 0, nil, err
	}
	out := sessionOf(s.gate.Whoami(r))
	if out.Token = token; token != "" {
		out.Expires, out.Idle = expires, settings.Duration(auth.Idle)
	}
	return http.StatusOK, out, nil
}

// whoami serves GET /v1/session.
func (s *Server) whoami(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusOK, sessionOf(s.gate.Whoami(r)), nil
}

// logout serves DELETE /v1/session. A request without a session changes nothing, so it is no record
// of the audit.
func (s *Server) logout(w http.ResponseWriter, r *http.Request) (int, any, error) {
	if s.gate.Logout(w, r) {
		s.audit(r, opLogout, nil, nil)
	}
	return http.StatusNoContent, nil, nil
}

func sessionOf(w auth.Whoami) status.Session {
	out := status.Session{Key: w.Key, Restricted: w.Restricted, Rules: []status.Rule{}, Expires: w.Expires}
	if !w.Expires.IsZero() {
		out.Idle = settings.Duration(auth.Idle)
	}
	for _, r := range w.Rules {
		rule := status.Rule{Topics: r.Topics, Groups: r.Groups}
		for _, a := range r.Actions {
			rule.Actions = append(rule.Actions, string(a))
		}
		out.Rules = append(out.Rules, rule)
	}
	return out
}

// enterLogin is enter for a login, whose response waits if earlier ones failed.
func (s *Server) enterLogin(w http.ResponseWriter, r *http.Request, enter func() (*http.Request, error)) (*http.Request, error) {
	in, err := enter()
	if err == nil && s.gate.Restricts(in) && !auth.Authenticated(in) {
		_, _, err = s.gate.Login(w, in) // which rejects it
	}
	if err := s.gate.PaceLogin(r, err); err != nil {
		w.Header().Del("Www-Authenticate") // it would reveal that the secret is wrong
		return nil, err
	}
	if err == nil {
		err = s.gate.StillAllowed(in) // the key may have changed during the wait
	}
	return in, err
}
