package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/wire"
)

const (
	// Idle is the time without a request after which a session ends.
	Idle = 30 * time.Minute

	// longest is the longest time of a session.
	longest = 12 * time.Hour

	maxOfKey = 20
	maxInAll = 1000

	// halfSize is the size of each half of a token in bytes.
	halfSize = 16
)

// A digest identifies a key with its secrets and rules.
type digest [sha256.Size]byte

// An SessionID is the hash of both halves of a token. The token cannot be computed from it.
type SessionID [sha256.Size]byte

// SessionIDOf returns the ID of two halves, and false if a text is not a half of a token.
func SessionIDOf(a, b string) (SessionID, bool) {
	x, errA := base64.RawURLEncoding.DecodeString(a)
	y, errB := base64.RawURLEncoding.DecodeString(b)
	if errA != nil || errB != nil || len(x) != halfSize || len(y) != halfSize {
		return SessionID{}, false
	}
	return sha256.Sum256(append(x, y...)), true
}

// A session is one login of a key.
type session struct {
	key         string
	digest      digest
	begun, used time.Time
}

func (s *session) over(now time.Time) bool {
	return now.Sub(s.used) >= Idle || now.Sub(s.begun) >= longest
}

// Sessions are in memory, so that a restart ends them. Goroutines may share the value.
type Sessions struct {
	mu   sync.Mutex
	byID map[SessionID]*session // guarded by mu
}

// NewSessions returns Sessions without any.
func NewSessions() *Sessions { return &Sessions{byID: map[SessionID]*session{}} }

// Begin begins a session of a key and returns the two halves of its token. If the key or the server
// has too many sessions, the one that was not used for the longest time ends.
func (s *Sessions) Begin(key string, digest digest, now time.Time) (a, b string, expires time.Time) {
	token := make([]byte, 2*halfSize)
	_, _ = rand.Read(token) // it never fails
	s.mu.Lock()
	defer s.mu.Unlock()
	s.makeRoom(key, now)
	s.byID[sha256.Sum256(token)] = &session{key: key, digest: digest, begun: now, used: now}
	a, b = base64.RawURLEncoding.EncodeToString(token[:halfSize]), base64.RawURLEncoding.EncodeToString(token[halfSize:])
	return a, b, now.Add(longest)
}

// makeRoom removes sessions that are over, and those above the limits. mu is held.
func (s *Sessions) makeRoom(key string, now time.Time) {
	own := 0
	var oldest, oldestOwn SessionID
	for id, x := range s.byID {
		if x.over(now) {
			delete(s.byID, id)
			continue
		}
		if before := s.byID[oldest]; before == nil || x.used.Before(before.used) {
			oldest = id
		}
		if x.key == key {
			own++
			if before := s.byID[oldestOwn]; before == nil || x.used.Before(before.used) {
				oldestOwn = id
			}
		}
	}
	switch {
	case own >= maxOfKey:
		delete(s.byID, oldestOwn)
	case len(s.byID) >= maxInAll:
		delete(s.byID, oldest)
	}
}

// Use returns the key of a session and the time at which the session ends, and postpones its end by
// idleness. ok is false if there is no such session, or if current returns another digest for the
// key than at the login; it returns false for a key that does not exist.
func (s *Sessions) Use(id SessionID, current func(key string) (digest, bool), now time.Time) (key string, expires time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.byID[id]
	if x == nil {
		return "", time.Time{}, false
	}
	if digest, known := current(x.key); !known || digest != x.digest || x.over(now) {
		delete(s.byID, id)
		return "", time.Time{}, false
	}
	x.used = now
	return x.key, x.begun.Add(longest), true
}

// End ends a session, and returns false if there is none.
func (s *Sessions) End(id SessionID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.byID[id]
	delete(s.byID, id)
	return ok
}

const (
	// freeOfName is how many logins of an address with one name can fail without a delay, and
	// nameInterval the least time between two of them after that.
	freeOfName   = 5
	nameInterval = time.Second

	// freeOfAddress and addressInterval are those of all names of an address that has failed with
	// them.
	freeOfAddress   = 20
	addressInterval = time.Second / 2

	// forgetAfter is the time after the last attempt at which failures are forgotten.
	forgetAfter = 10 * time.Minute

	// maxWait bounds the wait of an attempt. A longer one is rejected.
	maxWait = 10 * time.Second

	// maxEntries bounds the names of all addresses, and the addresses.
	maxEntries = 10_000

	// sweepInterval is how often all entries are looked at, so that failures of ever new addresses
	// do not cost a walk each.
	sweepInterval = time.Minute
)

