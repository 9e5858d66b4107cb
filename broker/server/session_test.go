package server_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A page is a browser's page with a session: it has the cookie jar and the half of the token.
type page struct {
	e       *env
	cookies []*http.Cookie
	token   string
}

// do makes a request of the page, from the address of a client on this machine.
func (p *page) do(method, path string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	p.e.t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = "127.0.0.1:1234"
	for _, c := range p.cookies {
		r.AddCookie(c)
	}
	if p.token != "" {
		r.Header.Set("X-Tidegate-Session", p.token)
	}
	for _, f := range edit {
		f(r)
	}
	w := httptest.NewRecorder()
	p.e.s.Handler().ServeHTTP(w, r)
	return w
}

// login begins a session of a key and checks the status.
func (p *page) login(key, secret string, want int) status.Session {
	p.e.t.Helper()
	p.token, p.cookies = "", nil
	w := p.do("POST", "/v1/session", func(r *http.Request) { r.SetBasicAuth(key, secret) })
	assert.MustThat(p.e.t, w.Code == want, "login of %s: %d %s, want %d", key, w.Code, w.Body, want)
	var s status.Session
	assert.Must(p.e.t, json.Unmarshal(w.Body.Bytes(), &s))
	p.token, p.cookies = s.Token, w.Result().Cookies()
	return s
}

func (p *page) expect(what string, want int, edit ...func(*http.Request)) {
	p.e.t.Helper()
	if w := p.do("GET", "/v1/overview", edit...); w.Code != want {
		p.e.t.Errorf("%s: %d %s, want %d", what, w.Code, w.Body, want)
	}
}

func withSecrets(change func(c *server.AccessConfig)) server.AccessConfig {
	c := tableAccess()
	change(&c)
	return c
}

// A session needs the cookie and the header, and has the permissions of its key. A logout, idleness
// and each change of its key end it; a change of another key does not.
func TestSession(t *testing.T) {
	withServer(t, server.Options{Access: tableAccess()}, func(t *testing.T, e *env) {
		p := &page{e: e}
		s := p.login("monitor", secretMark+"monitor", 200)
		c := p.cookies[0]
		if s.Key != "monitor" || !s.Restricted || len(s.Rules) != 1 || !slices.Equal(s.Rules[0].Actions, []string{"observe"}) || time.Until(s.Expires) != 12*time.Hour {
			t.Errorf("%+v", s)
		}
		if len(p.cookies) != 1 || c.Name != "tidegate-0" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || c.Path != "" || c.Value == s.Token {
			t.Errorf("cookie %v", c) // without a path the browser takes that of the URL, /v1
		}
		p.expect("with both halves", 200)
		p.expect("without the header", 401, func(r *http.Request) { r.Header.Del("X-Tidegate-Session") })
		p.expect("without the cookie", 401, func(r *http.Request) { r.Header.Del("Cookie") })
		p.expect("with two headers", 401, func(r *http.Request) { r.Header.Add("X-Tidegate-Session", s.Token) })
		p.expect("with another header", 401, func(r *http.Request) { r.Header.Set("X-Tidegate-Session", c.Value) })
		p.expect("with a key as well", 401, func(r *http.Request) { r.SetBasicAuth("monitor", secretMark+"monitor") })
		p.expect("with a cookie of another program before it", 200, func(r *http.Request) {
			r.Header.Set("Cookie", c.Name+"=AAAAAAAAAAAAAAAAAAAAAA; "+c.Name+"="+c.Value)
		})
		if w := p.do("PUT", "/v1/topics/normal"); w.Code != 403 {
			t.Errorf("a session of a monitor changed a topic: %d %s", w.Code, w.Body)
		}
		if w := p.do("POST", "/v1/session"); w.Code != 400 {
			t.Errorf("a session began another one: %d %s", w.Code, w.Body)
		}
		var who status.Session
		w := p.do("GET", "/v1/session")
		if err := json.Unmarshal(w.Body.Bytes(), &who); err != nil || who.Key != "monitor" || who.Token != "" || !who.Expires.Equal(s.Expires) || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("whoami %+v, %v, %v", who, err, w.Header())
		}

		for what, change := range map[string]func(c *server.AccessConfig){
			"another secret": func(c *server.AccessConfig) {
				c.Keys[monitorOf(c)].Secrets = []server.Secret{server.NewSecret("another")}
			},
			"other rules": func(c *server.AccessConfig) { c.Keys[monitorOf(c)].Allow[0].Topics = []string{"*", "x"} },
			"no key":      func(c *server.AccessConfig) { i := monitorOf(c); c.Keys = slices.Delete(c.Keys, i, i+1) },
		} {
			p.login("monitor", secretMark+"monitor", 200)
			if err := e.s.SetAccess(withSecrets(func(c *server.AccessConfig) {
				c.Keys[len(c.Keys)-1].Secrets = []server.Secret{server.NewSecret("of the owner")}
			})); err != nil {
				t.Fatal(err)
			}
			p.expect("after a change of another key", 200)
			assert.Must(t, e.s.SetAccess(withSecrets(change)))
			p.expect("after "+what, 401)
			assert.Must(t, e.s.SetAccess(tableAccess()))
			p.expect("after "+what+" was undone", 401)
		}

		p.login("monitor", secretMark+"monitor", 200)
		time.Sleep(29 * time.Minute)
		p.expect("after 29 minutes", 200)
		time.Sleep(30 * time.Minute)
		p.expect("after 30 more", 401)

		p.login("monitor", secretMark+"monitor", 200)
		if w := p.do("DELETE", "/v1/session"); w.Code != 204 || w.Result().Cookies()[0].MaxAge >= 0 {
			t.Errorf("logout: %d %v", w.Code, w.Result().Cookies())
		}
		p.expect("after the logout", 401)
	})
}

