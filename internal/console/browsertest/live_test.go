package browsertest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
)

// streams counts the live streams of a site. It rejects them while broken, and all requests for
// data while the site is down.
type streams struct {
	now, most, requests atomic.Int64
	broken              atomic.Bool
	up                  atomic.Pointer[uptime] // nil while the site is down
}

// uptime ends with the requests for data that began in it.
type uptime struct {
	context.Context
	end context.CancelFunc
}

func newStreams() *streams {
	s := new(streams)
	s.rise()
	return s
}

func (s *streams) rise() {
	ctx, cancel := context.WithCancel(context.Background())
	s.up.Store(&uptime{ctx, cancel})
}

func (s *streams) fall() { s.up.Swap(nil).end() }

func (s *streams) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		up := s.up.Load()
		if up == nil && strings.HasPrefix(r.URL.Path, "/v1/") {
			http.Error(w, "", http.StatusServiceUnavailable)
			return
		}
		if !strings.HasSuffix(r.URL.Path, "/v1/live") {
			h.ServeHTTP(w, r)
			return
		}
		s.requests.Add(1)
		if s.broken.Load() {
			http.Error(w, "", http.StatusServiceUnavailable)
			return
		}
		n := s.now.Add(1)
		defer s.now.Add(-1)
		for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(up, cancel)()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// await waits until there are n streams.
