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
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/internal/access"
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
		return refusal.New(tidegate.CodeUnauthorized, subject, text)
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
	return refusal.New(tidegate.CodeForbidden, "access", forbidden.Error()+"; give the key a rule that allows it")
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
		fmt.Sprintf("a web page of origin %.200q may not change this broker", r.Header.Get("Origin")))}
}

// forOther rejects a request without credentials that arrived at a loopback address and has a host
// name that a third party can control. who is nil if nothing is restricted. Over TLS the browser
// has compared the name with the certificate, which no third party can have.
func (g *Gate) forOther(r *http.Request, who *access.Identity) *denial {
	if g.hosts.Any || who != nil && !who.Anonymous() || r.TLS != nil || !overLoopback(r) || g.hosts.own(r.Host) {
		return nil
	}
	return &denial{reasonHost, refusal.New(tidegate.CodeForbidden, "host", fmt.Sprintf("the Host header is %.200q, and the request has no credentials; on a loopback address "+
		"the host must be an IP address, localhost, the advertised name or one of http_hosts, because a web page can send other names (DNS rebinding); "+
		"use one of these, add the name to --http-hosts, or use access keys or TLS", r.Host))}
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