func monitorOf(c *server.AccessConfig) int {
	return slices.IndexFunc(c.Keys, func(k server.Key) bool { return k.Name == "monitor" })
}

// A login needs credentials that can be trusted: no plain text from another machine, and no page of
// another origin.
func TestLoginIsRejected(t *testing.T) {
	withServer(t, server.Options{Access: tableAccess()}, func(t *testing.T, e *env) {
		p := &page{e: e}
		for what, c := range map[string]struct {
			want int
			edit func(r *http.Request)
		}{
			"no credentials": {401, func(*http.Request) {}},
			"in plain text":  {401, func(r *http.Request) { r.RemoteAddr = "192.0.2.1:1"; r.SetBasicAuth("monitor", secretMark+"monitor") }},
			"another origin": {403, func(r *http.Request) {
				r.Header.Set("Sec-Fetch-Site", "cross-site")
				r.SetBasicAuth("monitor", secretMark+"monitor")
			}},
			"a header that is no half": {401, func(r *http.Request) { r.Header.Set("X-Tidegate-Session", "x") }},
		} {
			if w := p.do("POST", "/v1/session", c.edit); w.Code != c.want || len(w.Result().Cookies()) > 0 || strings.Contains(w.Body.String(), secretMark) {
				t.Errorf("%s: %d %s %v, want %d", what, w.Code, w.Body, w.Result().Cookies(), c.want)
			}
		}
		w := p.do("POST", "/v1/session", func(r *http.Request) { r.TLS = &tls.ConnectionState{}; r.SetBasicAuth("monitor", secretMark+"monitor") })
		if c := w.Result().Cookies(); w.Code != 200 || len(c) != 1 || !c[0].Secure || c[0].Name != "__Secure-tidegate-0" {
			t.Errorf("over TLS: %d %v", w.Code, c)
		}
	})
}

// A login needs credentials also where requests without them are permitted.
func TestLoginNeedsCredentials(t *testing.T) {
	e := start(t, server.Options{Access: withSecrets(func(c *server.AccessConfig) {
		c.Anonymous = []server.Rule{{Actions: []server.Action{"observe"}, Topics: []string{"*"}, Groups: []string{"*"}}}
	})})
	p := &page{e: e}
	p.expect("a request without credentials", 200)
	if w := p.do("POST", "/v1/session"); w.Code != 401 || len(w.Result().Cookies()) > 0 {
		t.Errorf("a login without credentials: %d %s %v, want 401", w.Code, w.Body, w.Result().Cookies())
	}
}

