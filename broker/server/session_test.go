package server_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/status"
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
	if w.Code != want {
		p.e.t.Fatalf("login of %s: %d %s, want %d", key, w.Code, w.Body, want)
	}
	var s status.Session
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		p.e.t.Fatal(err)
	}
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
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: tableAccess()})
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
			if err := e.s.SetAccess(withSecrets(change)); err != nil {
				t.Fatal(err)
			}
			p.expect("after "+what, 401)
			if err := e.s.SetAccess(tableAccess()); err != nil {
				t.Fatal(err)
			}
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
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: tableAccess()})
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
		c.Anonymous = []server.Rule{{Actions: []server.Action{server.ActionObserve}, Topics: []string{"*"}, Groups: []string{"*"}}}
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
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: tableAccess()})
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
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: tableAccess()})
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
	r, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL+"/v1/session", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth("monitor", secretMark+"monitor")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	if c := resp.Cookies(); len(c) != 1 || c[0].Name != "tidegate-"+port {
		t.Errorf("%d with the cookies %v, want tidegate-%s", resp.StatusCode, c, port)
	}
}
