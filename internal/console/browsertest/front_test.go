package browsertest

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/internal/console"
	"github.com/tidegate/tidegate/internal/httpapi"
)

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
