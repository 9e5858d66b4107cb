package gate

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/login"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/wire"
	"github.com/tidegate/tidegate/internal/access"
)

// HeaderSession has the half of a session's token that a page keeps. A request without it is never
// authenticated by its cookie, so a page of another origin cannot use the session.
const HeaderSession = "X-Tidegate-Session"

// maxCookies is how many cookies of the session's name are tried. Programs on other ports of the
// host can set further ones.
const maxCookies = 4

// cookieName returns the name of the cookie with the other half. Cookies are common to all ports of
// a host, so the name has the port.
func cookieName(r *http.Request) string {
	port := 0
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		port = at.Port
	}
	name := fmt.Sprintf("tidegate-%d", port)
	if r.TLS != nil {
		name = "__Secure-" + name
	}
	return name
}

// hasSession reports whether a request wants to be authenticated by a session.
func hasSession(r *http.Request) bool { return len(r.Header.Values(HeaderSession)) > 0 }

// sessionsOf returns the sessions that a request may belong to.
func sessionsOf(r *http.Request) (ids []login.ID) {
	kept := r.Header.Values(HeaderSession)
	if len(kept) != 1 {
		return nil
	}
	for _, c := range r.CookiesNamed(cookieName(r)) {
		if id, ok := login.IDOf(c.Value, kept[0]); ok && len(ids) < maxCookies {
			ids = append(ids, id)
		}
	}
	return ids
}

// bySession returns the principal of a request with a session.
func (g *Gate) bySession(p *access.Policy, r *http.Request) (access.Identity, access.Reason) {
	if who, _, ok := g.useSession(p, r); ok {
		return who, ""
	}
	return access.Identity{}, reasonSession
}

func (g *Gate) useSession(p *access.Policy, r *http.Request) (who access.Identity, expires time.Time, ok bool) {
	digest := func(key string) (login.Digest, bool) {
		d, ok := p.Digest(key)
		return d, ok
	}
	for _, id := range sessionsOf(r) {
		if key, expires, ok := g.sessions.Use(id, digest, time.Now()); ok {
			return access.Authenticated(key), expires, true
		}
	}
	return access.Identity{}, time.Time{}, false
}

// A Whoami is the principal of a request with its permissions.
type Whoami struct {
	Key        string
	Restricted bool // false: everything is allowed
	Rules      []access.Rule
	Expires    time.Time // of the session; zero without one
}

// Whoami returns the principal of an admitted request.
func (g *Gate) Whoami(r *http.Request) Whoami {
	who, p := identityOf(r), g.policy()
	if who == nil || p == nil {
		return Whoami{}
	}
	w := Whoami{Restricted: true, Rules: p.Rules(*who)}
	if !who.Anonymous() {
		w.Key = who.String()
	}
	if hasSession(r) {
		_, w.Expires, _ = g.useSession(p, r)
	}
	return w
}

// Login begins a session of the principal of an admitted request. It sets the cookie with one half
// of the token and returns the other half. If nothing is restricted, it returns an empty text. The
// error is 40100 without credentials, and 40000 for a request with a session.
func (g *Gate) Login(w http.ResponseWriter, r *http.Request) (kept string, expires time.Time, err error) {
	who, p := identityOf(r), g.policy()
	if who == nil || p == nil {
		return "", time.Time{}, nil
	}
	if hasSession(r) {
		return "", time.Time{}, refusal.New(tidegate.CodeBadRequest, HeaderSession, "a session cannot begin another one; give the access key and its secret, without the header "+HeaderSession)
	}
	digest, known := p.Digest(who.String())
	if who.Anonymous() || !known {
		w.Header()["Www-Authenticate"] = challenges(r)
		return "", time.Time{}, refusal.New(tidegate.CodeUnauthorized, "session", "the request has no credentials; give the access key and its secret")
	}
	cookie, kept, expires := g.sessions.Begin(who.String(), digest, time.Now())
	g.setCookie(w, r, cookie, 0)
	return kept, expires, nil
}

// Logout ends the session of a request, and returns false if it has none.
func (g *Gate) Logout(w http.ResponseWriter, r *http.Request) (ended bool) {
	for _, id := range sessionsOf(r) {
		ended = g.sessions.End(id) || ended
	}
	g.setCookie(w, r, "", -1)
	return ended
}

// setCookie sets the cookie. It has no path, so that it belongs to the directory of the request's
// URL in the browser: /v1, also behind a proxy that adds a prefix.
func (g *Gate) setCookie(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // Secure over TLS; in plain text the broker is on this machine
		Name: cookieName(r), Value: value, MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	})
}

// PaceLogin counts a login whose outcome is err, and delays its response after failed logins of the
// same address and name. The error is 42900 if too many wait. The response must then be the same
// for a right and a wrong secret.
func (g *Gate) PaceLogin(r *http.Request, err error) error {
	if r.Header.Get(wire.HeaderAuthorization) == "" || err != nil && refusal.CodeOf(err) != tidegate.CodeUnauthorized {
		return nil // it guesses nothing
	}
	wait, ok := g.attempts.Judge(network(r.RemoteAddr), keyNamedBy(g.policy(), r), err == nil, time.Now())
	if !ok {
		return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: wait, Message: "too many logins of this address with this name have failed; wait before the next one"}
	}
	if wait == 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-r.Context().Done():
		return r.Context().Err()
	}
}

// Recheck rejects the rest of a stream if the current rules would not admit it, or if its session
// has ended. A stream is a use of its session.
func (g *Gate) Recheck(r *http.Request) error {
	a, ok := r.Context().Value(admissionKey{}).(*admission)
	if !ok || a.under == g.current.Load() && !hasSession(r) {
		return nil
	}
	if err := g.readmit(r, a); err != nil {
		return err
	}
	return nil
}
