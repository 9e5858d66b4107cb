package console

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tidegate/tidegate/internal/assert"
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
