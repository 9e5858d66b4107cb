package browsertest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
)

// A page recovers within 5 s of the restart of a broker that was killed.
func TestRecoversAfterRestart(t *testing.T) {
	o := siteOptions{broker: broker.Options{Dir: t.TempDir()}}
	s := launch(t, o)
	s.topic("before", settings.Topic{})
	b := open(t, s.url)
	b.load("#/topics")
	b.wait(`document.querySelector('main').innerText.includes('before')`)
	s.kill()
	b.wait(`document.querySelector('main [role=alert]')`)
	o.addr = s.addr
	s = launch(t, o)
	t.Cleanup(s.kill)
	s.topic("after", settings.Topic{})
	began := time.Now()
	b.wait(`document.querySelector('main').innerText.includes('after') && !document.querySelector('main [role=alert]')`)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the page recovered after %v, want at most 5 s", took)
	}
	var state string
	b.eval(`document.querySelector('[data-live]').dataset.live`, &state)
	assert.Equal(t, "after the restart the badge is", state, "ok")
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
	b.wait(`document.querySelector('dialog[open] [name=body]')`)
	b.eval(`document.querySelector('dialog [name=body]').value = 'one'; null`, nil)
	losing.Store(true)
	b.click("confirm", "")
	b.wait(`document.querySelector('dialog [role=alert]:not([hidden])')`)
	assert.That(t, lost.Load() != 0, "no response was lost")
	expect("the lost response", 1)
	losing.Store(false)
	b.click("confirm", "")
	b.wait(`!document.querySelector('dialog')`)
	expect("the second confirmation", 1)

	// Another body in the same dialog is another message.
	b.click("send", "orders")
	b.wait(`document.querySelector('dialog[open] [name=body]')`)
	b.eval(`document.querySelector('dialog [name=body]').value = 'two'; null`, nil)
	losing.Store(true)
	b.click("confirm", "")
	b.wait(`document.querySelector('dialog [role=alert]:not([hidden])')`)
	losing.Store(false)
	b.eval(`document.querySelector('dialog [name=body]').value = 'three'; null`, nil)
	b.click("confirm", "")
	b.wait(`!document.querySelector('dialog')`)
	expect("a changed body", 3)
	b.clean()
}
