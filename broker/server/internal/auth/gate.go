// Package auth admits requests over gRPC and HTTP (Gate). It authenticates the client, rejects
// requests that the rules of package access do not allow and requests that a page in a browser must
// not make, and counts and logs the rejections. NeedsOfRPC and NeedsOfRoute have the needs of each
// request, Sessions the logins of browsers, and Attempts delays logins after failed ones.
package auth

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// A Gate lets requests in. Goroutines share it.
type Gate struct {
	log   *slog.Logger
	hosts Hosts

	current atomic.Pointer[Regime]
	refused *prometheus.CounterVec
	lines   refusalLog

	sessions *Sessions // of pages
	attempts attempts
}

// NewGate returns a gate that restricts nothing until [Gate.Begin], except for pages in browsers.
func NewGate(log *slog.Logger, hosts Hosts) *Gate {
	g := &Gate{log: log, hosts: hosts, sessions: NewSessions(), refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidegate_access_refusals_total",
		Help: "Requests rejected with UNAUTHORIZED or FORBIDDEN, and rejected connections in plain text, by reason.",
	}, []string{"reason"})}
	for _, r := range append(slices.Clone(access.Reasons), reasonPlainText, reasonOrigin, reasonHost, reasonSession) {
		g.refused.WithLabelValues(string(r)) // so that the first rejection is seen as an increase
	}
	g.Begin(nil)
	return g
}

// A Regime is a set of rules for a period. Longer requests are checked again when it ends.
type Regime struct {
	policy *access.Policy  // nil: everything is allowed
	over   context.Context //nolint:containedctx // ends when another regime begins
	end    context.CancelFunc
}

// Over returns a context that ends when other rules hold.
func (r *Regime) Over() context.Context { return r.over }

// Begin applies the rules p and ends the rules before. Nil restricts nothing.
func (g *Gate) Begin(p *access.Policy) {
	r := &Regime{policy: p}
	r.over, r.end = context.WithCancel(context.Background()) // no request's
	if before := g.current.Swap(r); before != nil {
		before.end()
	}
}

// Regime returns the current rules.
func (g *Gate) Regime() *Regime { return g.current.Load() }

func (g *Gate) policy() *access.Policy { return g.current.Load().policy }

// Refusals counts the rejections by reason.
func (g *Gate) Refusals() prometheus.Collector { return g.refused }

// Reasons that no rule has a part in.
const (
	reasonPlainText access.Reason = "plain_text" // why a connection is rejected, not a request
	reasonOrigin    access.Reason = "origin"     // a page of another origin would change something
	reasonHost      access.Reason = "host"       // for a name that a page may have made up
	reasonSession   access.Reason = "session"    // which does not exist or has ended
)

// A denial is the reason of a rejection, with the error for the client.
type denial struct {
	reason access.Reason
	answer *tidegate.Error
}

// decide returns nil if the principal has all the needed permissions.
func decide(p *access.Policy, who access.Identity, reason access.Reason, needs []access.Need) *denial {
	var forbidden error
	if reason == "" {
		if forbidden = p.Allows(who, needs...); forbidden == nil {
			return nil
		}
		reason = access.Forbidden
		if who.Anonymous() {
			reason = access.NoCredentials
		}
	}
	return &denial{reason, refusalError(p, reason, forbidden)}
}

// refusalError returns the error for the client. It repeats no part of the credentials, because a
// secret can be in the wrong place.
func refusalError(p *access.Policy, reason access.Reason, forbidden error) *tidegate.Error {
	unauthorized := func(subject, text string) *tidegate.Error {
		return refusal.New(tidegate.CodeUnauthorized, subject, "%s", text)
	}
	switch reason {
	case access.NoCredentials:
		return unauthorized(wire.HeaderAuthorization, fmt.Sprintf("the request has no credentials, and %v; give the client an access key and its secret", forbidden))
	case access.Malformed:
		return unauthorized(wire.HeaderAuthorization, "the credentials are malformed; give the header authorization the form "+access.Algorithm+
			" Credential=KEY, SignedHeaders=x-mq-date-time, Signature=HEX, and the header x-mq-date-time the form 20060102T150405Z")
	case access.WrongCredentials:
		return unauthorized(wire.HeaderAuthorization, "the access key is unknown, or the secret is wrong")
	case access.ClockSkew:
		return unauthorized(wire.HeaderDateTime, fmt.Sprintf("the signed time differs from the broker's clock by more than %v; "+
			"correct the client's clock, or add its time zone to access.time_zones of the broker", p.MaxClockSkew()))
	case reasonSession:
		return unauthorized(headerSession, "the session does not exist or has ended: after 30 minutes without a request, after 12 hours, or because its key was changed; log in again")
	case access.PlainPassword:
		return unauthorized(wire.HeaderAuthorization, "the client sent its secret in plain text over the network, where others can read it; change this secret, and use TLS or sign the requests")
	}
	return refusal.New(tidegate.CodeForbidden, "access", "%s", forbidden.Error()+"; give the key a rule that allows it")
}

