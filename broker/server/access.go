package server

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/access"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// An AccessConfig says who may do what; see [Options].Access. The zero value restricts
// nothing; with a key or an anonymous rule in it, all that no rule allows is refused.
type AccessConfig = access.Config

// A Key is one identity of an [AccessConfig]: RocketMQ's access key, its
// secrets, the client certificates that stand for it, and what it may do.
type Key = access.Key

// A Rule allows some actions on the topics and groups whose names match its patterns.
type Rule = access.Rule

// An Action is what a [Rule] allows.
type Action = access.Action

// A Secret is a text that no print, log or encoder shows.
type Secret = access.Secret

// NewSecret hides text in a Secret.
func NewSecret(text string) Secret { return access.NewSecret(text) }

// The actions of rules.
const (
	ActionSend    = access.Send    // send to topics, and recall what was sent
	ActionReceive = access.Receive // receive from topics as groups, and settle it
	ActionObserve = access.Observe // read settings, backlogs and metrics
	ActionAdmin   = access.Admin   // make, change and delete topics and groups; includes ActionObserve
)

// DefaultMaxClockSkew is how far a signed time may be from the broker's.
const DefaultMaxClockSkew = access.DefaultMaxClockSkew

const (
	headerAuthorization = "authorization"
	headerDateTime      = "x-mq-date-time"
)

// A gate is what every request passes: it finds out who asks, and whether that
// is allowed. Goroutines share it.
type gate struct {
	current atomic.Pointer[regime]
	refused *prometheus.CounterVec
	log     refusalLog
}

// A regime is who may do what for a time. What lasts longer is asked again
// when it is over.
type regime struct {
	policy *access.Policy  // nil: everything is allowed
	over   context.Context //nolint:containedctx // ends when another regime begins
	end    context.CancelFunc
}

func (g *gate) policy() *access.Policy { return g.current.Load().policy }

// begin makes p hold, and ends what held before.
func (g *gate) begin(p *access.Policy) {
	r := &regime{policy: p}
	r.over, r.end = context.WithCancel(context.Background()) // no request's
	if before := g.current.Swap(r); before != nil {
		before.end()
	}
}

// Reasons that no rule has a part in.
const (
	reasonPlainText access.Reason = "plain_text" // why a connection is refused, not a request
	reasonOrigin    access.Reason = "origin"     // a page of another origin would change something
	reasonHost      access.Reason = "host"       // for a name that a page may have made up
)

func newGate() *gate {
	g := &gate{refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidegate_access_refusals_total",
		Help: "Requests refused with UNAUTHORIZED or FORBIDDEN, and connections refused because they were not encrypted, by reason.",
	}, []string{"reason"})}
	for _, r := range append(slices.Clone(access.Reasons), reasonPlainText, reasonOrigin, reasonHost) {
		g.refused.WithLabelValues(string(r)) // so that the first refusal is seen as an increase
	}
	g.begin(nil)
	return g
}

// SetAccess changes who may do what. It holds for requests that begin
// afterwards, and streams that are open are asked again: those that are not
// allowed any more end with 40100 or 40300, and waiting receives are answered as empty. Its
// error names all that is wrong with c, and no secret; then nothing changed.
func (s *Server) SetAccess(c AccessConfig) error {
	var p *access.Policy
	if c.On() {
		var err error
		if p, err = access.New(c); err != nil {
			return fmt.Errorf("access: %w", err)
		}
	}
	s.gate.begin(p)
	s.sessions.endPolls(errNewRules)
	return nil
}

// A caller is who a gRPC request is from.
type caller struct {
	under *regime
	who   access.Identity
	began time.Time // when its signature was to be fresh
}

// authenticate finds out who a request is from that began at that time, by its
// headers alone. It refuses credentials that are not right, and none if no
// request may do without: before the request is read, so that whoever may do
// nothing costs nothing.
func (s *Server) authenticate(ctx context.Context, began time.Time, op string) (c caller, err error) {
	c = caller{under: s.gate.current.Load(), began: began}
	if c.under.policy == nil {
		return c, nil
	}
	from, _ := peer.FromContext(ctx)
	who, reason := identify(ctx, c.under.policy, from, began)
	c.who = who
	return c, s.judge(ctx, op, c, reason)
}

// admit returns the client's ID, if its caller may do what the request asks for.
func (s *Server) admit(ctx context.Context, op string, c caller, req any) (client string, err error) {
	if s.gate.current.Load() != c.under { // it changed while the request was read
		if c, err = s.authenticate(ctx, c.began, op); err != nil {
			return "", err
		}
	}
	if c.under.policy == nil {
		return clientID(ctx, nil)
	}
	if err := s.judge(ctx, op, c, "", needsOf(op, req)...); err != nil {
		return "", err
	}
	return clientID(ctx, &c.who)
}

