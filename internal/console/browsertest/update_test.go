package browsertest

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/console"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// A moment of the broker changes only the cells whose values changed. The other elements stay, with
// the focus, and the table keeps its scroll position.
func TestUpdatesChangeOnlyDifferences(t *testing.T) {
	live := newStreams()
	s := start(t, siteOptions{wrap: live.wrap})
	for _, name := range []string{"first", "second"} {
		s.topic(name, settings.Topic{Queues: 1})
	}
	b := open(t, s.url)
	b.size(700, 600)
	b.load("#/topics")
	live.await(t, 1)
	b.wait(`document.querySelector('[data-live=ok]')`)
	b.eval(`(() => {
		const main = document.querySelector('main');
		document.querySelector('main a[href="#/topics/first"]').focus();
		document.querySelector('main .scroll').scrollLeft = 40;
		window.elements = [...main.querySelectorAll('*'), document.querySelector('[name=interval]')]; // a new list would close an open one
		window.changed = new Set();
		const column = (n) => n.nodeType === 1 ? n.closest('td')?.dataset.label || n.tagName : column(n.parentNode);
		new MutationObserver((list) => list.forEach((m) => window.changed.add(
			(m.target.parentElement.closest('tr')?.cells[0].innerText || '') + ' ' + column(m.target) + ' ' + m.type)))
			.observe(main.querySelector('section'), {subtree: true, childList: true, attributes: true, characterData: true});
		return null;
	})()`, nil)
	s.send(&tidegate.Message{Topic: "first", Body: []byte("x")})
	b.wait(cell("first", "stored") + ` === '1'`)
	changed := value[[]string](b, `[...window.changed].sort()`)
	if !slices.Contains(changed, "first Stored characterData") || slices.ContainsFunc(changed, func(c string) bool {
		return !strings.HasPrefix(c, "first ") || !strings.HasSuffix(c, " characterData")
	}) {
		t.Errorf("a message in the topic first changed %q, want only texts of its row", changed)
	}
	var gone, left int
	var focus string
	b.eval(`window.elements.filter((e) => !e.isConnected).length`, &gone)
	b.eval(`document.querySelector('main .scroll').scrollLeft`, &left)
	b.eval(`document.activeElement.getAttribute('href')`, &focus)
	if gone > 0 || left != 40 || focus != "#/topics/first" {
		t.Errorf("%d elements were replaced, the table is scrolled by %d pixels, the focus is on %q; want none, 40 and #/topics/first", gone, left, focus)
	}
	b.clean()
}

// update keeps elements, takes the functions of the new ones, and replaces a button for something
// else: a click that began on the old one must not end on it.
func TestUpdateOfElements(t *testing.T) {
	s := start(t, siteOptions{})
	b := open(t, s.url)
	b.load("#/help")
	b.eval(`(async () => {
		const {h, update} = await import(document.querySelector('script[src]').src.replace('main.js', 'base.js'));
		const e = document.createElement('div');
		document.body.append(e);
		const row = (text, subject, run, more) => h('p', {class: text, title: more}, text, h('button', {'data-subject': subject, click: run}, 'x'), more && h('b', null, more));
		const clicked = [];
		const press = () => { e.querySelector('button').click(); return clicked.at(-1); };
		const draw = (...children) => { update(e, ...children); return [e.innerHTML, press()]; };
		const seen = [draw(row('a', '1', () => clicked.push('one')))];
		const [p, button] = [e.firstChild, e.querySelector('button')];
		const kept = () => [e.firstChild === p, e.querySelector('button') === button];
		seen.push([draw(row('b', '1', () => clicked.push('two'), 'more')), kept()]);
		seen.push([draw(row('c', '2', () => clicked.push('three'))), kept()]);
		button.click();
		window.seen = {seen, old: clicked.at(-1), many: (update(e, 'text', h('i'), h('p')), e.innerHTML), none: (update(e), e.innerHTML)};
		e.remove();
		return null;
	})()`, nil)
	got := value[string](b, `JSON.stringify(window.seen)`)
	want := `{"seen":[["<p class=\"a\">a<button data-subject=\"1\">x</button></p>","one"],` +
		`[["<p class=\"b\" title=\"more\">b<button data-subject=\"1\">x</button><b>more</b></p>","two"],[true,true]],` +
		`[["<p class=\"c\">c<button data-subject=\"2\">x</button></p>","three"],[true,false]]],` +
		`"old":"two","many":"text<i></i><p></p>","none":""}`
	assert.That(t, got == want, "updates: %s\nwant %s", got, want)
}