func (g *Gate) deny(op, at, key string, r *denial) {
	g.refused.WithLabelValues(string(r.reason)).Inc()
	if more, ok := g.lines.take(r.reason, time.Now()); ok {
		g.log.Warn("request rejected", "operation", op, "key", key, "peer", at, "reason", string(r.reason),
			"error", r.answer.Message, "not_logged", more)
	}
}

// RefusedPlainText counts and logs a rejected connection in plain text.
func (g *Gate) RefusedPlainText(at net.Addr) {
	g.refused.WithLabelValues(string(reasonPlainText)).Inc()
	if more, ok := g.lines.take(reasonPlainText, time.Now()); ok {
		g.log.Warn("plain-text connection rejected", "peer", at.String(), "not_logged", more)
	}
}

const (
	// refusalLines is how many refusals for one reason are logged at once, and refusalPause the
	// time until the next one is; all are counted in the metrics.
	refusalLines = 5
	refusalPause = 2 * time.Second
)

// A refusalLog bounds the log lines about rejected clients. Each reason has its own share, so that
// noise of one kind does not hide another.
type refusalLog struct {
	mu      sync.Mutex
	reasons map[access.Reason]*refusals // guarded by mu
}

// refusals are those for one reason.
type refusals struct {
	lines *rate.Limiter
	other int // that were not logged since the last one that was
}

// take reports whether a rejection at now is logged, and if so how many were not logged since the
// last one.
func (l *refusalLog) take(reason access.Reason, now time.Time) (unlogged int, log bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reasons == nil {
		l.reasons = map[access.Reason]*refusals{}
	}
	r := l.reasons[reason]
	if r == nil {
		r = &refusals{lines: rate.NewLimiter(rate.Every(refusalPause), refusalLines)}
		l.reasons[reason] = r
	}
	if !r.lines.AllowN(now, 1) {
		r.other++
		return 0, false
	}
	unlogged, r.other = r.other, 0
	return unlogged, true
}

// Hosts are the accepted host names of HTTP requests that have no credentials and arrive in plain
// text at a loopback address.
type Hosts struct {
	Any   bool     // from any page
	Names []string // these, with or without a port, beside IP addresses and localhost
}

// same detects pages of other origins by Origin and Sec-Fetch-Site.
var same = http.NewCrossOriginProtection()

// A page in a browser can reach a broker on the same machine, which needs no keys. A page of
// another origin can only send simple requests and cannot read the responses; fromPage rejects its
// changes. A page whose name was changed to point at this machine (DNS rebinding) is of the same
// origin; forOther rejects the name.
func fromPage(r *http.Request) *denial {
	if same.Check(r) == nil {
		return nil
	}
	return &denial{reasonOrigin, refusal.New(tidegate.CodeForbidden, "origin",
		"a web page of origin %.200q may not change this broker", r.Header.Get("Origin"))}
}

// forOther rejects a request without credentials that arrived at a loopback address and has a host
// name that a third party can control. who is nil if nothing is restricted. Over TLS the browser
// has compared the name with the certificate, which no third party can have.
func (g *Gate) forOther(r *http.Request, who *access.Identity) *denial {
	if g.hosts.Any || who != nil && !who.Anonymous() || r.TLS != nil || !overLoopback(r) || g.hosts.own(r.Host) {
		return nil
	}
	return &denial{reasonHost, refusal.New(tidegate.CodeForbidden, "host", "the Host header is %.200q, and the request has no credentials; on a loopback address "+
		"the host must be an IP address, localhost, the advertised name or one of http_hosts, because a web page can send other names (DNS rebinding); "+
		"use one of these, add the name to --http-hosts, or use access keys or TLS", r.Host)}
}

// overLoopback reports whether a request arrived at a loopback address.
func overLoopback(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && at.IP.IsLoopback()
}

// own reports whether a Host header has an IP address, a name of this machine (RFC 6761 §6.3), or a
// name in the options. Browsers always send the header.
func (h Hosts) own(host string) bool {
	name := hostName(host)
	if name == "" || name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return slices.ContainsFunc(h.Names, func(own string) bool { return name == hostName(own) })
}