// judge returns nil if the caller may do all that is needed.
func (s *Server) judge(ctx context.Context, op string, c caller, reason access.Reason, needs ...access.Need) error {
	err := s.decide(c.under.policy, c.who, reason, needs)
	if err == nil {
		return nil
	}
	var at string
	if from, ok := peer.FromContext(ctx); ok && from.Addr != nil {
		at = from.Addr.String()
	}
	name := c.who.String()
	if err.reason.OfCredentials() {
		name = c.under.policy.ClaimedBy(header(ctx, headerAuthorization))
	}
	s.logRefusal(op, at, name, err)
	return err.answer
}

// mayStillSend reports whether the client of a stream that began at that time
// may send to a topic by the rules that hold now.
func (s *Server) mayStillSend(ctx context.Context, began time.Time, topic string) bool {
	p := s.gate.policy()
	if p == nil {
		return true
	}
	from, _ := peer.FromContext(ctx)
	who, reason := identify(ctx, p, from, began)
	return reason == "" && p.Allows(who, access.ToSend(topic)) == nil
}

// identify tells who a gRPC request is from that began at that time: by its
// signature, or else by the client certificate of its connection.
func identify(ctx context.Context, p *access.Policy, from *peer.Peer, began time.Time) (access.Identity, access.Reason) {
	authorization := metadata.ValueFromIncomingContext(ctx, headerAuthorization)
	dateTime := metadata.ValueFromIncomingContext(ctx, headerDateTime)
	if len(authorization) > 1 || len(dateTime) > 1 {
		return access.Identity{}, access.Malformed // a proxy may have looked at another one
	}
	if len(authorization) == 1 {
		signed := ""
		if len(dateTime) == 1 {
			signed = dateTime[0]
		}
		if who, reason := p.Signature(authorization[0], signed, began); reason != "" || !who.Anonymous() {
			return who, reason
		}
	}
	if from != nil {
		if info, ok := from.AuthInfo.(credentials.TLSInfo); ok {
			return p.Certificate(certificateNames(info.State.VerifiedChains)), ""
		}
	}
	return access.Identity{}, ""
}

// certificateNames returns all names of a verified client certificate.
func certificateNames(verified [][]*x509.Certificate) []string {
	if len(verified) == 0 || len(verified[0]) == 0 {
		return nil
	}
	c := verified[0][0]
	names := []string{c.Subject.CommonName}
	names = append(names, c.DNSNames...)
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	return append(names, c.EmailAddresses...)
}

// A denial is why a request is not served, and what the client is told.
type denial struct {
	reason access.Reason
	answer *tidegate.Error
}

// decide returns nil if who may do all that is needed.
func (s *Server) decide(p *access.Policy, who access.Identity, reason access.Reason, needs []access.Need) *denial {
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

// refusalError is what the client is told. It repeats nothing that the client
// gave as credentials: a secret may stand in the wrong place.
func refusalError(p *access.Policy, reason access.Reason, forbidden error) *tidegate.Error {
	unauthorized := func(subject, text string) *tidegate.Error {
		return refusal.New(tidegate.CodeUnauthorized, subject, text)
	}
	switch reason {
	case access.NoCredentials:
		return unauthorized(headerAuthorization, fmt.Sprintf("the request has no credentials, and %v: give the client an access key and its secret", forbidden))
	case access.Malformed:
		return unauthorized(headerAuthorization, "the credentials cannot be read: the header authorization has the form "+access.Algorithm+
			" Credential=KEY, SignedHeaders=x-mq-date-time, Signature=HEX, and x-mq-date-time the form 20060102T150405Z")
	case access.WrongCredentials:
		return unauthorized(headerAuthorization, "the access key is unknown, or the secret is not its own")
	case access.ClockSkew:
		return unauthorized(headerDateTime, fmt.Sprintf("the signed time is more than %v away from the broker's: "+
			"set the client's clock, or name its time zone in the broker's access.time_zones", p.MaxClockSkew()))
	case access.PlainPassword:
		return unauthorized(headerAuthorization, "a secret came over plain text from another machine, where others can read it: use TLS, or sign the request; and change this secret")
	}
	return refusal.New(tidegate.CodeForbidden, "access", forbidden.Error()+": the key needs a rule that allows it")
}

func (s *Server) logRefusal(op, at, key string, r *denial) {
	s.gate.refused.WithLabelValues(string(r.reason)).Inc()
	if more, ok := s.gate.log.take(r.reason, time.Now()); ok {
		s.log.Warn("a request was refused", "op", op, "key", key, "peer", at, "reason", string(r.reason),
			"error", r.answer.Message, "refused_unlogged", more)
	}
}

// refusedPlainText is called for every connection that was refused for being one.
func (s *Server) refusedPlainText(at net.Addr) {
	s.gate.refused.WithLabelValues(string(reasonPlainText)).Inc()
	if more, ok := s.gate.log.take(reasonPlainText, time.Now()); ok {
		s.log.Warn("a connection in plain text was refused", "peer", at.String(), "refused_unlogged", more)
	}
}