// After five failures of an address with a name, its logins with this name take a second each, also
// with the right secret. Those of other addresses and names do not, and change nothing.
func TestLoginIsDelayed(t *testing.T) {
	withServer(t, server.Options{Access: tableAccess()}, func(t *testing.T, e *env) {
		p := &page{e: e}
		took := func(f func()) time.Duration { began := time.Now(); f(); return time.Since(began) }
		if d := took(func() {
			for range 5 {
				p.login("monitor", "wrong", 401)
			}
		}); d != 0 {
			t.Errorf("five failures took %v", d)
		}
		if d := took(func() { p.login("monitor", "wrong", 401) }); d != time.Second {
			t.Errorf("the sixth took %v", d)
		}
		other := func(r *http.Request) {
			r.RemoteAddr, r.TLS = "192.0.2.7:1", &tls.ConnectionState{}
			r.SetBasicAuth("monitor", secretMark+"monitor")
		}
		if d := took(func() { p.do("POST", "/v1/session", other) }); d != 0 {
			t.Errorf("the login of another address took %v", d)
		}
		if d := took(func() { p.login("admin", secretMark+"admin", 200) }); d != 0 {
			t.Errorf("the login with another name took %v", d)
		}
		if d := took(func() { p.do("POST", "/v1/session") }); d != 0 {
			t.Errorf("a request without credentials took %v", d)
		}
		// Names that no key has are one, and a signature is a guess too.
		if d := took(func() {
			for i := range 5 {
				p.login(fmt.Sprint("nobody-", i), "wrong", 401)
			}
		}); d != 0 {
			t.Errorf("five failures of unknown names took %v", d)
		}
		if d := took(func() { p.login("nobody", "wrong", 401) }); d != time.Second {
			t.Errorf("another unknown name took %v", d)
		}
		signed := func(r *http.Request) {
			r.Header.Set("Authorization", "MQv2-HMAC-SHA1 Credential=monitor, SignedHeaders=x-mq-date-time, Signature="+strings.Repeat("0", 40))
			r.Header.Set("X-Mq-Date-Time", time.Now().UTC().Format("20060102T150405Z"))
		}
		if d := took(func() { p.do("POST", "/v1/session", signed) }); d != time.Second {
			t.Errorf("a wrong signature took %v", d)
		}
		// Beyond ten seconds of waits the response does not depend on the secret.
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { p.do("POST", "/v1/session", signed) })
		}
		synctest.Wait()
		wrong, right := p.do("POST", "/v1/session", signed), p.do("POST", "/v1/session", func(r *http.Request) { r.SetBasicAuth("monitor", secretMark+"monitor") })
		if wrong.Code != 429 || right.Code != 429 || wrong.Body.String() != right.Body.String() || !maps.EqualFunc(wrong.Header(), right.Header(), slices.Equal) {
			t.Errorf("a wrong secret got %d %v %s, a right one %d %v %s", wrong.Code, wrong.Header(), wrong.Body, right.Code, right.Header(), right.Body)
		}
		wg.Wait()
		if d := took(func() { p.login("monitor", secretMark+"monitor", 200) }); d != time.Second {
			t.Errorf("the right login took %v", d)
		}
		if d := took(func() { p.login("monitor", secretMark+"monitor", 200) }); d != 0 {
			t.Errorf("the login after it took %v", d)
		}
	})
}

// A key that changes while its login waits gets no session.
func TestLoginOfAKeyThatChanges(t *testing.T) {
	withServer(t, server.Options{Access: tableAccess()}, func(t *testing.T, e *env) {
		p := &page{e: e}
		for range 5 {
			p.login("monitor", "wrong", 401)
		}
		time.AfterFunc(time.Second/2, func() {
			if err := e.s.SetAccess(withSecrets(func(c *server.AccessConfig) {
				c.Keys[monitorOf(c)].Secrets = []server.Secret{server.NewSecret("another")}
			})); err != nil {
				t.Error(err)
			}
		})
		p.login("monitor", secretMark+"monitor", 401)
	})
}

