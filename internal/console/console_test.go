package console

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// get makes a request; header is names and values in turn.
func get(t *testing.T, h http.Handler, method, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, path, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func body(t *testing.T, r io.Reader) string {
	t.Helper()
	text := assert.Value(io.ReadAll(r))(t)
	return string(text)
}

// wanted are the headers of the specification of the console, each of which a browser enforces.
var wanted = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'none'; " +
		"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
	"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
	"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
	"Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}

func small(t *testing.T) *handler {
	t.Helper()
	h, err := load(fstest.MapFS{
		"index.html": {Data: []byte(`<link href="files/style.css"><script type="module" src="files/main.js"></script>`)},
		"style.css":  {Data: []byte("main { color: red; } td :hover { content: \"a b\"; margin: 0 1px }\n")},
		"main.js":    {Data: []byte("  import './other.js' // kept\n  // left out\n//left out\n" + strings.Repeat("f('// kept')\n", 100))},
		"other.js":   {Data: []byte("export {}")},
	})
	assert.Must(t, err)
	return h
}

var versioned = regexp.MustCompile(`"([0-9a-f]{16})/[^"]+"`)

// versionOf returns the directory in the addresses of the index.
func versionOf(t *testing.T, h *handler) string {
	t.Helper()
	index := body(t, get(t, h, "GET", "/console/").Body)
	found := versioned.FindAllStringSubmatch(index, -1)
	if len(found) != 2 || found[0][1] != found[1][1] {
		t.Fatalf("the index has no two files below a hash: %s", index)
	}
	return found[0][1]
}

func TestEveryResponseHasTheHeaders(t *testing.T) {
	h := small(t)
	v := versionOf(t, h)
	for _, c := range []struct {
		method, path                 string
		status                       int
		contentType, caching, extras string
	}{
		{"GET", "/console/", 200, "text/html; charset=utf-8", "no-store", ""},
		{"HEAD", "/console/", 200, "text/html; charset=utf-8", "no-store", ""},
		{"GET", "/console/" + v + "/main.js", 200, "text/javascript; charset=utf-8", "public, max-age=31536000, immutable", ""},
		{"GET", "/console/" + v + "/style.css", 200, "text/css; charset=utf-8", "public, max-age=31536000, immutable", ""},
		{"GET", "/console", 301, "", "", "console/"},
		{"GET", "/console/main.js", 404, "text/plain; charset=utf-8", "no-store", ""},
		{"GET", "/console/0000000000000000/main.js", 404, "text/plain; charset=utf-8", "no-store", ""}, // an older version's
		{"GET", "/console/index.html", 404, "text/plain; charset=utf-8", "no-store", ""},
		{"GET", "/console/..%2f..%2fetc/passwd", 404, "text/plain; charset=utf-8", "no-store", ""},
		{"GET", "/console/" + v + "/", 404, "text/plain; charset=utf-8", "no-store", ""},
		{"POST", "/console/", 405, "text/plain; charset=utf-8", "", ""},
		{"DELETE", "/console/" + v + "/main.js", 405, "text/plain; charset=utf-8", "", ""},
	} {
		r := get(t, h, c.method, c.path)
		if r.Code != c.status || r.Header().Get("Content-Type") != c.contentType || r.Header().Get("Cache-Control") != c.caching || r.Header().Get("Location") != c.extras {
			t.Errorf("%s %s: %d, %v; want %+v", c.method, c.path, r.Code, r.Header(), c)
		}
		for name, value := range wanted {
			if got := r.Header().Values(name); len(got) != 1 || got[0] != value {
				t.Errorf("%s %s: %s is %q, want %q", c.method, c.path, name, got, value)
			}
		}
		if allow := r.Header().Get("Allow"); (c.status == 405) != (allow == "GET, HEAD") {
			t.Errorf("%s %s: Allow is %q", c.method, c.path, allow)
		}
		if text := body(t, r.Body); c.method == "HEAD" && text != "" {
			t.Errorf("HEAD %s: the body is %q", c.path, text)
		}
	}
}

func TestFilesAreCompressedForClientsThatAccept(t *testing.T) {
	h := small(t)
	path := "/console/" + versionOf(t, h) + "/main.js"
	plain := body(t, get(t, h, "GET", path).Body)
	if want := "import './other.js' // kept\n" + strings.Repeat("f('// kept')\n", 100); plain != want {
		t.Errorf("the script is %q, want it without lines of comments and indentation: %q", plain, want)
	}
	for accept, want := range map[string]bool{
		"gzip": true, "gzip, deflate, br, zstd": true, "br;q=1.0, GZIP;q=0.8, *;q=0.1": true, "deflate, gzip; q=0.001": true,
		"": false, "identity": false, "br": false, "gzip;q=0": false, "gzip; q=0.000, br": false, "x-gzipped": false,
	} {
		r := get(t, h, "GET", path, "Accept-Encoding", accept)
		var content io.Reader = r.Body
		if got := r.Header().Get("Content-Encoding") == "gzip"; got != want || r.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("Accept-Encoding %q: %v", accept, r.Header())
			continue
		}
		if want {
			var err error
			if content, err = gzip.NewReader(r.Body); err != nil {
				t.Fatal(err)
			}
		}
		if text := body(t, content); text != plain {
			t.Errorf("Accept-Encoding %q: %q, want %q", accept, text, plain)
		}
	}
}

