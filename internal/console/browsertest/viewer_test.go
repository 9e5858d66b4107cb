package browsertest

import (
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

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
