// Package gate admits requests over gRPC and HTTP. It authenticates the client, rejects requests
// that the rules of package access do not allow and requests that a page in a browser must not
// make, and counts and logs the rejections. Package permission has the needs of each request.
package gate

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/login"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/wire"
	"github.com/tidegate/tidegate/internal/access"
)

// A Gate lets requests in. Goroutines share it.
type Gate struct {
	log   *slog.Logger
	hosts Hosts

	current atomic.Pointer[Regime]
	refused *prometheus.CounterVec
	lines   refusalLog

	sessions *login.Sessions // of pages
	attempts login.Attempts
}

// New returns a gate that restricts nothing until [Gate.Begin], except for pages in browsers.
func New(log *slog.Logger, hosts Hosts) *Gate {
	g := &Gate{log: log, hosts: hosts, sessions: login.New(), refused: prometheus.NewCounterVec(prometheus.CounterOpts{
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
		return unauthorized(HeaderSession, "the session does not exist or has ended: after 30 minutes without a request, after 12 hours, or because its key was changed; log in again")
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