// Without keys everything is allowed, and there is no session.
func TestSessionWithoutKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &page{e: start(t, server.Options{})}
		for _, method := range []string{"GET", "POST"} {
			w := p.do(method, "/v1/session")
			var s status.Session
			if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || w.Code != 200 || s.Restricted || s.Token != "" || s.Rules == nil || len(w.Result().Cookies()) > 0 {
				t.Errorf("%s: %d %s %v", method, w.Code, w.Body, w.Result().Cookies())
			}
		}
	})
}

// The name of the cookie has the port, because browsers send cookies to all ports of a host.
func TestSessionCookieHasThePort(t *testing.T) {
	e := start(t, server.Options{Access: tableAccess()})
	srv := httptest.NewServer(e.s.Handler())
	defer srv.Close()
	r := assert.Value(http.NewRequestWithContext(t.Context(), "POST", srv.URL+"/v1/session", nil))(t)
	r.SetBasicAuth("monitor", secretMark+"monitor")
	resp := assert.Value(http.DefaultClient.Do(r))(t)
	defer resp.Body.Close()
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	if c := resp.Cookies(); len(c) != 1 || c[0].Name != "tidegate-"+port {
		t.Errorf("%d with the cookies %v, want tidegate-%s", resp.StatusCode, c, port)
	}
}

// A page whose name resolves to this machine is of the same origin, and can do nothing. Names that
// the operator configures work.
func TestHostNamesOfOthers(t *testing.T) {
	anyone := server.AccessConfig{Anonymous: []server.Rule{{Actions: []server.Action{"admin"}, Topics: []string{"*"}, Groups: []string{"*"}}}}
	loopback := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8082}
	other := &net.TCPAddr{IP: net.IPv4(172, 17, 0, 2), Port: 8082}
	for _, c := range []struct {
		host   string
		at     net.Addr
		o      server.Options
		status int
	}{
		{"evil.example:8082", loopback, server.Options{}, 403},
		{"evil.example", &net.TCPAddr{IP: net.IPv6loopback}, server.Options{}, 403},
		{"evil.example:8082", loopback, server.Options{Access: anyone}, 403},
		{"2130706433:8082", loopback, server.Options{}, 403},
		{"localhost.evil.example", loopback, server.Options{}, 403},
		{"notlocalhost", loopback, server.Options{}, 403},
		{"127.0.0.1:8082", loopback, server.Options{}, 200},
		{"[::1]:8082", loopback, server.Options{}, 200},
		{"[::1]", loopback, server.Options{}, 200},
		{"localhost:8082", loopback, server.Options{}, 200},
		{"LocalHost.:8082", loopback, server.Options{}, 200},
		{"broker.localhost", loopback, server.Options{}, 200},
		{"broker.example:8082", loopback, server.Options{Advertise: "Broker.example:8081"}, 200},
		{"evil.example:8082", loopback, server.Options{Advertise: "broker.example:8081"}, 403},
		{"tidegate:8082", loopback, server.Options{AnyHost: true}, 200},
		{"broker.example", loopback, server.Options{HTTPHosts: []string{"other.example", "Broker.Example."}}, 200}, // a reverse proxy's
		{"broker.example:443", loopback, server.Options{HTTPHosts: []string{"broker.example"}}, 200},
		{"a.broker.example", loopback, server.Options{HTTPHosts: []string{"broker.example"}}, 403},
		{"localhost", loopback, server.Options{HTTPHosts: []string{"broker.example"}}, 200},
		{"tidegate:8082", other, server.Options{}, 200}, // a container's, which is configured to be insecure
	} {
		e := start(t, c.o)
		for _, method := range []string{"PUT", "GET"} {
			r := httptest.NewRequest(method, "/v1/topics/normal", http.NoBody)
			r.Host = c.host
			r.Header.Set("Origin", "http://"+c.host)
			w := e.serve(r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, c.at)))
			if w.Code != c.status || c.status == 403 && (!strings.Contains(w.Body.String(), c.host) || !strings.Contains(w.Body.String(), "--http-hosts")) {
				t.Errorf("%s for %s at %s: %d %s, want %d", method, c.host, c.at, w.Code, w.Body, c.status)
			}
		}
	}
}