// A change of any file has to change the address of all of them, because browsers keep them.
func TestVersionFollowsEachFile(t *testing.T) {
	seen := map[string]string{}
	for name, files := range map[string]fstest.MapFS{
		"first":             {"index.html": {Data: []byte(`"files/a.js" "files/b.js"`)}, "a.js": {Data: []byte("1")}, "b.js": {Data: []byte("2")}},
		"content":           {"index.html": {Data: []byte(`"files/a.js" "files/b.js"`)}, "a.js": {Data: []byte("1")}, "b.js": {Data: []byte("3")}},
		"moved between two": {"index.html": {Data: []byte(`"files/a.js" "files/b.js"`)}, "a.js": {Data: []byte("12")}, "b.js": {}},
		"name":              {"index.html": {Data: []byte(`"files/a.js" "files/b.js"`)}, "a.js": {Data: []byte("1")}, "c.js": {Data: []byte("2")}},
		"index":             {"index.html": {Data: []byte(`"files/a.js" "files/b.js" `)}, "a.js": {Data: []byte("1")}, "b.js": {Data: []byte("2")}},
	} {
		h := assert.Value(load(files))(t)
		v := versionOf(t, h)
		if other := seen[v]; other != "" {
			t.Errorf("%q and %q have the same version", name, other)
		}
		seen[v] = name
	}
	if _, err := load(fstest.MapFS{"font.woff2": {}}); err == nil || !strings.Contains(err.Error(), "font.woff2") {
		t.Errorf("a file without a known type: %v", err)
	}
}

// Every address in the embedded index leads to a file.
func TestIndexNamesFiles(t *testing.T) {
	h := shared()
	index := body(t, get(t, h, "GET", "/console/").Body)
	found := versioned.FindAllStringSubmatch(index, -1)
	for _, m := range found {
		at := strings.Trim(m[0], `"`)
		if r := get(t, h, "GET", "/console/"+at); r.Code != 200 {
			t.Errorf("%s of the index: %d", at, r.Code)
		}
	}
	if len(found) == 0 || strings.Contains(index, source) {
		t.Errorf("the index refers to no file below its version: %s", index)
	}
}

// The style loses the space that means nothing, and keeps that of selectors, values and texts.
func TestStyleIsServedWithoutPadding(t *testing.T) {
	h := small(t)
	if got := body(t, get(t, h, "GET", "/console/"+versionOf(t, h)+"/style.css").Body); got != "main{color:red;}td :hover{content:\"a b\";margin:0 1px}\n" {
		t.Errorf("the style is %q", got)
	}
}

// The console shows and changes each setting of a topic, a group and an address, and no other.
func TestSettingsAreShown(t *testing.T) {
	lists := map[string]reflect.Type{
		"topicFields":   reflect.TypeFor[settings.Topic](),
		"groupFields":   reflect.TypeFor[settings.Group](),
		"addressFields": reflect.TypeFor[settings.Address](),
	}
	code := read(t, "files/settings.js")
	row := regexp.MustCompile(`(?m)^ {2}\['([^']+)', `)
	for name, of := range lists {
		_, list, found := strings.Cut(code, "export const "+name+" = [\n")
		list, _, _ = strings.Cut(list, "\n];")
		if !found {
			t.Errorf("settings.js has no %s", name)
			continue
		}
		shown := map[string]bool{}
		for _, m := range row.FindAllStringSubmatch(list, -1) {
			shown[m[1]] = true
		}
		exist := map[string]bool{}
		paths(of, "", exist)
		for _, path := range slices.Sorted(maps.Keys(exist)) {
			if !shown[path] {
				t.Errorf("%s has no row for the setting %s", name, path)
			}
			delete(shown, path)
		}
		for path := range shown {
			t.Errorf("%s has a row for %s, which is no setting", name, path)
		}
	}
}