// attempts slow down the logins of an address with the name of a key after some have failed.
// Goroutines may share the value. The zero value is ready for use.
type attempts struct {
	mu        sync.Mutex
	names     table[named]  // guarded by mu
	addresses table[string] // guarded by mu
}

// A named is an address with the name of a key, which is empty for all names that no key has.
type named struct{ address, name string }

// Judge counts an attempt of an address, whose secret was right or wrong, and returns how long its
// response has to wait. ok is false if the response would wait for more than 10 s. Then the client
// must not learn whether the secret was right, and the attempt does not count.
//
// Neither result depends on whether this secret is right, and attempts at the same time wait for
// one another. The time to guess a secret is therefore the sum of all waits, on any number of
// connections. A name that has not failed from the address does not wait, so the guesses of other
// users behind the address delay only the names that were guessed.
func (a *attempts) Judge(address, name string, right bool, now time.Time) (wait time.Duration, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pair := named{address, name}
	own, all := a.names.get(pair, now), a.addresses.get(address, now)
	var begin, beginAll time.Time
	if own != nil {
		begin, beginAll = own.next(freeOfName, nameInterval, now), all.next(freeOfAddress, addressInterval, now)
		if wait = max(begin.Sub(now), beginAll.Sub(now)); wait > maxWait {
			return wait, false
		}
	}
	if right {
		a.names.forget(pair)
	} else {
		own, all = a.names.ensure(pair, now), a.addresses.ensure(address, now)
		own.count++
		all.count++
	}
	own.attempt(begin)
	all.attempt(beginAll)
	return wait, true
}

// failures are those of one address, or of one name of it.
type failures struct {
	count int
	last  time.Time // begin of the last attempt, which may wait
}

// next returns the earliest time of an attempt after n free failures; f may be nil.
func (f *failures) next(n int, interval time.Duration, now time.Time) time.Time {
	if f == nil || f.count < n {
		return now
	}
	if f.last.After(now) {
		now = f.last
	}
	return now.Add(interval)
}

// attempt notes when an attempt begins; f may be nil.
func (f *failures) attempt(at time.Time) {
	if f != nil && f.last.Before(at) {
		f.last = at
	}
}

// A table has the failures of each key that has failed recently. The zero value is empty.
type table[K comparable] struct {
	entries map[K]*failures
	swept   time.Time // when old entries were removed last
}

// get returns the failures of a key, or nil.
func (t *table[K]) get(k K, now time.Time) *failures {
	if f := t.entries[k]; f != nil && now.Sub(f.last) < forgetAfter {
		return f
	}
	return nil
}

// ensure returns the failures of a key, and adds an entry if there is none.
func (t *table[K]) ensure(k K, now time.Time) *failures {
	if f := t.get(k, now); f != nil {
		return f
	}
	delete(t.entries, k)
	t.makeRoom(now)
	f := &failures{last: now}
	t.entries[k] = f
	return f
}

func (t *table[K]) forget(k K) { delete(t.entries, k) }

// makeRoom removes entries without recent attempts, and any entry at the limit.
func (t *table[K]) makeRoom(now time.Time) {
	if t.entries == nil {
		t.entries = map[K]*failures{}
	}
	if len(t.entries) < maxEntries {
		return
	}
	if now.Sub(t.swept) >= sweepInterval {
		t.swept = now
		maps.DeleteFunc(t.entries, func(_ K, f *failures) bool { return now.Sub(f.last) >= forgetAfter })
	}
	for k := range t.entries {
		if len(t.entries) < maxEntries {
			return
		}
		delete(t.entries, k)
	}
}

// headerSession has the half of a session's token that a page keeps. A request without it is never
// authenticated by its cookie, so a page of another origin cannot use the session.
const headerSession = "X-Tidegate-Session"

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
func hasSession(r *http.Request) bool { return len(r.Header.Values(headerSession)) > 0 }

// sessionsOf returns the sessions that a request may belong to.
func sessionsOf(r *http.Request) (ids []SessionID) {
	kept := r.Header.Values(headerSession)
	if len(kept) != 1 {
		return nil
	}
	for _, c := range r.CookiesNamed(cookieName(r)) {
		if id, ok := SessionIDOf(c.Value, kept[0]); ok && len(ids) < maxCookies {
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
	digest := func(key string) (digest, bool) {
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
		return "", time.Time{}, refusal.New(tidegate.CodeBadRequest, headerSession, "%s", "a session cannot begin another one; give the access key and its secret, without the header "+headerSession)
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
	a, ok := r.Context().Value(admittedKey{}).(*admitted)
	if !ok || a.under == g.current.Load() && !hasSession(r) {
		return nil
	}
	if err := g.readmit(r, a); err != nil {
		return err
	}
	return nil
}
