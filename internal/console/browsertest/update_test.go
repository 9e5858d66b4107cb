package browsertest

import (
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
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