// Over TLS, a browser has compared the name with the certificate.
func TestNamesOverTLS(t *testing.T) {
	e := start(t, server.Options{})
	for url, status := range map[string]int{"https://tidegate.example/v1/topics/normal": 200, "http://tidegate.example/v1/topics/normal": 403} {
		r := httptest.NewRequest("GET", url, http.NoBody)
		w := e.serve(r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv6loopback})))
		assert.That(t, w.Code == status, "%s: %d %s, want %d", url, w.Code, w.Body, status)
	}
}

// A client with a key is no page in a browser, with any host name.
func TestKeysAreForAnyName(t *testing.T) {
	e := start(t, server.Options{Access: someAccess()})
	for key, status := range map[string]int{"admin": 200, "": 401} {
		r := httptest.NewRequest("GET", "https://evil.example/v1/topics/normal", http.NoBody)
		if key != "" {
			r.SetBasicAuth(key, secretMark+key)
		}
		w := e.serve(r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv6loopback})))
		assert.That(t, w.Code == status, "with the key %q: %d %s, want %d", key, w.Code, w.Body, status)
	}
}

// Attempts of pages in browsers are counted and logged, by reasons of their own.
func TestRequestsOfForeignPagesAreLogged(t *testing.T) {
	anyone := []server.Rule{{Actions: []server.Action{"admin"}, Topics: []string{"*"}, Groups: []string{"*"}}}
	for name, access := range map[string]server.AccessConfig{
		"no keys":             {},
		"keys, and anonymous": {Keys: someAccess().Keys, Anonymous: anyone},
	} {
		logger, logged := testLog()
		e := start(t, server.Options{Logger: logger, Access: access})
		request := func(method, host, origin, key string) {
			r := httptest.NewRequest(method, "/v1/topics/normal", http.NoBody)
			r.Host, r.RemoteAddr = host, "127.0.0.1:4711"
			if r.Header.Set("Origin", origin); key != "" {
				r.SetBasicAuth(key, secretMark+key)
			}
			w := httptest.NewRecorder()
			ctx := context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv6loopback})
			if e.s.Handler().ServeHTTP(w, r.WithContext(ctx)); w.Code != 403 {
				t.Errorf("%s: %s for %s from %s: %d %s", name, method, host, origin, w.Code, w.Body)
			}
		}
		request("GET", "evil.example", "http://evil.example", "")
		request("PUT", "localhost:8082", "http://evil.example", "")
		request("PUT", "localhost:8082", "http://evil.example", "admin")
		n, _ := scrapedBy(t, e.s)
		for reason, want := range map[string]float64{"host": 1, "origin": 2, "forbidden": 0} {
			if got, ok := n[`tidegate_access_refusals_total{reason="`+reason+`"}`]; !ok || got != want {
				t.Errorf("%s: %v refusals for the reason %s, want %v", name, got, reason, want)
			}
		}
		known := "anonymous"
		if len(access.Keys) > 0 {
			known = "admin"
		}
		lines := strings.Split(strings.TrimSpace(logged.String()), "\n")
		for i, words := range []string{
			"operation=\"GET /v1/topics/{topic}\" key=anonymous peer=127.0.0.1:4711 reason=host not_logged=0",
			"operation=\"PUT /v1/topics/{topic}\" key=anonymous peer=127.0.0.1:4711 reason=origin not_logged=0",
			"key=" + known + " reason=origin not_logged=0",
		} {
			for w := range strings.FieldsSeq(words) {
				if len(lines) != 3 || !strings.Contains(lines[i], w) {
					t.Fatalf("%s: line %d does not contain %s:\n%s", name, i+1, w, logged)
				}
			}
		}
	}
}

