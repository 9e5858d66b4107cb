package console

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// A pair is a Front before a broker that records the requests.
type pair struct {
	*Front
	t     *testing.T
	token string
	seen  []*http.Request
}

func start(t *testing.T, readOnly bool) *pair {
	t.Helper()
	p := &pair{t: t}
	broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.seen = append(p.seen, r)
		w.Header().Set("Set-Cookie", "tidegate-8082=the-brokers")
		if r.URL.Path == "/base/v1/session" {
			fmt.Fprint(w, `{"key":"operator","restricted":true,"rules":[]}`)
			return
		}
		text, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.RequestURI(), text)
	}))
	t.Cleanup(broker.Close)
	c := assert.Value(httpapi.New(broker.URL+"/base", httpapi.Options{Op: "test", Credentials: tidegate.Credentials{AccessKey: "operator", SecretKey: "sesame"}}))(t)
	t.Cleanup(c.Close)
	p.Front, p.token = NewFront(c, "7777", readOnly)
	return p
}

// do sends a request; header is names and values in turn.
func (p *pair) do(method, path string, header ...string) *httptest.ResponseRecorder {
	p.t.Helper()
	r := httptest.NewRequest(method, "http://127.0.0.1:7777"+path, strings.NewReader("body"))
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

// login exchanges the token, and returns the headers of the session.
func (p *pair) login() []string {
	p.t.Helper()
	w := p.do("POST", "/v1/session", "Authorization", "Bearer "+p.token)
	var got struct{ Token, Key string }
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || got.Token == "" || got.Key != "operator" {
		p.t.Fatalf("POST /v1/session: %d %s, %v", w.Code, w.Body, err)
	}
	cookies := w.Result().Cookies()
	if len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteStrictMode || cookies[0].Path != "/v1" || cookies[0].Name != "tidegate-7777" {
		p.t.Fatalf("the cookies are %v", cookies)
	}
	return []string{"Cookie", cookies[0].Name + "=" + cookies[0].Value, "X-Tidegate-Session", got.Token}
}

// The page's requests reach the broker with the credentials of the context, and without the headers
// of the browser's connection.
func TestForwards(t *testing.T) {
	p := start(t, false)
	s := p.login()
	w := p.do("PUT", "/v1/topics/a%2Fb?x=1", append(s, "Origin", "http://127.0.0.1:7777", "Sec-Fetch-Site", "same-origin", "Authorization", "Basic eA==", "If-Match", `"7"`)...)
	if w.Code != 200 || w.Body.String() != "PUT /base/v1/topics/a%2Fb?x=1 body" || w.Header().Get("Set-Cookie") != "" {
		t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
	}
	r := p.seen[len(p.seen)-1]
	for _, name := range []string{"Cookie", "Origin", "X-Tidegate-Session", "Sec-Fetch-Site"} {
		assert.That(t, r.Header.Get(name) == "", "the broker got %s: %q", name, r.Header.Get(name))
	}
	if got := r.Header.Get("Authorization"); !strings.HasPrefix(got, "MQv2-HMAC-SHA1 Credential=operator") || r.Header.Get("If-Match") != `"7"` {
		t.Errorf("the broker got %v", r.Header)
	}
	if w := p.do("GET", "/console/", "Sec-Fetch-Site", "none"); w.Code != 200 || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("GET /console/: %d %v", w.Code, w.Header())
	}
}

// The program rejects all other requests: another host name, another origin, a cookie alone, a
// second use of the link, and each request after the end.
func TestRejectsOthers(t *testing.T) {
	p := start(t, false)
	s := p.login()
	half, cookie := s[3], s[1]
	for name, c := range map[string]struct {
		method, path string
		header       []string
		status       int
	}{
		"no session":        {"GET", "/v1/topics", nil, 401},
		"whoami":            {"GET", "/v1/session", nil, 401},
		"the cookie alone":  {"DELETE", "/v1/topics/x", []string{"Cookie", cookie}, 401},
		"the header alone":  {"DELETE", "/v1/topics/x", []string{"X-Tidegate-Session", half}, 401},
		"halves swapped":    {"GET", "/v1/topics", []string{"Cookie", "tidegate-7777=" + half, "X-Tidegate-Session", strings.TrimPrefix(cookie, "tidegate-7777=")}, 401},
		"both in one":       {"GET", "/v1/topics", []string{"X-Tidegate-Session", strings.TrimPrefix(cookie, "tidegate-7777=") + half + "x"}, 401},
		"another port":      {"GET", "/v1/topics", []string{"Cookie", strings.Replace(cookie, "7777", "8888", 1), "X-Tidegate-Session", half}, 401},
		"the token again":   {"POST", "/v1/session", []string{"Authorization", "Bearer " + p.token}, 401},
		"a wrong token":     {"POST", "/v1/session", []string{"Authorization", "Bearer x"}, 401},
		"no token":          {"POST", "/v1/session", nil, 401},
		"a rebound name":    {"GET", "/v1/topics", append(slices.Clone(s), "Host", "evil.example:7777"), 403},
		"a rebound console": {"GET", "/console/", []string{"Host", "evil.example:7777"}, 403},
		"the wrong port":    {"GET", "/v1/topics", append(slices.Clone(s), "Host", "127.0.0.1:80"), 403},
		"no port":           {"GET", "/v1/topics", append(slices.Clone(s), "Host", "127.0.0.1"), 403},
		"another origin":    {"POST", "/v1/topics/x/purge", append(slices.Clone(s), "Origin", "http://evil.example"), 403},
		"another site":      {"POST", "/v1/session", []string{"Authorization", "Bearer " + p.token, "Sec-Fetch-Site", "cross-site"}, 403},
		"beyond the API":    {"GET", "/metrics", s, 404},
	} {
		before := len(p.seen)
		w := p.do(c.method, c.path, c.header...)
		if w.Code != c.status || len(p.seen) != before {
			t.Errorf("%s: %d %s, %d requests to the broker; want %d and none", name, w.Code, w.Body, len(p.seen)-before, c.status)
		}
	}
	if w := p.do("GET", "/v1/topics", append(slices.Clone(s), "Host", "localhost:7777")...); w.Code != 200 {
		t.Errorf("localhost: %d %s", w.Code, w.Body)
	}
	if w := p.do("DELETE", "/v1/session", s...); w.Code != 204 {
		t.Errorf("DELETE /v1/session: %d %s", w.Code, w.Body)
	}
	if w := p.do("GET", "/v1/topics", s...); w.Code != 401 {
		t.Errorf("after the end: %d %s", w.Code, w.Body)
	}
}

func TestReadOnly(t *testing.T) {
	p := start(t, true)
	s := p.login()
	for method, status := range map[string]int{"GET": 200, "HEAD": 200, "POST": 403, "PUT": 403, "PATCH": 403, "DELETE": 403} {
		before := len(p.seen)
		w := p.do(method, "/v1/topics/x", s...)
		if forwarded := len(p.seen) > before; w.Code != status || forwarded != (status == 200) {
			t.Errorf("%s: %d %s, forwarded: %t", method, w.Code, w.Body, forwarded)
		}
	}
	var who struct {
		ReadOnly bool `json:"read_only"`
	}
	if w := p.do("GET", "/v1/session", s...); json.Unmarshal(w.Body.Bytes(), &who) != nil || !who.ReadOnly {
		t.Errorf("GET /v1/session: %s", w.Body)
	}
	if w := p.do("DELETE", "/v1/session", s...); w.Code != 204 {
		t.Errorf("the page cannot sign out: %d %s", w.Code, w.Body)
	}
}
