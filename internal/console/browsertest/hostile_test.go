package browsertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// hostile has texts of an attacker, each with the text that the page must show.
var hostile = []struct{ body, shown string }{
	{`<img src=x onerror="window.pwned = 1">`, `<img src=x onerror="window.pwned = 1">`},
	{`</script><script>window.pwned = 1</script>`, `</script><script>window.pwned = 1</script>`},
	{`<svg/onload=window.pwned=1>`, `<svg/onload=window.pwned=1>`},
	{`javascript:window.pwned=1`, `javascript:window.pwned=1`},
	{"\x1b[31mred\x07", `\x1b[31mred\x07`},
	{"invoice\u202egnp.exe", `invoice\u202egnp.exe`},
	{"total\u200f\u2066 100\u2069\ufeff", `total\u200f\u2066 100\u2069\ufeff`},
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
		text := value[string](b, `document.querySelector('main').textContent`)
		if i < len(hostile) {
			for _, want := range []string{hostile[i].shown, "<b>tag", "<img/src=x/onerror=window.pwned=1>", `<img src=x onerror="window.pwned = 1">`} {
				assert.That(t, strings.Contains(text, want), "message %d does not show %q: %.600q", i, want, text)
			}
		}
		if n := len(text); n > 128<<10 {
			t.Errorf("message %d: the page has %d bytes of text at once", i, n)
		}
		b.clean()
	}
	// A download is a file that no program opens without a user.
	b.visit("#/messages/hostile/0/1")
	b.eval(`{ const make = URL.createObjectURL; URL.createObjectURL = (blob) => { window.saved = blob; return make.call(URL, blob); }; null }`, nil)
	b.click("download-body", "")
	b.wait(`window.saved`)
	saved := value[string](b, `window.saved.type`)
	text := value[string](b, `window.saved.text()`)
	if saved != "application/octet-stream" || text != hostile[1].body {
		t.Errorf("the download is %q of type %q", text, saved)
	}
	b.visit("#/messages?topic=hostile")
	pwned := value[bool](b, taken)
	assert.That(t, !pwned, "a text of an attacker became an element, or ran")
	// An address is a text of an attacker too.
	for _, fragment := range []string{`#/topics/<img src=x onerror="window.pwned=1">`, `#/groups/%3Cimg%20src=x%20onerror=window.pwned=1%3E`, `#/messages?topic=%22%3E%3Cscript%3Ewindow.pwned=1%3C/script%3E`, `#/%`, `#/topics/%ff`} {
		b.visit(fragment)
		b.clean()
	}
	b.eval(`window.pwned !== undefined`, &pwned)
	assert.That(t, !pwned, "an address ran as a script")
}

// fail receives a message over HTTP as a client, and reports a failure with a reason.
func (s *site) fail(group, topic, reason, client string) {
	s.t.Helper()
	post := func(path string, body any) (out struct{ Messages []struct{ Handle string } }) {
		s.t.Helper()
		text := assert.Value(json.Marshal(body))(s.t)
		r := assert.Value(http.NewRequestWithContext(s.t.Context(), "POST", s.url+"/v1/groups/"+group+path, bytes.NewReader(text)))(s.t)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("x-mq-client-id", client)
		resp := assert.Value(http.DefaultClient.Do(r))(s.t)
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || resp.StatusCode != http.StatusOK {
			s.t.Fatal(path, resp.Status, err)
		}
		return out
	}
	ds := post("/topics/"+topic+"/receive", map[string]any{"wait": "10s", "invisible_duration": "1h"}).Messages
	assert.MustThat(s.t, len(ds) == 1, "received %d messages of %s, want 1", len(ds), topic)
	post("/retry", map[string]any{"handle": ds[0].Handle, "reason": reason})
}

// taken reports whether a text of an attacker ran, or became an element.
const taken = `window.pwned !== undefined || ({}).pwned !== undefined || document.querySelectorAll('main img, main script, main iframe, main svg[onload], main [onerror], a[href^="javascript:"]').length > 0`

// The reasons of failures are texts of applications: of dead letters, retries and parked message
// groups. The same holds for names of message groups and clients. Each page shows them as text.
func TestHostileReasons(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("hostile", settings.Topic{Queues: 1})
	s.topic("ordered", settings.Topic{Type: "FIFO", Queues: 1})
	s.group("g", settings.Group{})
	s.group("parking", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark})
	const client = `<img src=x onerror="window.pwned=1">`
	reason := func(i int) string { return hostile[i].body }
	s.bury("g", "hostile", len(hostile), reason, func(i int) *tidegate.Message {
		return &tidegate.Message{Topic: "hostile", Body: []byte{byte('a' + i)}}
	})
	for i, h := range hostile {
		s.send(&tidegate.Message{Topic: "hostile", Body: []byte("x")},
			&tidegate.Message{Topic: "ordered", Body: []byte("x"), MessageGroup: fmt.Sprint(i, strings.NewReplacer("\x1b", "", "\x07", "").Replace(h.body))}) // the broker rejects control characters
	}
	for topic, group := range map[string]string{"hostile": "g", "ordered": "parking"} {
		for i := range hostile {
			s.fail(group, topic, hostile[i].body, client)
		}
	}
	b := open(t, s.url)
	b.load("")
	// shows is the number of reasons that a page shows.
	for _, p := range []struct {
		name, fragment string
		shows          int
	}{
		{"overview", "#/overview", 0},
		{"dead-letters", "#/dead-letters", 0},
		{"dead-letters-one", "#/dead-letters/g", len(hostile)},
		{"groups-one", "#/groups/g", len(hostile)},
		{"groups-one", "#/groups/parking", len(hostile)},
		{"groups-part", "#/groups/g/hostile", 0},
		{"groups-part", "#/groups/parking/ordered", 0},
		{"parked", "#/parked", 0},
		{"parked-one", "#/parked/parking", len(hostile)},
		{"trace", "#/trace?topic=hostile&id=" + fmt.Sprintf("%032X", sent.Load()-1), 1},
		{"audit", "#/audit?key=%3Cimg+src%3Dx+onerror%3D%22window.pwned%3D1%22%3E", 0},
	} {
		b.visit(p.fragment)
		b.is(p.name)
		text := value[string](b, `document.querySelector('main').textContent`)
		shown := 0
		for _, h := range hostile {
			if strings.Contains(text, h.shown) {
				shown++
			}
		}
		assert.That(t, shown >= p.shows, "%s shows %d reasons, want %d: %.1500q", p.fragment, shown, p.shows, text)
		if strings.ContainsAny(text, "\x1b\x07\u202e\u200f\u2066\u2069\ufeff") {
			t.Errorf("%s has a control character in %.1500q", p.fragment, text)
		}
		b.clean()
	}
	page, err := s.DeadLetters("g", status.DeadLetterQuery{})
	if err != nil || len(page.DeadLetters) != len(hostile) {
		t.Fatal(len(page.DeadLetters), err)
	}
	for _, l := range page.DeadLetters {
		b.visit("#/dead-letters/g/" + l.MessageID)
		text := value[string](b, `document.querySelector('main .reason').textContent`)
		if !slices.ContainsFunc(hostile, func(h struct{ body, shown string }) bool { return strings.Contains(text, h.shown) }) {
			t.Errorf("the page of a dead letter shows the reason %q", text)
		}
		b.clean()
	}
	pwned := value[bool](b, taken)
	assert.That(t, !pwned, "a text of an attacker became an element, or ran")
}
