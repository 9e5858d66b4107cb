package browsertest

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
)

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