// The files of the console have no data: they need no credentials, and any host name will do. Their
// data is from the API, which checks both.
func TestConsoleIsOpen(t *testing.T) {
	for name, o := range map[string]server.Options{"no keys": {}, "keys": {Access: someAccess()}} {
		e := start(t, o)
		srv := httptest.NewServer(e.s.Handler())
		t.Cleanup(srv.Close)
		for _, host := range []string{"", "proxy.example"} {
			r, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+"/console", http.NoBody)
			assert.Must(t, err)
			r.Host = host
			resp, err := srv.Client().Do(r)
			assert.Must(t, err)
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != 200 || !strings.Contains(string(text), "<!doctype html>") ||
				!strings.Contains(resp.Header.Get("Content-Security-Policy"), "default-src 'none'") || resp.Request.URL.Path != "/console/" {
				t.Errorf("%s, host %q: %s %s %v %s, %v", name, host, resp.Status, resp.Request.URL, resp.Header, text, err)
			}
		}
	}
}

// consoleRequests are requests for the console and beside it, with their status with and without
// the console.
var consoleRequests = []struct {
	method, path string
	on, off      int
}{
	{"GET", "/console/", 200, 404},
	{"HEAD", "/console/", 200, 404},
	{"GET", "/console", 301, 404},
	{"GET", "/console/nothing.js", 404, 404},
	{"POST", "/console/", 405, 404},
	{"PUT", "/console/x", 405, 404},
	{"GET", "/", 404, 404},
	{"GET", "/consoles", 404, 404},
	{"GET", "/v1/topics", 200, 200},
}

func TestConsoleOnAndOff(t *testing.T) {
	for off, o := range map[bool]server.Options{false: {}, true: {NoConsole: true}} {
		e := start(t, o)
		for _, c := range consoleRequests {
			w := e.serve(httptest.NewRequest(c.method, "http://127.0.0.1"+c.path, http.NoBody))
			if want := map[bool]int{false: c.on, true: c.off}[off]; w.Code != want {
				t.Errorf("NoConsole %v, %s %s: %d %s, want %d", off, c.method, c.path, w.Code, w.Body, want)
			}
		}
	}
}

// Responses have names, counts and bodies, which no cache on the way may keep.
func TestResponsesAreNotStored(t *testing.T) {
	e := start(t, server.Options{})
	for _, path := range []string{"/v1/topics", "/v1/topics/normal", "/v1/topics/nowhere", "/readyz", "/nowhere"} {
		w := e.serve(httptest.NewRequest("GET", "http://127.0.0.1"+path, http.NoBody))
		if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("GET %s: %v", path, w.Header())
		}
	}
}

// A testCA makes certificates.
type testCA struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(t *testing.T) *testCA {
	ca := &testCA{t: t}
	der, key := ca.make("CA")
	ca.key = key
	var err error
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return ca
}

// make signs a certificate with the name: its own if there is no CA yet.
func (ca *testCA) make(name string) ([]byte, *ecdsa.PrivateKey) {
	key := assert.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(ca.t)
	serial := assert.Value(rand.Int(rand.Reader, big.NewInt(1<<60)))(ca.t)
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name + ".test"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: ca.cert == nil, BasicConstraintsValid: true,
	}
	parent, signer := ca.cert, ca.key
	if parent == nil {
		parent, signer = c, key
	}
	der := assert.Value(x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer))(ca.t)
	return der, key
}

// write makes a certificate and writes it and its key to files.
func (ca *testCA) write(name, certFile, keyFile string) {
	der, key := ca.make(name)
	raw := assert.Value(x509.MarshalPKCS8PrivateKey(key))(ca.t)
	ca.pem(certFile, "CERTIFICATE", der)
	ca.pem(keyFile, "PRIVATE KEY", raw)
}

