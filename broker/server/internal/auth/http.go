package auth

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/wire"
)

// Enter returns an admitted HTTP request with its principal. pattern is the route, and needs are
// its needs. If it rejects the request, the response header names the possible credentials.
func (g *Gate) Enter(w http.ResponseWriter, r *http.Request, pattern string, needs []access.Need) (*http.Request, error) {
	if bad := fromPage(r); bad != nil {
		g.deny(pattern, r.RemoteAddr, claimedBy(g.policy(), r), bad)
		return nil, bad.answer
	}
	a := &admitted{pattern: pattern, needs: needs, began: time.Now()}
	if err := g.readmit(r, a); err != nil {
		if err.Code == tidegate.CodeUnauthorized {
			w.Header()["Www-Authenticate"] = challenges(r)
		}
		return nil, err
	}
	if bad := g.forOther(r, a.who); bad != nil {
		g.deny(pattern, r.RemoteAddr, access.Identity{}.String(), bad)
		return nil, bad.answer
	}
	return r.WithContext(context.WithValue(r.Context(), admittedKey{}, a)), nil
}

// An admitted belongs to one request. Only the goroutine of the request uses it.
type admitted struct {
	pattern string
	needs   []access.Need
	began   time.Time // when its signature was to be fresh

	under *Regime
	who   *access.Identity // nil: nothing is restricted
}

// admittedKey is where a request's context has its *admitted.
type admittedKey struct{}

func identityOf(r *http.Request) *access.Identity {
	if a, ok := r.Context().Value(admittedKey{}).(*admitted); ok {
		return a.who
	}
	return nil
}

// StillAllowed rejects the rest of a request if the current rules would not admit it.
func (g *Gate) StillAllowed(r *http.Request) error {
	a, ok := r.Context().Value(admittedKey{}).(*admitted)
	if !ok || a.under == g.current.Load() {
		return nil
	}
	if err := g.readmit(r, a); err != nil {
		return err
	}
	return nil
}

// readmit admits the request again under the present policy. It returns a concrete type, nil if the
// request is admitted, because admitHTTP does; Permit turns it into an error.
func (g *Gate) readmit(r *http.Request, a *admitted) *tidegate.Error {
	a.under = g.current.Load()
	var err *tidegate.Error
	a.who, err = g.admitHTTP(a.pattern, r, a.under.policy, a.began, a.needs)
	return err
}

// Authenticated reports whether the client of a request that [Gate.Enter] returned has shown
// credentials.
func Authenticated(r *http.Request) bool {
	who := identityOf(r)
	return who != nil && !who.Anonymous()
}

// NameOf returns the name of the principal of an admitted request for logs, empty if nothing is
// restricted.
func NameOf(r *http.Request) string {
	who := identityOf(r)
	if who == nil {
		return ""
	}
	return who.String()
}

// Restricts reports whether rules hold for the request.
func (g *Gate) Restricts(r *http.Request) bool { return identityOf(r) != nil && g.policy() != nil }

// Allows reports whether the principal of the request has all the needed permissions. Unlike Permit
// it neither counts nor logs.
func (g *Gate) Allows(r *http.Request, needs ...access.Need) bool {
	who, p := identityOf(r), g.policy()
	return who == nil || p == nil || p.Allows(*who, needs...) == nil
}

// An Observer is the principal of a request as one that observes the broker.
type Observer struct {
	gate    *Gate
	request *http.Request
}

// Observer returns the principal of an admitted request.
func (g *Gate) Observer(r *http.Request) Observer { return Observer{g, r} }

// Broker reports whether the principal may observe the whole broker.
func (o Observer) Broker() bool { return o.gate.Allows(o.request, access.OnServer(access.Observe)) }

// Topic reports whether the principal may observe a topic.
func (o Observer) Topic(name string) bool {
	return o.gate.Allows(o.request, access.OnTopic(access.Observe, name))
}

// Group reports whether the principal may observe a group.
func (o Observer) Group(name string) bool {
	return o.gate.Allows(o.request, access.OnGroup(access.Observe, name))
}