// IsHostName reports whether name can be that of a host, as a Host header has it
// without a port: letters, digits, hyphens and underscores, with dots between.
func IsHostName(name string) bool {
	return len(name) <= 255 && hostNames.MatchString(name)
}

var hostNames = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?$`)

// hostName returns the name before the port, in the form for comparison.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// The needs of each RPC. A handle in an RPC needs no entry of its own: the engine rejects a handle
// that does not belong to the topic and group of the request.

// RPCs are the needs of all RPCs. One that is not here needs to administer
// the whole broker.
var RPCs = map[string]func(req any) []access.Need{
	"QueryRoute": rpcRow(func(q *rmqpb.QueryRouteRequest) []access.Need {
		return need(access.ToUse(q.GetTopic().GetName()))
	}),
	"QueryAssignment": rpcRow(func(q *rmqpb.QueryAssignmentRequest) []access.Need {
		return consume(q.GetTopic(), q.GetGroup()) // it makes the group
	}),
	"Heartbeat": rpcRow(func(q *rmqpb.HeartbeatRequest) []access.Need {
		if group := q.GetGroup().GetName(); group != "" {
			return need(access.AsGroup(group))
		}
		return need(access.Signed())
	}),
	"NotifyClientTermination": rpcRow(func(*rmqpb.NotifyClientTerminationRequest) []access.Need {
		return need(access.Signed()) // a client ends only itself, because IDs of clients are per key
	}),
	"SendMessage": rpcRow(func(q *rmqpb.SendMessageRequest) []access.Need {
		needs := need(access.Signed())
		last := ""
		for i, m := range q.GetMessages() {
			if t := m.GetTopic().GetName(); i == 0 || t != last { // in a valid request it is one
				needs, last = append(needs, access.ToSend(t)), t
			}
		}
		return needs
	}),
	"RecallMessage":  rpcRow(func(q *rmqpb.RecallMessageRequest) []access.Need { return need(access.ToSend(q.GetTopic().GetName())) }),
	"EndTransaction": rpcRow(func(q *rmqpb.EndTransactionRequest) []access.Need { return need(access.ToSend(q.GetTopic().GetName())) }),
	"ReceiveMessage": rpcRow(func(q *rmqpb.ReceiveMessageRequest) []access.Need {
		return consume(q.GetMessageQueue().GetTopic(), q.GetGroup())
	}),
	"AckMessage": rpcRow(func(q *rmqpb.AckMessageRequest) []access.Need {
		return consume(q.GetTopic(), q.GetGroup())
	}),
	"ChangeInvisibleDuration": rpcRow(func(q *rmqpb.ChangeInvisibleDurationRequest) []access.Need {
		return consume(q.GetTopic(), q.GetGroup())
	}),
	"ForwardMessageToDeadLetterQueue": rpcRow(func(q *rmqpb.ForwardMessageToDeadLetterQueueRequest) []access.Need {
		return consume(q.GetTopic(), q.GetGroup())
	}),
	"PullMessage": rpcRow(func(q *rmqpb.PullMessageRequest) []access.Need {
		return consume(q.GetMessageQueue().GetTopic(), q.GetGroup())
	}),
	"UpdateOffset": rpcRow(func(q *rmqpb.UpdateOffsetRequest) []access.Need {
		return consume(q.GetMessageQueue().GetTopic(), q.GetGroup())
	}),
	"GetOffset": rpcRow(func(q *rmqpb.GetOffsetRequest) []access.Need {
		return consume(q.GetMessageQueue().GetTopic(), q.GetGroup())
	}),
	"QueryOffset": rpcRow(func(q *rmqpb.QueryOffsetRequest) []access.Need {
		return need(access.ToUse(q.GetMessageQueue().GetTopic().GetName()))
	}),
	"SyncLiteSubscription": rpcRow(func(q *rmqpb.SyncLiteSubscriptionRequest) []access.Need {
		return consume(q.GetTopic(), q.GetGroup())
	}),
	// Telemetry is asked with the settings that a client sends; nil is its beginning.
	requests.RPCTelemetry: rpcRow(func(in *rmqpb.Settings) []access.Need {
		needs := need(access.Signed())
		for _, t := range in.GetPublishing().GetTopics() {
			needs = append(needs, access.ToSend(t.GetName()))
		}
		if sub := in.GetSubscription(); sub != nil {
			needs = append(needs, access.AsGroup(sub.GetGroup().GetName()))
			for _, e := range sub.GetSubscriptions() {
				needs = append(needs, consume(e.GetTopic(), sub.GetGroup())...)
			}
		}
		return needs
	}),
}

// Routes are the needs of all HTTP routes, by method and pattern. A route without an entry needs
// administrator rights for the whole broker. A route with nil needs is open to everyone.
var Routes = map[string]func(r *http.Request) []access.Need{
	"POST /v1/topics/{topic}/messages":               toSend,
	"POST /v1/topics/{topic}/recall":                 toSend,
	"POST /v1/groups/{group}/topics/{topic}/receive": toReceive,

	"PUT /v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}":       toReceive,
	"PATCH /v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}":     toReceive,
	"DELETE /v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}":    toReceive,
	"GET /v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}/ended": toReceive,

	// These name a group and a handle; permitHandle asks for the handle's topic.
	"POST /v1/groups/{group}/acknowledge":               asGroup,
	"POST /v1/groups/{group}/change-invisible-duration": asGroup,
	"POST /v1/groups/{group}/retry":                     asGroup,
	"POST /v1/groups/{group}/dead-letter":               asGroup,
	"POST /v1/groups/{group}/negative-acknowledge":      asGroup,
	"POST /v1/groups/{group}/snooze":                    asGroup,
	"POST /v1/groups/{group}/reconsume-later":           asGroup, // permitReconsume asks for the topics that it sends to

	"GET /v1/topics":                                     toList,
	"GET /v1/topics/{topic}":                             onTopic(access.Observe),
	"GET /v1/topics/{topic}/messages":                    toLook, // package server asks for the permission to receive for contents
	"GET /v1/topics/{topic}/messages/{id}":               toLook, // package server leaves out groups that the key may not observe
	"PUT /v1/topics/{topic}":                             onTopic(access.Admin),
	"DELETE /v1/topics/{topic}":                          onTopic(access.Admin),
	"POST /v1/topics/{topic}/purge":                      onTopic(access.Admin),
	"GET /v1/topics/{topic}/address-settings":            onTopic(access.Observe),
	"GET /v1/topics/{topic}/lite-topics":                 onTopic(access.Observe),
	"DELETE /v1/topics/{topic}/lite-topics/{lite_topic}": onTopic(access.Admin),
	"GET /v1/address-settings":                           onServer(access.Observe),
	"GET /v1/address-settings/{match}":                   onServer(access.Observe),
	"PUT /v1/address-settings/{match}":                   onServer(access.Admin),
	"DELETE /v1/address-settings/{match}":                onServer(access.Admin),
	"GET /v1/groups":                                     toList,
	"GET /v1/groups/{group}":                             onGroup(access.Observe),
	"PUT /v1/groups/{group}":                             onGroup(access.Admin),
	"PATCH /v1/groups/{group}":                           onGroup(access.Admin),
	"DELETE /v1/groups/{group}":                          onGroup(access.Admin),
	"POST /v1/groups/{group}/rewind":                     onGroup(access.Admin),
	"GET /v1/groups/{group}/parked":                      onGroup(access.Observe),
	"POST /v1/groups/{group}/parked/redrive":             onGroup(access.Admin),
	"GET /v1/groups/{group}/dead-letters":                listDeadLetters,
	"GET /v1/topics/{topic}/queues":                      onTopic(access.Observe),
	"GET /v1/groups/{group}/topics/{topic}/queues":       toBrowse,
	"GET /v1/groups/{group}/topics/{topic}/leases":       toBrowse,
	"GET /v1/groups/{group}/topics/{topic}/schedule":     toBrowse,
	"GET /v1/groups/{group}/failures":                    onGroup(access.Observe),
	"GET /v1/groups/{group}/dead-letters/classes":        listDeadLetters,
	"POST /v1/groups/{group}/dead-letters/redrive":       moveDeadLetters,
	"DELETE /v1/groups/{group}/dead-letters":             moveDeadLetters,
	"GET /v1/throttle":                                   onServer(access.Observe),
	"PUT /v1/throttle":                                   onServer(access.Admin),
	"PATCH /v1/throttle":                                 onServer(access.Admin),
	"POST /v1/snapshot":                                  onServer(access.Admin),
	"POST /v1/session":                                   anyone, // the handler rejects anonymous requests
	"GET /v1/session":                                    anyone,
	"DELETE /v1/session":                                 anyone,
	"GET /v1/live":                                       anyone, // only names that the key may observe
	"GET /v1/history":                                    anyone, // likewise, and the sums of these
	"GET /v1/audit":                                      onServer(access.Admin),
	"GET /v1/clients":                                    anyone, // only clients of groups and topics that the key may observe
	"GET /v1/overview":                                   onServer(access.Observe),
	"GET /metrics":                                       onServer(access.Observe),
	"GET /healthz":                                       nil, // probes of process managers have no keys
	"GET /readyz":                                        nil,
	"GET /v1/openapi.yaml":                               nil, // its content is in the public repository
	"GET /console":                                       nil, // the files of the console have no data
	"GET /console/":                                      nil,
}

func toSend(r *http.Request) []access.Need { return need(access.ToSend(r.PathValue("topic"))) }

func toLook(r *http.Request) []access.Need { return need(access.ToLook(r.PathValue("topic"))) }

// toList is the need for a list of all names. A page has only those that the key may observe, which
// package server selects.
func toList(r *http.Request) []access.Need {
	if r.URL.RawQuery == "" {
		return need(access.OnServer(access.Observe))
	}
	return need(access.Signed())
}

func anyone(*http.Request) []access.Need { return need(access.Signed()) }

func toReceive(r *http.Request) []access.Need {
	return need(access.ToReceive(r.PathValue("topic"), r.PathValue("group")))
}

func toBrowse(r *http.Request) []access.Need {
	return need(access.ToBrowse(r.PathValue("topic"), r.PathValue("group")))
}

func asGroup(r *http.Request) []access.Need { return need(access.AsGroup(r.PathValue("group"))) }

// listDeadLetters is the need to list dead letters without their bodies. Package server asks for
// the permission to receive if the request has bodies.
func listDeadLetters(r *http.Request) []access.Need {
	group := r.PathValue("group")
	return need(access.ToBrowse(tidegate.DeadLetterTopic(group), group))
}

// moveDeadLetters is to take dead letters out of there. Abandoned transactions
// are of all topics and of no group, so that their topic has to be allowed as well.
func moveDeadLetters(r *http.Request) []access.Need {
	group := r.PathValue("group")
	if topic := tidegate.DeadLetterTopic(group); topic == broker.AbandonedTransactions {
		return need(access.OnBoth(access.Admin, topic, group))
	}
	return need(access.OnGroup(access.Admin, group))
}

// NeedsOfRoute returns the needs of a route by its method and pattern. open is set if it needs
// nothing.
func NeedsOfRoute(pattern string) (needs func(*http.Request) []access.Need, open bool) {
	needs, known := Routes[pattern]
	if !known {
		return onServer(access.Admin), false
	}
	return needs, needs == nil
}

// NeedsOfNoRoute returns the needs of a request without a route: if it has credentials, they must
// be correct.
func NeedsOfNoRoute(*http.Request) []access.Need { return need(access.Signed()) }

// NeedsOfRPC returns the needs of an RPC.
func NeedsOfRPC(op string, req any) []access.Need {
	if f := RPCs[op]; f != nil {
		return f(req)
	}
	return need(access.OnServer(access.Admin))
}

func rpcRow[Q any](f func(Q) []access.Need) func(any) []access.Need {
	return func(req any) []access.Need {
		q, ok := req.(Q)
		if !ok {
			return need(access.OnServer(access.Admin))
		}
		return f(q)
	}
}

func need(n access.Need) []access.Need { return []access.Need{n} }

func consume(topic, group *rmqpb.Resource) []access.Need {
	return need(access.ToReceive(topic.GetName(), group.GetName()))
}

func onServer(a access.Action) func(*http.Request) []access.Need {
	return func(*http.Request) []access.Need { return need(access.OnServer(a)) }
}

func onTopic(a access.Action) func(*http.Request) []access.Need {
	return func(r *http.Request) []access.Need { return need(access.OnTopic(a, r.PathValue("topic"))) }
}

func onGroup(a access.Action) func(*http.Request) []access.Need {
	return func(r *http.Request) []access.Need { return need(access.OnGroup(a, r.PathValue("group"))) }
}

// beforeBody are needs of RPCs that are known before the request is read: a key that may not send
// to any topic is rejected before its bodies come. RPCs decide in any case.
var beforeBody = map[string]access.Need{"SendMessage": access.ToSendAnywhere()}

// An engine knows the topics of a delivery and of its group.
type engine interface {
	Group(name string) (status.Group, error)
	TopicOf(handle string) (topic, original string, err error)
}

// NeedsOfReconsume returns the needs of a retry through the retry topic, or nil for a delivery that
// the engine rejects.
func NeedsOfReconsume(e engine, d *tidegate.Delivery) []access.Need {
	g, bad := e.Group(d.ConsumerGroup)
	_, original, unknown := e.TopicOf(d.Handle)
	if bad != nil || unknown != nil {
		return nil
	}
	retry, dead := g.RetryTopic.Topics(original, d.ConsumerGroup)
	return []access.Need{access.ToSend(retry), access.ToSend(dead)}
}