func (ca *testCA) pem(file, kind string, der []byte) {
	assert.Must(ca.t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// client returns the TLS of a client that trusts the CA and shows a certificate of by, if it is not
// nil.
func (ca *testCA) client(by *testCA, name string) *tls.Config {
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	c.RootCAs.AddCert(ca.cert)
	if by != nil {
		der, key := by.make(name)
		c.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	}
	return c
}

// A client with a certificate of the CA is the key of that name. A signature has priority over it.
// A certificate of another CA, or none where one is required, makes no connection; neither does
// plain text.
func TestClientCertificates(t *testing.T) {
	dir, ca, other := t.TempDir(), newCA(t), newCA(t)
	cert, key, cas := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")
	ca.write("server", cert, key)
	ca.pem(cas, "CERTIFICATE", ca.cert.Raw)
	config := someAccess()
	config.Keys[0].Certificates = []string{"producer.test"}
	config.Keys = append(config.Keys, server.Key{Name: "mesh", Certificates: []string{"mesh"}, Allow: config.Keys[0].Allow})
	const broken = -1
	for _, want := range []string{"request", "require"} {
		certs := assert.Value(server.LoadCertificates(server.CertificateOptions{CertFile: cert, KeyFile: key, ClientCAFile: cas, ClientCertificates: want}))(t)
		e, addr := listen(t, server.Options{TLS: certs.Config("h2"), RequireTLS: true, Access: config})
		none := map[string]int{"request": int(tidegate.CodeUnauthorized), "require": broken}[want]
		for name, c := range map[string]struct {
			creds credentials.TransportCredentials
			key   string // signs with it
			code  int
		}{
			"DNS name":                {credentials.NewTLS(ca.client(ca, "producer")), "", protocol.CodeOK},
			"common name":             {credentials.NewTLS(ca.client(ca, "mesh")), "", protocol.CodeOK},
			"a name that is no key's": {credentials.NewTLS(ca.client(ca, "stranger")), "", int(tidegate.CodeUnauthorized)},
			"and a signature":         {credentials.NewTLS(ca.client(ca, "producer")), "nothing", int(tidegate.CodeForbidden)},
			"and a wrong signature":   {credentials.NewTLS(ca.client(ca, "producer")), "unknown", int(tidegate.CodeUnauthorized)},
			"of another CA":           {credentials.NewTLS(ca.client(other, "producer")), "", broken},
			"none":                    {credentials.NewTLS(ca.client(nil, "")), "", none},
			"plain text":              {insecure.NewCredentials(), "producer", broken},
			"TLS 1.1":                 {credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS11, MaxVersion: tls.VersionTLS11}), "producer", broken},
		} {
			ctx := as(t.Context(), "client")
			if c.key != "" {
				ctx = signed(t.Context(), c.key)
			}
			r, err := dial(t, addr, c.creds).QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: res("normal")})
			if got := int(r.GetStatus().GetCode()); err == nil && got != c.code || err != nil && c.code != broken {
				t.Errorf("%s, %s: %v, %v; want %d", want, name, r, err, c.code)
			}
		}
		if n, _ := scrapedBy(t, e.s); n[`tidegate_access_refusals_total{reason="plain_text"}`] == 0 {
			t.Error("plain text is refused, but not counted")
		}
	}
}