func (s *streams) await(t *testing.T, n int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for s.now.Load() != n {
		select {
		case <-ctx.Done():
			t.Fatalf("after %v there are %d live streams, want %d", patience, s.now.Load(), n)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// cell is the text of a column of the row that shows a name.
func cell(name, column string) string {
	column = strings.ToUpper(column[:1]) + column[1:]
	return `[...document.querySelectorAll('main tbody tr')].find(r => r.textContent.includes('` + name +
		`'))?.querySelector('td[data-label="` + column + `"]')?.innerText.trim()`
}

// The tabs of a browser share one live stream, which shows a change on the pages of both. When the
// tab that reads it has another page, the other tab reads it.
func TestTabsShareOneStream(t *testing.T) {
	live := newStreams()
	s := start(t, siteOptions{wrap: live.wrap})
	for _, name := range []string{"first", "second"} {
		s.topic(name, settings.Topic{Queues: 1})
	}
	a := open(t, s.url)
	a.load("#/topics")
	a.wait(cell("first", "stored") + ` === '0'`)
	b := a.beside()
	b.load("#/topics/second")
	b.wait(`document.querySelector('[data-live=ok]')`)
	for i, name := range []string{"first", "second", "second"} {
		s.send(&tidegate.Message{Topic: name, Body: []byte{byte(i)}})
	}
	a.wait(cell("first", "stored") + ` === '1' && ` + cell("second", "stored") + ` === '2'`)
	b.wait(`document.querySelector('main').innerText.includes('2 · 2')`)
	assert.Equal(t, "live streams at a time", live.most.Load(), 1)
	a.visit("#/help")
	s.send(&tidegate.Message{Topic: "second", Body: []byte("x")})
	b.wait(`document.querySelector('main').innerText.includes('3 · 3')`)
	b.visit("#/help")
	live.await(t, 0)
	a.clean()
	if faults := b.recorded(); len(faults) > 0 {
		t.Error(faults)
	}
}

// A pause holds for all tabs and is kept; it ends the stream, and its end begins a stream.
func TestPauseEndsTheStream(t *testing.T) {
	live := newStreams()
	s := start(t, siteOptions{wrap: live.wrap})
	s.topic("first", settings.Topic{Queues: 1})
	a := open(t, s.url)
	a.load("#/topics")
	live.await(t, 1)
	a.eval(`document.querySelector('[data-action=pause]').click()`, nil)
	live.await(t, 0)
	a.load("#/topics")
	a.wait(`document.querySelector('[data-live=paused]')`)
	s.send(&tidegate.Message{Topic: "first", Body: []byte("x")})
	a.eval(`document.querySelector('[data-action=pause]').click()`, nil)
	a.wait(cell("first", "stored") + ` === '1'`)
	a.wait(`document.querySelector('[data-live=ok]')`)
	live.await(t, 1)
	a.clean()
}

// Without a stream the pages ask for their lists; the console asks for a stream again and again.
func TestPagesWorkWithoutAStream(t *testing.T) {
	live := newStreams()
	s := start(t, siteOptions{wrap: live.wrap})
	live.broken.Store(true)
	s.topic("first", settings.Topic{Queues: 1})
	a := open(t, s.url)
	a.load("#/topics")
	s.send(&tidegate.Message{Topic: "first", Body: []byte("x")})
	a.wait(cell("first", "stored") + ` === '1'`)
	live.broken.Store(false)
	live.await(t, 1)
	if n := live.requests.Load(); n < 2 {
		t.Errorf("%d requests for a stream, want more than one", n)
	}
	a.clean()
}

// The badge of the page is late after three intervals without data, and recovers.
func TestBadgeTurnsLate(t *testing.T) {
	live := newStreams()
	s := start(t, siteOptions{wrap: live.wrap})
	a := open(t, s.url)
	a.load("#/topics")
	a.eval(`{const e = document.querySelector('select[name=interval]'); e.value = '1000'; e.dispatchEvent(new Event('change')); null}`, nil)
	live.await(t, 1)
	a.wait(`document.querySelector('[data-live=ok]')`)
	live.fall()
	a.wait(`document.querySelector('[data-live=late]')`)
	live.rise()
	a.wait(`document.querySelector('[data-live=ok]')`)
	live.await(t, 1)
	a.clean()
}

// A page that is opened while the broker is down shows its data once the broker is back, without
// the user. That holds for pages of which the browser does not have the module yet, for pages that
// make one request, and for searches.
func TestPageOpenedWhileTheBrokerIsDown(t *testing.T) {
	o := siteOptions{broker: broker.Options{Dir: t.TempDir()}}
	s := launch(t, o)
	s.letter(&tidegate.Message{ID: "buried", Topic: "orders", Body: []byte("the body of the message")})
	pages := []string{"#/messages?topic=orders", "#/messages/orders/0/0", "#/dead-letters/g/buried", "#/trace?topic=orders&id=buried", "#/limits", "#/help"}
	for _, known := range []bool{false, true} {
		var tabs []*tab
		for _, fragment := range pages {
			b := open(t, s.url)
			b.load("#/topics")
			if known {
				b.visit(fragment)
				b.visit("#/topics")
			}
			tabs = append(tabs, b)
		}
		s.kill()
		for i, b := range tabs {
			b.eval(fmt.Sprintf(`location.hash = %q; null`, pages[i]), nil)
			if pages[i] != "#/help" || !known {
				b.wait(`document.querySelector('main:not([data-page=topics]) [role=alert]')`)
			}
		}
		o.addr = s.addr
		s = launch(t, o)
		t.Cleanup(s.kill)
		for i, b := range tabs {
			b.wait(`document.querySelector('main:not([data-page=topics])[data-ready]') && !document.querySelector('main [role=alert]')`)
			if strings.Contains(pages[i], "orders") || strings.Contains(pages[i], "buried") {
				b.wait(`/the body of the message|buried|no such account/.test(document.querySelector('main .content').innerText)`)
			}
			b.end()
		}
	}
}

// A dialog and its texts survive the end of the session: they return when the same key signs in on
// the same page. Meanwhile the page does not show them. Another key does not get them.
func TestDialogSurvivesTheSession(t *testing.T) {
	var expired atomic.Bool
	s, _ := guarded(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if expired.Load() && (r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/session")) {
				r.Header.Del("Cookie")
			}
			h.ServeHTTP(w, r)
		})
	})
	stored := func() int64 {
		t.Helper()
		topic := assert.Value(s.Topic("normal"))(t)
		return topic.StoredMessages
	}
	before := stored()
	b := open(t, s.url)
	b.load("")
	b.signIn("root")
	for _, click := range []bool{false, true} { // the page or the dialog itself notices the end
		b.visit("#/topics/normal")
		if click {
			b.click("pause", "")
		}
		b.click("send", "normal")
		b.fill("body", `'typed for an hour'`)
		expired.Store(true)
		if click {
			b.click("confirm", "")
		}
		b.wait(`document.querySelector('main[data-page=sign-in]') && !document.querySelector('dialog')`)
		expired.Store(false)
		b.signIn("root")
		b.wait(`document.querySelector('main[data-page=topics-one][data-ready]') && document.querySelector('dialog:modal [name=body]')?.value === 'typed for an hour'`)
		b.confirm()
		assert.MustEqual(t, "the topic has messages after the dialog", stored(), before+1)
		before++
		if click {
			b.click("pause", "")
		}
	}
	// Another key does not see what was typed.
	b.click("send", "normal")
	b.fill("body", `'a secret'`)
	expired.Store(true)
	b.wait(`document.querySelector('main[data-page=sign-in]')`)
	expired.Store(false)
	b.signIn(roles().Keys[1].Name)
	b.wait(`document.querySelector('main[data-ready]') && !document.querySelector('dialog')`)
	b.eval(`document.querySelector('[data-action=sign-out]').click(); null`, nil)
	b.signIn("root")
	b.wait(`document.querySelector('main[data-page=topics-one][data-ready]')`)
	shown := value[bool](b, `!!document.querySelector('dialog')`)
	assert.That(t, !shown, "a dialog returned although another key had signed in")
	assert.Equal(t, "a dialog that was dropped sent a message", stored(), before)
	b.clean()
}