// ClientOf returns the ID of the client that sends a request: the header
// x-mq-client-id, as over gRPC, or else otherwise; with keys, the key before it.
func ClientOf(r *http.Request, otherwise string) (string, error) {
	id := r.Header.Get(wire.HeaderClientID)
	if id == "" {
		id = otherwise
	}
	if len(id) > maxClientID {
		return "", refusal.TooLong(protocol.CodeClientIDRequired, "header "+wire.HeaderClientID, len(id), maxClientID)
	}
	return scoped(identityOf(r), id), nil
}

// ScopedTo returns the ID of a client or consumer that a request names; with keys, the key before it.
func ScopedTo(r *http.Request, id string) string { return scoped(identityOf(r), id) }

// Permit rejects a request if its principal lacks a permission for the body of the request, which
// the table of needs does not cover.
func (g *Gate) Permit(r *http.Request, needs ...access.Need) error {
	who, p := identityOf(r), g.policy()
	if who == nil || p == nil {
		return nil // nothing is restricted
	}
	if err := decide(p, *who, "", needs); err != nil {
		g.deny(r.Pattern, r.RemoteAddr, who.String(), err)
		return err.answer
	}
	return nil
}

// admitHTTP returns the principal of an admitted request. It returns nil if nothing is restricted.
func (g *Gate) admitHTTP(pattern string, r *http.Request, p *access.Policy, began time.Time, needs []access.Need) (*access.Identity, *tidegate.Error) {
	if p == nil {
		return nil, nil
	}
	who, reason := g.identifyHTTP(p, r, began)
	if err := decide(p, who, reason, needs); err != nil {
		name := who.String()
		if err.reason.OfCredentials() {
			name = claimedBy(p, r)
		}
		g.deny(pattern, r.RemoteAddr, name, err)
		return nil, err.answer
	}
	return &who, nil
}

// claimedBy returns the name for logs of the client that a request claims to come from.
func claimedBy(p *access.Policy, r *http.Request) string {
	authorization := r.Header.Get(wire.HeaderAuthorization)
	if p == nil || authorization == "" {
		return access.Identity{}.String()
	}
	if user, _, ok := r.BasicAuth(); ok {
		return p.Claimed(user)
	}
	return p.ClaimedBy(authorization)
}

// keyNamedBy returns the name of the key in the credentials of a request, empty if no key has it.
func keyNamedBy(p *access.Policy, r *http.Request) string {
	if p == nil {
		return ""
	}
	name, _, ok := r.BasicAuth()
	if !ok {
		name = access.NameIn(r.Header.Get(wire.HeaderAuthorization))
	}
	if _, known := p.Digest(name); !known {
		return ""
	}
	return name
}

// identifyHTTP returns the principal of an HTTP request: by a session, by a key and its secret in
// Basic, by the signature of gRPC requests, or by a client certificate. began is the start of the
// request.
func (g *Gate) identifyHTTP(p *access.Policy, r *http.Request, began time.Time) (access.Identity, access.Reason) {
	authorization, dateTime := r.Header.Values(wire.HeaderAuthorization), r.Header.Values(wire.HeaderDateTime)
	if len(authorization) > 1 || len(dateTime) > 1 {
		return access.Identity{}, access.Malformed
	}
	if hasSession(r) {
		if len(authorization) > 0 {
			return access.Identity{}, access.Malformed
		}
		return g.bySession(p, r)
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
		who, reason := p.Signature(authorization[0], r.Header.Get(wire.HeaderDateTime), began)
		if reason != "" || !who.Anonymous() {
			return who, reason
		}
	}
	if r.TLS != nil {
		return p.Certificate(certificateNames(r.TLS.VerifiedChains)), ""
	}
	return access.Identity{}, ""
}

// private reports whether no third party between the client and this server can read the request.
func private(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// challenges are the ways to show credentials (RFC 9110 §11.6.1). A script of a page is not offered
// Basic: the browser would show its own login window, keep the credentials and send them with each
// later request, where the console shows its login form and begins a session.
func challenges(r *http.Request) []string {
	if mode := r.Header.Get("Sec-Fetch-Mode"); !private(r) || mode != "" && mode != "navigate" {
		return []string{access.Algorithm}
	}
	return []string{`Basic realm="tidegate", charset="UTF-8"`, access.Algorithm}
}
