package browsertest

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker/server"
)

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