// Every body can be read, copied and downloaded, also JSON that is nested too deeply to be
// indented.
func TestDeepBodies(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("deep", settings.Topic{Queues: 1})
	bodies := []string{
		strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000),
		strings.Repeat("[", 20_000),
		strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000),
		strings.Repeat("[", 500_000) + strings.Repeat("]", 500_000),
		`[` + strings.Repeat(`"a",`, 200_000) + `1]`, // flat: indented
		`"` + strings.Repeat("a", 1_000_000) + `"`,
	}
	for _, body := range bodies {
		s.send(&tidegate.Message{Topic: "deep", Body: []byte(body)})
	}
	b := open(t, s.url)
	b.load("#/messages?topic=deep")
	for i, body := range bodies {
		b.visit(fmt.Sprintf("#/messages/deep/0/%d", i))
		text := value[string](b, `document.querySelector('main').textContent`)
		if !strings.Contains(text, body[:1000]) && i != 4 || i == 4 && !strings.Contains(text, "\n  \"a\",\n") {
			t.Errorf("body %d is not shown: %.300q", i, text)
		}
		for _, action := range []string{"copy-body", "download-body", "show-all"} {
			if action == "show-all" && len(body) <= 64<<10 {
				continue
			}
			there := value[bool](b, fmt.Sprintf(`!!document.querySelector('[data-action=%s]')`, action))
			assert.That(t, there, "body %d has no button %s", i, action)
		}
		b.clean()
	}
}

// Long texts without a space do not widen a page, and a stack trace has its lines.
func TestLongTexts(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("long", settings.Topic{Queues: 1})
	s.topic("ordered", settings.Topic{Queues: 1, Type: "FIFO"})
	s.group("g", settings.Group{})
	word := strings.Repeat("x", 1000)
	trace := "java.lang.IllegalStateException: no account\r\n\tat com.example.Accounts.find(Accounts.java:42)\n\tat com.example.Main.run(Main.java:7)"
	s.send(&tidegate.Message{Topic: "ordered", Body: []byte("x"), MessageGroup: word[:63], Keys: []string{word}})
	s.bury("g", "long", 1, func(int) string { return trace }, func(int) *tidegate.Message {
		return &tidegate.Message{ID: "a" + word[:200], Topic: "long", Body: []byte(word), Tag: word[:100], Keys: []string{word, word}, Properties: map[string]string{"p": word, "stack": trace}}
	})
	b := open(t, s.url)
	b.load("")
	for _, width := range []int64{1280, 400} {
		b.size(width, 900)
		for _, fragment := range []string{"#/messages?topic=long", "#/messages?topic=ordered", "#/messages/long/0/0", "#/trace?topic=long&id=a" + word[:200], "#/dead-letters/g", "#/dead-letters/g/a" + word[:200], "#/groups/g", "#/topics/long"} {
			b.visit(fragment)
			b.wait(`document.querySelector('main[data-ready]')`)
			widest := value[float64](b, `Math.max(0, document.documentElement.scrollWidth, ...[...document.querySelectorAll('main table, main .facts, main p, main li')].map((e) => e.scrollWidth))`)
			if widest > float64(max(width+50, 1800)) || width == 400 && widest > 420 {
				t.Errorf("at a width of %d, %.60s has something of %.0f px", width, fragment, widest)
			}
			b.clean()
		}
	}
	for fragment, selector := range map[string]string{"#/dead-letters/g/a" + word[:200]: ".reason", "#/messages/long/0/0": ".facts.long", "#/trace?topic=long&id=a" + word[:200]: ".failures, .fates"} {
		b.visit(fragment)
		b.wait(fmt.Sprintf(`document.querySelector('main').querySelector(%q)`, selector))
		text := value[string](b, fmt.Sprintf(`[...document.querySelectorAll(%q)].map((e) => e.innerText).join('\n')`, selector))
		if !strings.Contains(text, "no account\n") || !strings.Contains(text, "(Accounts.java:42)\n") || strings.Contains(text, `\x0`) {
			t.Errorf("%.40s shows the stack trace as %.400q", fragment, text)
		}
	}
}