// A new certificate is shown without a restart; an invalid one is not.
func TestCertificatesFollowTheirFiles(t *testing.T) {
	dir, ca := t.TempDir(), newCA(t)
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	ca.write("first", cert, key)
	log, text := testLog()
	certs := assert.Value(server.LoadCertificates(server.CertificateOptions{CertFile: cert, KeyFile: key, Logger: log}))(t)
	now := time.Now()
	shown := func() string {
		t.Helper()
		now = now.Add(server.CertificatesCheck)
		c := assert.Value(x509.ParseCertificate(certs.Shown(now)))(t)
		return c.Subject.CommonName
	}
	touch := func(d time.Duration) { // a file system's clock may be coarse
		for _, f := range []string{cert, key} {
			if err := os.Chtimes(f, now.Add(d), now.Add(d)); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
	}
	assert.Equal(t, "at first", shown(), "first")
	ca.write("second", cert, key)
	touch(time.Second)
	assert.Equal(t, "after a change", shown(), "second")
	ca.write("third", cert, filepath.Join(dir, "elsewhere")) // its key is not there yet
	touch(2 * time.Second)
	for range 3 {
		assert.Equal(t, "halfway through a renewal", shown(), "second")
	}
	if _, err := certs.Reload(); err == nil || !strings.Contains(err.Error(), cert) {
		t.Errorf("Reload: %v", err)
	}
	assert.Must(t, os.Remove(key))
	for range 3 {
		shown()
	}
	if n := strings.Count(text.String(), "certificates not loaded"); n != 2 {
		t.Errorf("logged %d times, want once for each change:\n%s", n, text)
	}
	ca.write("fourth", cert, key)
	touch(3 * time.Second)
	assert.Equal(t, "after the renewal", shown(), "fourth")
	// Between two looks, nothing is looked at.
	before := certs.Shown(now)
	ca.write("fifth", cert, key)
	touch(4 * time.Second)
	assert.That(t, bytes.Equal(certs.Shown(now), before), "it looked twice within 2s")
	assert.NoError(t, assert.Err(certs.Reload()))
	assert.Equal(t, "after Reload", shown(), "fifth")
}

func TestCertificateFaults(t *testing.T) {
	dir, ca := t.TempDir(), newCA(t)
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	ca.write("x", cert, key)
	for _, c := range []struct {
		o    server.CertificateOptions
		says []string
	}{
		{server.CertificateOptions{MinVersion: tls.VersionTLS11, ClientCertificates: "maybe"}, []string{"CertFile is", "MinVersion is 0x0302", `"maybe"; give none, request or require`}},
		{server.CertificateOptions{CertFile: cert, KeyFile: key, ClientCertificates: "require"}, []string{"ClientCAFile is empty"}},
		{server.CertificateOptions{CertFile: cert, KeyFile: dir + "/none"}, []string{"no such file"}},
		{server.CertificateOptions{CertFile: key, KeyFile: cert}, []string{key, cert}},
		{server.CertificateOptions{CertFile: cert, KeyFile: key, ClientCAFile: key, ClientCertificates: "request"}, []string{key + " contains no certificate"}},
	} {
		got, err := server.LoadCertificates(c.o)
		for _, w := range c.says {
			assert.That(t, err != nil && got == nil && strings.Contains(err.Error(), w), "%+v: %v; want %q", c.o, err, w)
		}
	}
}

// A client whose certificate is verified makes a full handshake each time: a resumed session would
// be accepted although its CA has left the file.
func TestClientCertificatesAreVerifiedEachTime(t *testing.T) {
	dir, ca := t.TempDir(), newCA(t)
	cert, key, cas := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")
	ca.write("server", cert, key)
	ca.pem(cas, "CERTIFICATE", ca.cert.Raw)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		certs := assert.Value(server.LoadCertificates(server.CertificateOptions{CertFile: cert, KeyFile: key, ClientCAFile: cas, ClientCertificates: "require"}))(t)
		lis := assert.Value(tls.Listen("tcp", "127.0.0.1:0", certs.Config("h2")))(t)
		defer lis.Close()
		go func() {
			for {
				c, err := lis.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, "hello") // after the handshake and its tickets
				c.Close()
			}
		}()
		config := ca.client(ca, "producer")
		config.ClientSessionCache, config.MinVersion, config.MaxVersion = tls.NewLRUClientSessionCache(8), version, version
		for i := range 3 {
			c := assert.Value(tls.Dial("tcp", lis.Addr().String(), config))(t)
			if text, err := io.ReadAll(c); string(text) != "hello" {
				t.Fatalf("%q, %v", text, err)
			}
			assert.That(t, !c.ConnectionState().DidResume, "TLS %#x: connection %d resumed a session", version, i)
			c.Close()
		}
	}
}