// paths adds the JSON names of the fields of a struct, with those of the structs that contain them.
func paths(of reflect.Type, prefix string, all map[string]bool) {
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && name == "":
			paths(inner, prefix, all)
		case inner.Kind() == reflect.Struct && name != "":
			paths(inner, prefix+name+".", all)
		default:
			all[prefix+name] = true
		}
	}
}

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

// The bounds of the console: a page must load fast, and one person must be able to read its code.
const (
	maxCompressed = 45_000 // bytes that any page transfers from a cold cache, in each language
	maxLines      = 500    // of one file
)

// forbidden are constructs that the content security policy stops, or that treat data as markup or
// code. The policy is enforced by the browser; this rule finds them before a browser does.
var forbidden = map[string]*regexp.Regexp{
	"markup from text":             regexp.MustCompile(`\b(innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|DOMParser|setHTMLUnsafe|parseHTMLUnsafe|srcdoc)\b|document\.write`),
	"code from text":               regexp.MustCompile(`\beval\s*\(|\bnew Function\b|\bFunction\s*\(|javascript:|\bset(Timeout|Interval)\s*\(\s*['"` + "`]"),
	"a style attribute":            regexp.MustCompile(`<[^>]*\sstyle\s*=|\bstyle\s*[:=]\s*['"` + "`]|setAttribute\\(\\s*['\"]style"),
	"an event attribute":           regexp.MustCompile(`<[^>]*\son[a-z]+\s*=|setAttribute\(\s*['"]on|\.on(click|load|error|message|submit|change|input|key\w+)\s*=`),
	"an inline script or style":    regexp.MustCompile(`<script(?:[^>]*\ssrc=)?[^>]*>[^<]|<style`),
	"an address beyond the origin": regexp.MustCompile(`['"(=]\s*(https?:)?//[a-z]`),
	"a font or an import of CSS":   regexp.MustCompile(`@font-face|@import`),
	"storage of the secret":        regexp.MustCompile(`(?i)(store\.set|setItem)\(\s*['"]\w*(secret|password)`),
}

// exempt are places of which a person has decided that they are harmless.
var exempt = []string{`'http://www.w3.org/2000/svg'`, `"http://www.w3.org/2000/svg"`}

func TestFilesFollowTheRules(t *testing.T) {
	err := fs.WalkDir(embedded, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(embedded, name)
		if err != nil {
			return err
		}
		if n := bytes.Count(text, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, the limit is %d", name, n, maxLines)
		}
		for n, line := range strings.Split(string(text), "\n") {
			if path.Ext(name) == ".js" && strings.HasPrefix(strings.TrimSpace(line), "//") {
				continue
			}
			if path.Ext(name) == ".js" && strings.Count(line, "`")%2 != 0 {
				t.Errorf("%s:%d: a text over several lines: %s", name, n+1, line)
			}
			for _, part := range exempt {
				line = strings.ReplaceAll(line, part, "")
			}
			for what, pattern := range forbidden {
				assert.That(t, !pattern.MatchString(line), "%s:%d: %s: %s", name, n+1, what, line)
			}
		}
		return nil
	})
	assert.Must(t, err)
}

var staticImports = regexp.MustCompile(`(?m)^(?:import|export)\b[^'"]*?['"]\./([^'"]+)['"]`)

// transfer is the number of bytes that a browser with an empty cache transfers for some files.
type transfer struct {
	byName map[string]file
	seen   map[string]bool
	bytes  int
}

// load adds a file and each script that it imports, also indirectly.
func (n *transfer) load(t *testing.T, name string) {
	t.Helper()
	if n.seen[name] {
		return
	}
	n.seen[name] = true
	f, ok := n.byName[name]
	assert.That(t, ok, "there is no file %s", name)
	n.bytes += len(f.zipped)
	if path.Ext(name) == ".js" {
		for _, m := range staticImports.FindAllStringSubmatch(string(f.plain), -1) {
			n.load(t, m[1])
		}
	}
}