// A loop over pages ends with a text if the server repeats a cursor, also in a longer cycle.
func TestRepeatedCursor(t *testing.T) {
	var requests atomic.Int64
	s := start(t, siteOptions{wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var text string
			switch path := r.URL.Path; {
			case strings.HasSuffix(path, "/dead-letters") && r.URL.Query().Get("count") != "":
				text = `{"count":1,"next":"%d"}`
			case strings.HasSuffix(path, "/redrive"):
				text = `{"redriven":1,"next":"%d"}`
			case strings.HasSuffix(path, "/messages"):
				text = `{"messages":[],"scanned":1,"next":"%d"}`
			default:
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, text, requests.Add(1)%3)
		})
	}})
	s.populate(1)
	ends := func(b *tab, what, selector string) {
		t.Helper()
		b.wait(fmt.Sprintf(`[...document.querySelectorAll(%q)].some((e) => e.innerText.includes('repeats a page'))`, selector))
		if n := requests.Swap(0); n > 20 {
			t.Errorf("%s made %d requests", what, n)
		}
	}
	b := open(t, s.url)
	b.load("#/messages?topic=normal")
	ends(b, "a search", "main [role=alert]")
	b.visit("#/dead-letters/g")
	b.click("redrive", "g")
	ends(b, "counting", "dialog [data-count]")
	b.click("cancel", "")
	b.wait(`!document.querySelector('dialog')`)
	b.eval(`import('./' + document.querySelector('script[src]').getAttribute('src').replace('main.js', 'letters.js')).then((m) => m.begin('g', 'redrive', {}, {}, 5)).then(() => null)`, nil)
	ends(b, "a job", "main .job")
	b.clean()
}

// A send whose response is lost took effect. The browser repeats it on another connection, the user
// confirms it again, and there is one message.
func TestLostResponseIsNoSecondMessage(t *testing.T) {
	var losing atomic.Bool
	var lost atomic.Int64
	s := start(t, siteOptions{wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/messages") && losing.Load() {
				h.ServeHTTP(httptest.NewRecorder(), r)
				lost.Add(1)
				panic(http.ErrAbortHandler)
			}
			h.ServeHTTP(w, r)
		})
	}})
	s.topic("orders", settings.Topic{})
	expect := func(when string, want int64) {
		t.Helper()
		topic := assert.Value(s.Topic("orders"))(t)
		if topic.StoredMessages != want {
			t.Errorf("after %s the topic has %d messages, want %d", when, topic.StoredMessages, want)
		}
	}
	b := open(t, s.url)
	b.load("#/topics/orders")
	b.click("send", "orders")
	b.fill("body", `'one'`)
	losing.Store(true)
	b.click("confirm", "")
	b.wait(`document.querySelector('dialog [role=alert]:not([hidden])')`)
	assert.That(t, lost.Load() != 0, "no response was lost")
	expect("the lost response", 1)
	losing.Store(false)
	b.confirm()
	expect("the second confirmation", 1)

	// Another body in the same dialog is another message.
	b.click("send", "orders")
	b.fill("body", `'two'`)
	losing.Store(true)
	b.click("confirm", "")
	b.wait(`document.querySelector('dialog [role=alert]:not([hidden])')`)
	losing.Store(false)
	b.fill("body", `'three'`)
	b.confirm()
	expect("a changed body", 3)
	b.clean()
}

