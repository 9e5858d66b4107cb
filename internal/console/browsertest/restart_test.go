package browsertest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker/settings"
)

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