// No page transfers more than the bound from a cold cache: the index with its files, the module of
// the page, and the texts of a language.
func TestSize(t *testing.T) {
	h := shared()
	byName, all := map[string]file{}, 0
	for at, f := range h.files {
		byName[path.Base(at)] = f
		all += len(f.zipped)
	}
	first := transfer{byName, map[string]bool{}, len(h.files[""].zipped)}
	for _, m := range versioned.FindAllString(string(h.files[""].plain), -1) {
		first.load(t, path.Base(strings.Trim(m, `"`)))
	}
	pages := 0
	for name := range byName {
		if path.Ext(name) != ".js" || first.seen[name] || tables[name] {
			continue
		}
		pages++
		for _, language := range []string{"en.js", "zh.js"} {
			page := transfer{byName, maps.Clone(first.seen), first.bytes}
			page.load(t, language)
			page.load(t, name)
			if page.bytes > maxCompressed {
				t.Errorf("a page of %s with %s transfers %d bytes, the limit is %d", name, language, page.bytes, maxCompressed)
			}
			t.Logf("a page of %s with %s transfers %d bytes", name, language, page.bytes)
		}
	}
	assert.That(t, pages >= 5, "only %d modules of pages were found", pages)
	t.Logf("%d bytes in %d files; the index with its files transfers %d bytes", all, len(h.files), first.bytes)
}

var (
	entry   = regexp.MustCompile(`(?m)^ {2}'((?:[^'\\]|\\.)*)': '((?:[^'\\]|\\.)*)',$`)
	keyed   = regexp.MustCompile(`\bt\('((?:[^'\\]|\\.)*)'`)                      // t('key'), and t('prefix ' + name)
	literal = regexp.MustCompile(`'((?:[^'\\\n]|\\.)*)'`)                         // a key can also be a value: label: 'topics'
	braced  = regexp.MustCompile(`'\{([^}'\n]+)\}'`)                              // a default that is described: '{none}'
	prefix  = regexp.MustCompile("\\bt\\((?:'([a-z ]+ )' \\+|`([a-z ]+ )\\$\\{)") // t('state ' + s), t(`job ${kind}`)
	hole    = regexp.MustCompile(`\{\d\}`)
)

// Every text that a page shows is in both languages, with the same places for values, and none is
// left over.
func TestTexts(t *testing.T) {
	english, chinese := texts(t, "en"), texts(t, "zh")
	used, prefixes := map[string]bool{}, map[string]bool{}
	modules := assert.Value(fs.Glob(embedded, "files/*.js"))(t)
	for _, name := range modules {
		if tables[path.Base(name)] {
			continue
		}
		code := read(t, name)
		for _, m := range prefix.FindAllStringSubmatch(code, -1) {
			prefixes[m[1]+m[2]] = true
		}
		for _, m := range braced.FindAllStringSubmatch(code, -1) {
			used[m[1]] = true
		}
		for _, m := range keyed.FindAllStringSubmatch(code, -1) {
			if !strings.HasSuffix(m[1], " ") {
				used[m[1]] = true
			}
		}
		for _, m := range literal.FindAllStringSubmatch(code, -1) {
			if _, known := chinese[m[1]]; known {
				used[m[1]] = true
			}
		}
	}
	if len(used) < 100 || len(prefixes) < 3 {
		t.Fatalf("only %d keys and %d prefixes were found in the modules", len(used), len(prefixes))
	}
	for _, key := range slices.Sorted(maps.Keys(used)) {
		if _, ok := chinese[key]; !ok {
			t.Errorf("a module wants the text %q, which Chinese does not have", key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(chinese)) {
		withPrefix := slices.ContainsFunc(slices.Collect(maps.Keys(prefixes)), func(p string) bool { return strings.HasPrefix(key, p) })
		if !used[key] && !withPrefix {
			t.Errorf("no module wants the text %q", key)
		}
		en, ok := english[key]
		if !ok {
			en = key
		}
		if a, b := holes(en), holes(chinese[key]); !slices.Equal(a, b) {
			t.Errorf("the text %q has the places %q in English and %q in Chinese", key, a, b)
		}
	}
	for key := range english {
		if _, ok := chinese[key]; !ok {
			t.Errorf("the text %q is in English and not in Chinese", key)
		}
	}
}

// tables are the files of texts.
var tables = map[string]bool{"en.js": true, "en-terms.js": true, "zh.js": true, "zh-terms.js": true}

// texts returns the texts of a language.
func texts(t *testing.T, language string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, m := range entry.FindAllStringSubmatch(read(t, "files/"+language+".js")+read(t, "files/"+language+"-terms.js"), -1) {
		if _, twice := found[m[1]]; twice {
			t.Errorf("%s has %q twice", language, m[1])
		}
		found[m[1]] = m[2]
	}
	assert.MustThat(t, len(found) >= 100, "%s: only %d texts were found", language, len(found))
	return found
}

func read(t *testing.T, name string) string {
	t.Helper()
	text := assert.Value(fs.ReadFile(embedded, name))(t)
	return string(text)
}

// holes are the places of a text, each once: both languages may repeat one.
func holes(text string) []string {
	return slices.Compact(slices.Sorted(slices.Values(hole.FindAllString(text, -1))))
}
