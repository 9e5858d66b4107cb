package browsertest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
)

// hostile are texts of an attacker, and what the page has to show of them.
var hostile = []struct{ body, shown string }{
	{`<img src=x onerror="window.pwned = 1">`, `<img src=x onerror="window.pwned = 1">`},
	{`</script><script>window.pwned = 1</script>`, `</script><script>window.pwned = 1</script>`},
	{`<svg/onload=window.pwned=1>`, `<svg/onload=window.pwned=1>`},
	{`javascript:window.pwned=1`, `javascript:window.pwned=1`},
	{"\x1b[31mred\x07", `\x1b[31mred\x07`},
	{"invoice\u202egnp.exe", `invoice\u202egnp.exe`},
	{`{"__proto__":{"pwned":1},"n":12345678901234567890.10}`, `12345678901234567890.10`},
}

// No text of an attacker runs as a script or disappears: bodies, keys, tags and properties of
// messages.
func TestHostileText(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("hostile", settings.Topic{Queues: 1})
	s.group("g", settings.Group{})
	for _, h := range hostile {
		s.send(&tidegate.Message{Topic: "hostile", Body: []byte(h.body), Tag: "<b>tag", Keys: []string{"<img/src=x/onerror=window.pwned=1>"},
			Properties: map[string]string{"p": `<img src=x onerror="window.pwned = 1">`}})
	}
	s.send(
		&tidegate.Message{Topic: "hostile", Body: bytes.Repeat([]byte("x"), 1<<20)},
		&tidegate.Message{Topic: "hostile", Body: []byte("\xff\xfe invalid \xc3\x28")},
	)
	b := open(t, s.url)
	b.load("#/messages?topic=hostile")
	for i := range len(hostile) + 2 {
		b.visit(fmt.Sprintf("#/messages/hostile/0/%d", i))
		b.is("messages-part")
		var text string
		b.eval(`document.querySelector('main').textContent`, &text)
		if i < len(hostile) {
			for _, want := range []string{hostile[i].shown, "<b>tag", "<img/src=x/onerror=window.pwned=1>", `<img src=x onerror="window.pwned = 1">`} {
				if !strings.Contains(text, want) {
					t.Errorf("message %d does not show %q: %.600q", i, want, text)
				}
			}
		}
		if n := len(text); n > 128<<10 {
			t.Errorf("message %d: the page has %d bytes of text at once", i, n)
		}
		b.clean()
	}
	b.visit("#/messages?topic=hostile")
	var pwned bool
	b.eval(`window.pwned !== undefined || ({}).pwned !== undefined || document.querySelectorAll('main img, main script, main svg[onload], a[href^="javascript:"]').length > 0`, &pwned)
	if pwned {
		t.Error("a text of an attacker became an element, or ran")
	}
	// An address is a text of an attacker too.
	for _, fragment := range []string{`#/topics/<img src=x onerror="window.pwned=1">`, `#/groups/%3Cimg%20src=x%20onerror=window.pwned=1%3E`, `#/messages?topic=%22%3E%3Cscript%3Ewindow.pwned=1%3C/script%3E`, `#/%`, `#/topics/%ff`} {
		b.visit(fragment)
		b.clean()
	}
	b.eval(`window.pwned !== undefined`, &pwned)
	if pwned {
		t.Error("an address ran as a script")
	}
}