// A hidden tab has no stream, requests nothing and draws nothing, while another tab of the browser
// is up to date. When the hidden tab is shown, it catches up.
func TestHiddenTabRests(t *testing.T) {
	live := newStreams()
	s := start(t, siteOptions{wrap: live.wrap})
	s.topic("first", settings.Topic{Queues: 1})
	a := open(t, s.url)
	a.load("#/topics")
	a.eval(`{const e = document.querySelector('select[name=interval]'); e.value = '1000'; e.dispatchEvent(new Event('change')); null}`, nil)
	live.await(t, 1)
	a.wait(`document.querySelector('[data-live=ok]')`)
	hide := func(on string) {
		a.eval(`Object.defineProperty(document, 'hidden', {configurable: true, value: `+on+`}); document.dispatchEvent(new Event('visibilitychange')); null`, nil)
	}
	hide("true")
	live.await(t, 0)
	a.eval(`window.changes = 0, new MutationObserver((list) => { window.changes += list.length; }).observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true}), null`, nil)
	a.sent()
	s.send(&tidegate.Message{Topic: "first", Body: []byte("x")})
	b := a.beside()
	b.load("#/topics")
	b.wait(cell("first", "stored") + ` === '1'`)
	for range 4 { // more than the badge of the other tab needs to be late
		b.eval(`window.was = document.querySelector('.asof').textContent, null`, nil)
		b.wait(`document.querySelector('.asof').textContent !== window.was`)
	}
	changes := value[int](a, `window.changes`)
	if sent := a.sent(); len(sent) > 0 || changes > 0 {
		t.Errorf("the hidden tab requested %q and changed %d times, want nothing", sent, changes)
	}
	hide("false")
	a.wait(cell("first", "stored") + ` === '1'`)
	a.wait(`document.querySelector('[data-live=ok]')`)
	a.clean()
}

// The page of a topic or group that does not exist says so, and shows no actions until it exists.
func TestMissingSubjectHasNoActions(t *testing.T) {
	s := start(t, siteOptions{})
	b := open(t, s.url)
	b.load("")
	shown := func(fragment string) (actions []string) {
		b.visit(fragment)
		b.eval(`[...document.querySelectorAll('main [data-action]')].filter((e) => e.checkVisibility()).map((e) => e.dataset.action).filter((a) => a !== 'copy-command')`, &actions)
		return actions
	}
	for _, fragment := range []string{"#/topics/later", "#/groups/later", "#/dead-letters/later", "#/messages?topic=later", "#/trace?topic=later&id=01"} {
		actions := shown(fragment)
		fault := value[bool](b, `!!document.querySelector('main [role=alert]')`)
		assert.That(t, len(actions) == 0 && fault, "%s shows %q, and a fault: %t", fragment, actions, fault)
	}
	s.topic("later", settings.Topic{})
	s.group("later", settings.Group{})
	for fragment, want := range map[string]string{"#/topics/later": "purge-topic", "#/groups/later": "delete-group"} {
		if actions := shown(fragment); !slices.Contains(actions, want) {
			t.Errorf("%s shows %q after the creation, want %s among them", fragment, actions, want)
		}
	}
	b.clean()
}

// A local is the console of tidegate console in front of a broker.
type local struct {
	url, link string // without and with the token
}