// proxy starts a reverse proxy that removes a prefix of the path and has a host name of its own.
func proxy(t *testing.T, target, prefix, host string) string {
	t.Helper()
	to := assert.Value(url.Parse(target))(t)
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.SetXForwarded()
		r.Out.Host = host
	}, FlushInterval: -1}
	lis := assert.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", http.StripPrefix(prefix, forward))
	web := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go web.Serve(lis) // it ends with Close
	t.Cleanup(func() { web.Close() })
	return "http://" + lis.Addr().String() + prefix
}

// The console works behind a proxy that removes a prefix of the path and rewrites the host, with
// the host in http_hosts.
func TestBehindPrefixProxy(t *testing.T) {
	s := start(t, siteOptions{server: server.Options{HTTPHosts: []string{"mq.example"}}})
	s.populate(1)
	b := open(t, proxy(t, s.url, "/team/mq", "mq.example"))
	b.load("")
	for _, p := range pages {
		b.visit(p.fragment)
		b.clean()
		faults := value[[]string](b, `[...document.querySelectorAll('[role=alert]')].filter((e) => !e.hidden).map((e) => e.textContent)`)
		for _, f := range faults {
			t.Errorf("%s: %s", p.fragment, f)
		}
	}
	// Without the last slash, as people type it.
	b.run(navigate(b.origin + "/console"))
	b.ready()
	b.clean()
}

// Without the host in http_hosts the broker rejects the data, and the page shows the remedy.
func TestBehindUnknownHost(t *testing.T) {
	s := start(t, siteOptions{})
	b := open(t, proxy(t, s.url, "/mq", "mq.example"))
	b.run(navigate(b.origin + "/console/"))
	b.wait(`document.querySelector('main').innerText.includes('--http-hosts')`)
}

// Two tabs change the same settings. The second change is rejected with a message and overwrites
// nothing. The next dialog of the second tab has the settings of the first one.
func TestSecondChangeOverwritesNothing(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("orders", settings.Topic{})
	s.group("billing", settings.Group{})
	assert.Must(t, assert.Err(s.PutAddressSettings(t.Context(), "orders.#", settings.Address{})))
	a := open(t, s.url)
	a.load("")
	b := a.beside()
	b.load("")
	for _, c := range []struct{ fragment, action, field, stored string }{
		{"#/topics/orders", "change-topic", "max_backlog.messages", "topics/orders"},
		{"#/groups/billing", "change-group", "max_attempts", "groups/billing"},
		{"#/limits", "set-limits", "max_backlog.bytes", "throttle"},
		{"#/address", "change-address", "max-delivery-attempts", "address-settings/orders.%23"},
	} {
		input := `document.querySelector('dialog[open] [name="` + c.field + `"]')`
		fill := func(b *tab, value string) {
			b.wait(input)
			b.eval(input+`.value = `+value+`; null`, nil)
		}
		for _, b := range []*tab{a, b} {
			b.visit(c.fragment)
			b.click(c.action, "")
		}
		fill(a, "'5000001'")
		fill(b, "'6000001'")
		a.confirm()
		b.click("confirm", "")
		b.wait(`document.querySelector('dialog [role=alert]:not([hidden])')?.textContent.includes('changed meanwhile')`)
		if _, text := s.ask(t, "anyone", "GET "+c.stored); !strings.Contains(text, "5000001") || strings.Contains(text, "6000001") {
			t.Errorf("%s: the second change overwrote the first: %s", c.fragment, text)
		}
		b.click("cancel", "")
		b.wait(`!document.querySelector('dialog')`)
		b.click(c.action, "")
		b.wait(input + `?.value === '5000001'`)
		fill(b, "'7000001'")
		b.confirm()
		if _, text := s.ask(t, "anyone", "GET "+c.stored); !strings.Contains(text, "7000001") {
			t.Errorf("%s: the change on the new settings: %s", c.fragment, text)
		}
	}
	a.clean()
	if faults := b.recorded(); len(faults) > 0 {
		t.Error(faults)
	}
}
