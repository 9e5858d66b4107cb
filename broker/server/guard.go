package server

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/access"
)

// enter returns a request with who it is from, if it may be served. What that
// takes stands in httpNeeds: a route cannot be added without.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, rt route) (*http.Request, error) {
	needs, known := httpNeeds[rt.pattern()]
	switch {
	case rt.op == opOther: // it only says that there is nothing
		needs = func(*http.Request) []access.Need { return need(access.Signed()) }
	case !known:
		needs = onServer(access.Admin)
	case needs == nil:
		return r, nil // open
	}
	if bad := fromPage(r); bad != nil {
		s.logRefusal(rt.pattern(), r.RemoteAddr, claimedBy(s.gate.policy(), r), bad)
		return nil, bad.answer
	}
	a := &admission{pattern: rt.pattern(), needs: needs, began: time.Now()}
	if err := s.readmit(r, a); err != nil {
		if err.Code == tidegate.CodeUnauthorized {
			w.Header()["Www-Authenticate"] = challenges(r)
		}
		return nil, err
	}
	if bad := s.forOther(r, a.who); bad != nil {
		s.logRefusal(rt.pattern(), r.RemoteAddr, access.Identity{}.String(), bad)
		return nil, bad.answer
	}
	return r.WithContext(context.WithValue(r.Context(), admissionKey{}, a)), nil
}

// An admission is that of one request, whose goroutine alone uses it.
type admission struct {
	pattern string
	needs   func(*http.Request) []access.Need
	began   time.Time // when its signature was to be fresh

	under *regime
	who   *access.Identity // nil: nothing is restricted
}

// admissionKey is where a request's context has its *admission.
type admissionKey struct{}

func identityOf(r *http.Request) *access.Identity {
	if a, ok := r.Context().Value(admissionKey{}).(*admission); ok {
		return a.who
	}
	return nil
}

// stillAllowed refuses to go on with a request that the rules that hold now
// would not let in.
func (s *Server) stillAllowed(r *http.Request) error {
	a, ok := r.Context().Value(admissionKey{}).(*admission)
	if !ok || a.under == s.gate.current.Load() {
		return nil
	}
	if err := s.readmit(r, a); err != nil {
		return err
	}
	return nil
}

func (s *Server) readmit(r *http.Request, a *admission) *tidegate.Error {
	a.under = s.gate.current.Load()
	var err *tidegate.Error
	a.who, err = s.admitHTTP(a.pattern, r, a.under.policy, a.began, a.needs)
	return err
}

// permit refuses what a request asks for in its body, which the table of
// needs does not see, if it is not allowed to who the request is from.
func (s *Server) permit(r *http.Request, needs ...access.Need) error {
	who, p := identityOf(r), s.gate.policy()
	if who == nil || p == nil {
		return nil // nothing is restricted
	}
	if err := s.decide(p, *who, "", needs); err != nil {
		s.logRefusal(r.Pattern, r.RemoteAddr, who.String(), err)
		return err.answer
	}
	return nil
}

// permitHandle lets a request settle a delivery, by what its handle is of: the
// request itself names only the group. It fills in the topic. A retry belongs
// to the topic that the receive showed, and to who receives from the retry topic itself.
func (s *Server) permitHandle(r *http.Request, d *tidegate.Delivery) error {
	who, p := identityOf(r), s.gate.policy()
	if who == nil || p == nil {
		return nil // nothing is restricted
	}
	topic, original, bad := s.b.TopicOf(d.Handle)
	if bad != nil {
		d.Topic = noTopic
		return nil //nolint:nilerr // the engine refuses it, each among many by itself
	}
	d.Topic = topic
	if topic != original && p.Allows(*who, access.ToReceive(topic, d.ConsumerGroup)) == nil {
		return nil
	}
	return s.permit(r, access.ToReceive(original, d.ConsumerGroup))
}

// permitReconsume lets a request send a delivery that it may settle to the
// group's retry topics: seed 001 wants that to be permitted to who consumes.
func (s *Server) permitReconsume(r *http.Request, d *tidegate.Delivery) error {
	if identityOf(r) == nil {
		return nil // nothing is restricted
	}
	g, bad := s.b.Group(d.ConsumerGroup)
	_, original, unknown := s.b.TopicOf(d.Handle)
	if bad != nil || unknown != nil {
		return nil //nolint:nilerr // the engine refuses it
	}
	retry, dead := g.RetryTopic.Topics(original, d.ConsumerGroup)
	return s.permit(r, access.ToSend(retry), access.ToSend(dead))
}

// noTopic is the name of no topic.
const noTopic = " "

// admitHTTP returns who the request is from, if it may be served: nil if
// nothing is restricted.
func (s *Server) admitHTTP(pattern string, r *http.Request, p *access.Policy, began time.Time, needs func(*http.Request) []access.Need) (*access.Identity, *tidegate.Error) {
	if p == nil {
		return nil, nil
	}
	who, reason := identifyHTTP(p, r, began)
	if err := s.decide(p, who, reason, needs(r)); err != nil {
		name := who.String()
		if err.reason.OfCredentials() {
			name = claimedBy(p, r)
		}
		s.logRefusal(pattern, r.RemoteAddr, name, err)
		return nil, err.answer
	}
	return &who, nil
}

// claimedBy is what may be told of who a request says it is from.
func claimedBy(p *access.Policy, r *http.Request) string {
	authorization := r.Header.Get(headerAuthorization)
	if p == nil || authorization == "" {
		return access.Identity{}.String()
	}
	if user, _, ok := r.BasicAuth(); ok {
		return p.Claimed(user)
	}
	return p.ClaimedBy(authorization)
}

// identifyHTTP tells who an HTTP request is from that began at that time: by a key and its secret in
// Basic, by the signature that gRPC requests have, or by a client certificate.
func identifyHTTP(p *access.Policy, r *http.Request, began time.Time) (access.Identity, access.Reason) {
	authorization, dateTime := r.Header.Values(headerAuthorization), r.Header.Values(headerDateTime)
	if len(authorization) > 1 || len(dateTime) > 1 {
		return access.Identity{}, access.Malformed
	}
	if len(authorization) == 1 {
		if scheme, _, _ := strings.Cut(authorization[0], " "); strings.EqualFold(scheme, "Basic") {
			name, secret, ok := r.BasicAuth()
			switch {
			case !ok:
				return access.Identity{}, access.Malformed
			case !private(r):
				return access.Identity{}, access.PlainPassword
			}
			return p.Password(name, secret)
		}
		who, reason := p.Signature(authorization[0], r.Header.Get(headerDateTime), began)
		if reason != "" || !who.Anonymous() {
			return who, reason
		}
	}
	if r.TLS != nil {
		return p.Certificate(certificateNames(r.TLS.VerifiedChains)), ""
	}
	return access.Identity{}, ""
}

// private reports whether nobody between the client and here can read the request.
func private(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// challenges are the ways to show credentials (RFC 9110 §11.6.1).
func challenges(r *http.Request) []string {
	if !private(r) {
		return []string{access.Algorithm}
	}
	return []string{`Basic realm="tidegate", charset="UTF-8"`, access.Algorithm}
}