func startLocal(t *testing.T, s *site, readOnly bool) local {
	t.Helper()
	broker, err := httpapi.New(s.url, httpapi.Options{Op: "test"})
	assert.Must(t, err)
	t.Cleanup(broker.Close)
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.Must(t, err)
	_, port, err := net.SplitHostPort(lis.Addr().String())
	assert.Must(t, err)
	f, token := console.NewFront(broker, port, readOnly)
	web := &http.Server{Handler: f, ReadHeaderTimeout: time.Minute}
	go web.Serve(lis) // it ends with Close
	t.Cleanup(func() { web.Close() })
	url := "http://" + lis.Addr().String()
	return local{url, url + "/console/#token=" + token}
}

// The link of tidegate console works once. The session survives a reload of the page, and ends with
// the cookie or with the end at the server; then the page requests credentials and shows no data.
func TestLinkOfTheCommand(t *testing.T) {
	s := start(t, siteOptions{})
	s.populate(1)
	l := startLocal(t, s, false)
	b := open(t, l.url)
	b.run(navigate(l.link))
	b.ready()
	b.is("overview")
	at := value[string](b, `location.href`)
	stored := value[string](b, `JSON.stringify(localStorage)`)
	cookie := value[string](b, `document.cookie`)
	token := l.link[strings.Index(l.link, "=")+1:]
	if strings.Contains(at, token) || strings.Contains(stored, token) || cookie != "" {
		t.Errorf("the address is %s, the storage %s, scripts see the cookie %q", at, stored, cookie)
	}
	b.load("")
	b.is("overview")
	b.clean()

	again := open(t, l.url)
	again.run(navigate(l.link))
	again.wait(`document.querySelector('main[data-page=sign-in] [role=alert]:not([hidden])')?.textContent.includes('works once')`)

	b.eval(`fetch('/v1/session', {method: 'DELETE', headers: {'X-Tidegate-Session': Object.entries(localStorage).find(([k]) => k.endsWith('session'))[1]}}).then((r) => r.status)`, nil)
	b.wait(`document.querySelector('main[data-page=sign-in]')`)
	text := value[string](b, `document.body.innerText`)
	assert.That(t, !strings.Contains(text, "normal"), "after the end of the session the page still shows data: %s", text)
}

// With --read-only the page shows no action that changes something.
func TestReadOnlyLink(t *testing.T) {
	s := start(t, siteOptions{})
	s.populate(1)
	l := startLocal(t, s, true)
	b := open(t, l.url)
	b.run(navigate(l.link))
	b.ready()
	for _, p := range pages {
		b.visit(p.fragment)
		for _, a := range b.actions() {
			t.Errorf("%s shows the action %s", p.fragment, a)
		}
	}
	b.clean()
}

// attack is a page of another origin that tries to use the session of the console: with forms,
// fetches and images, with the cookie that all ports of this machine share.
const attack = `<script>
const at = %q;
const say = (text) => { document.title += ' ' + text; };
(async () => {
  for (const [method, path, type] of [['POST', '/v1/topics/normal/purge', 'text/plain'], ['DELETE', '/v1/topics/normal', ''], ['PUT', '/v1/topics/stolen', 'application/json'],
    ['POST', '/v1/topics/normal/messages', 'text/plain'], ['DELETE', '/v1/session', ''], ['POST', '/v1/session', '']]) {
    for (const mode of ['cors', 'no-cors']) {
      try {
        const r = await fetch(at + path, {method, mode, credentials: 'include', headers: mode === 'cors' && type ? {'Content-Type': type} : {}, body: method === 'DELETE' ? undefined : '{}'});
        if (r.type !== 'opaque') say(method + path + r.status);
      } catch {}
    }
  }
  try { const r = await fetch(at + '/v1/topics', {credentials: 'include'}); say('read' + r.status + (await r.text())); } catch {}
  const frame = document.createElement('iframe');
  frame.name = 'sink';
  document.body.append(frame);
  for (const type of ['application/x-www-form-urlencoded', 'text/plain', 'multipart/form-data']) {
    const f = document.createElement('form');
    f.method = 'post'; f.action = at + '/v1/topics/normal/purge'; f.enctype = type; f.target = 'sink';
    const i = document.createElement('input');
    i.name = '{"a":"'; i.value = '"}';
    f.append(i); document.body.append(f); f.submit();
    await new Promise((ok) => frame.addEventListener('load', ok, {once: true}));
  }
  say('cookie:' + document.cookie + ':');
  say('done');
})();
</script>`

