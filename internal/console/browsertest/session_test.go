package browsertest

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker/server"
)

// When its session ends, an open page removes its data and requests credentials. The broker ends a
// session by a logout, by each change of its key, by too many other sessions, and after a time.
func TestEndOfSession(t *testing.T) {
	without := func(c server.AccessConfig) server.AccessConfig {
		c.Keys = slices.DeleteFunc(c.Keys, func(k server.Key) bool { return k.Name == "root" })
		return c
	}
	other := func(c server.AccessConfig) server.AccessConfig {
		for i := range c.Keys {
			c.Keys[i].Secrets = []server.Secret{server.NewSecret("another-" + c.Keys[i].Name)}
		}
		return c
	}
	access := func(change func(server.AccessConfig) server.AccessConfig) func(*testing.T, *site, *tab) {
		return func(t *testing.T, s *site, _ *tab) {
			t.Helper()
			assert.Must(t, s.server.SetAccess(change(roles())))
		}
	}
	var expired atomic.Bool
	expiring := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if expired.Load() && r.Method != http.MethodPost {
				r.Header.Del("Cookie") // for the broker, a session that has expired is none
			}
			h.ServeHTTP(w, r)
		})
	}
	for name, c := range map[string]struct {
		end  func(*testing.T, *site, *tab)
		back bool // the same secret begins a new session
	}{
		"logout in another tab": {func(_ *testing.T, _ *site, b *tab) {
			second := b.beside()
			second.load("#/topics")
			second.click("sign-out", "")
			second.wait(`document.querySelector('main[data-page=sign-in]')`)
		}, true},
		"the key is removed": {access(without), false},
		"another secret":     {access(other), false},
		"twenty other sessions of the key": {func(t *testing.T, s *site, b *tab) {
			t.Helper()
			b.click("pause", "") // the session that was not used for the longest time ends
			for range 20 {
				if status, text := s.ask(t, "root", "POST session"); status != http.StatusOK {
					t.Fatal(status, text)
				}
			}
			b.click("pause", "")
		}, true},
		"it expires": {func(*testing.T, *site, *tab) { expired.Store(true) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := guarded(t, expiring)
			b := open(t, s.url)
			b.load("")
			b.signIn("root")
			b.visit("#/topics/normal")
			stored := value[string](b, `JSON.stringify(localStorage) + JSON.stringify(sessionStorage)`)
			cookie := value[string](b, `document.cookie`)
			if strings.Contains(stored, "sesame") || cookie != "" {
				t.Errorf("the browser stores %s, and scripts see the cookie %q", stored, cookie)
			}
			c.end(t, s, b)
			b.wait(`document.querySelector('main[data-page=sign-in]')`)
			text := value[string](b, `document.body.innerText`)
			if strings.Contains(text, "normal") {
				t.Errorf("after the end of the session the page still shows data: %s", text)
			}
			expired.Store(false)
			if c.back {
				b.signIn("root")
				b.wait(`document.querySelector('main[data-page=topics-one][data-ready]')`)
			}
			b.clean()
		})
	}
}