// A page on another port of this machine shares the cookie of the session. It can neither change
// nor read anything, because it lacks the other half.
func TestOtherOriginsOfThisMachine(t *testing.T) {
	for name, begin := range map[string]func(*testing.T) (*site, *tab){
		"local console": func(t *testing.T) (*site, *tab) {
			t.Helper()
			s := start(t, siteOptions{})
			s.populate(1)
			l := startLocal(t, s, false)
			b := open(t, l.url)
			b.run(navigate(l.link))
			b.ready()
			return s, b
		},
		"broker with access keys": func(t *testing.T) (*site, *tab) {
			t.Helper()
			s, _ := guarded(t)
			b := open(t, s.url)
			b.load("")
			b.signIn("root")
			return s, b
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, b := begin(t)
			status := value[int](b, `fetch('../v1/overview').then((r) => r.status)`)
			assert.Equal(t, "a request with the cookie and without the header", status, http.StatusUnauthorized)
			before, err := s.Topic("normal")
			assert.Must(t, err)
			other := startStranger(t)
			other.page("/", fmt.Sprintf(attack, b.origin))
			evil := b.beside()
			evil.origin = other.url
			evil.run(navigate(other.url + "/"))
			evil.wait(`document.title.endsWith('done')`)
			title := value[string](evil, `document.title`)
			assert.Equal(t, "the other page got", title, "stranger cookie:: done")
			after, err := s.Topic("normal")
			if err != nil || after.StoredMessages != before.StoredMessages {
				t.Errorf("the topic has %d messages, it had %d; %v", after.StoredMessages, before.StoredMessages, err)
			}
			assert.That(t, assert.Err(s.Topic("stolen")) != nil, "the other page created a topic")
			b.load("") // the session still holds
			b.is("overview")
		})
	}
}

// fast makes the timers of the page run 1 000 times as fast.
const fast = `{ const later = window.setTimeout; window.setTimeout = (f, ms, ...rest) => later(f, (ms || 0) / 1000, ...rest); }`

// Eight hours of samples, at the interval of a minute, leave the heap flat and below 50 MB.
func TestHeapAfterHours(t *testing.T) {
	const samples = 8 * 60
	s := start(t, siteOptions{})
	s.populate(100)
	b := open(t, s.url)
	b.run(command(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: fast}))
	b.load("#/topics")
	b.eval(`(() => { const e = document.querySelector('[name=interval]'); e.value = '60000'; e.dispatchEvent(new Event('change')); })()`, nil)
	count := func() int {
		n := 0
		for _, r := range b.sent() {
			if r != "" {
				n++
			}
		}
		return n
	}
	heap := func() (mb float64) {
		b.eval(`(gc(), gc(), performance.memory.usedJSHeapSize / 1e6)`, &mb)
		return mb
	}
	count()
	var early float64
	for total := 0; total < samples; {
		b.run(chromedp.Evaluate[chromedp.Void](`new Promise((ok) => requestAnimationFrame(() => setTimeout(ok, 200000)))`, chromedp.EvalAwaitPromise))
		total += count()
		if early == 0 && total > samples/4 {
			early = heap()
		}
	}
	late := heap()
	t.Logf("the heap has %.1f MB after two hours of samples and %.1f MB after eight", early, late)
	if late > 50 || late > early+max(1, early/10) {
		t.Errorf("the heap has %.1f MB after eight hours and %.1f MB after two, want no growth and at most 50 MB", late, early)
	}
	rows := value[int](b, `document.getElementsByTagName('*').length`)
	assert.That(t, rows <= 3000, "the page has %d elements", rows)
}
