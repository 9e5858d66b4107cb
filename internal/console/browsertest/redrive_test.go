package browsertest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A redrive of many letters survives the end of its tab: half of it is done, and the response of
// the last request never arrives. Another tab continues it, and each letter goes back once.
func TestRedriveContinuesInAnotherTab(t *testing.T) {
	const letters, bound = 100_000, 1000 // bound is that of one request of the page
	var requests atomic.Int64
	half := make(chan struct{})
	s := start(t, siteOptions{wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/redrive") && requests.Add(1) == letters/bound/2 {
				h.ServeHTTP(httptest.NewRecorder(), r)
				close(half)
				<-r.Context().Done()
				panic(http.ErrAbortHandler)
			}
			h.ServeHTTP(w, r)
		})
	}})
	s.topic("orders", settings.Topic{})
	s.group("g", settings.Group{})
	s.bury("g", "orders", letters, func(int) string { return "no such account" },
		func(i int) *tidegate.Message {
			return &tidegate.Message{Topic: "orders", Body: fmt.Append(nil, i)}
		})
	b := open(t, s.url)
	b.load("#/topics")
	worker := b.beside()
	worker.load("#/dead-letters/g")
	worker.click("redrive", "g")
	worker.wait(fmt.Sprintf(`document.querySelector('dialog [data-count="%d"]')`, letters))
	worker.click("confirm", "")
	<-half
	worker.end()

	b.visit("#/dead-letters/g")
	b.click("job-continue", "g")
	b.wait(`document.querySelector('.job.ok')`)
	text := value[string](b, `document.querySelector('.job').innerText`)
	if !strings.Contains(strings.NewReplacer(",", "", "\u202f", "", "\u00a0", "").Replace(text), fmt.Sprintf("%d of %d", letters, letters)) {
		t.Errorf("the job shows %q", text)
	}
	if dead, err := s.Topic("%DLQ%g"); err != nil || dead.StoredMessages != 0 {
		t.Errorf("%d dead letters are left; %v", dead.StoredMessages, err)
	}
	seen := map[string]int{}
	for _, d := range s.take("g", "orders", 2*letters) {
		seen[string(d.Message.Body)]++
	}
	twice := 0
	for _, n := range seen {
		if n != 1 {
			twice++
		}
	}
	if len(seen) != letters || twice > 0 {
		t.Errorf("%d of %d letters came back, %d of them more than once", len(seen), letters, twice)
	}
	b.clean()
}

// An edit that breaks a JSON body is sent only after a second confirmation. Then links lead to the
// new message and back to the first one, and the overview no longer lists the letter.
func TestEditThatBreaksJSONAsks(t *testing.T) {
	s := start(t, siteOptions{})
	s.letter(&tidegate.Message{ID: "ORDER", Topic: "orders", Body: []byte(`{"a":1}`)})
	b := open(t, s.url)
	b.load("#/dead-letters/g")
	b.eval(`document.querySelector('main td a[href^="#/dead-letters/g/"]').click()`, nil)
	b.click("edit-redrive", "")
	b.fill("body", `'{"a":1'`)
	b.click("confirm", "")
	b.wait(`document.querySelector('dialog [role=alert]')?.textContent.includes('at position 6')`)
	if dead, err := s.Topic("%DLQ%g"); err != nil || dead.StoredMessages != 1 {
		t.Fatalf("%d dead letters are left after the first confirmation, want 1; %v", dead.StoredMessages, err)
	}
	b.confirm()
	const anew = `a[href*="id=ORDER.redrive-1"]`
	b.wait("document.querySelector('#notices " + anew + "')")
	b.eval("document.querySelector('#notices "+anew+"').click(); null", nil)
	b.wait(`document.querySelector('main').innerText.includes('It was sent back for the dead letter of message ORDER.')`)
	b.eval(`document.querySelector('main a[href*="id=ORDER&"], main a[href$="id=ORDER"]').click(); null`, nil)
	b.wait(`document.querySelector('main').innerText.includes('Its dead letter was edited and sent back as ORDER.redrive-1.')`)
	b.wait("document.querySelector('main .fates " + anew + "')")
	if ds := s.take("g", "orders", 1); len(ds) != 1 || string(ds[0].Message.Body) != `{"a":1` {
		t.Errorf("the group received %d messages after the second confirmation, want the changed one", len(ds))
	}
	// The overview no longer lists the letters that were sent back.
	b.visit("#/overview")
	b.wait(`document.querySelector('.state.ok')`)
	b.visit("#/audit")
	b.wait(`document.querySelector('main').innerText.includes('redriveDeadLetters: edited, and stored as ORDER.redrive-1')`)
	b.clean()
}

// An edited letter with a long ID gets the hash of the ID in the new one, which would be too long
// otherwise. The second edit continues the number of the first.
func TestEditShortensLongIDs(t *testing.T) {
	s := start(t, siteOptions{})
	long := strings.Repeat("i", 250)
	s.letter(&tidegate.Message{ID: long, Topic: "orders", Body: []byte("17")})
	b := open(t, s.url)
	first := fmt.Sprintf("%x", sha256.Sum256([]byte(long)))
	for n := 1; n <= 2; n++ {
		b.load("#/dead-letters/g")
		b.eval(`document.querySelector('main td a[href^="#/dead-letters/g/"]').click()`, nil)
		b.click("edit-redrive", "")
		b.wait(`document.querySelector('dialog[open] [name=body]')`)
		b.eval(fmt.Sprintf(`document.querySelector('dialog [name=body]').value = '%d'; null`, n), nil)
		b.confirm()
		want := fmt.Sprintf("%s.redrive-%d", first, n)
		ds := s.take("g", "orders", 1)
		if len(ds) != 1 || ds[0].Message.ID != want {
			t.Fatalf("the group received %d messages after edit %d, want one with the ID %s; the page: %s", len(ds), n, want, b.text())
		}
		if _, err := s.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "still no account"}); err != nil {
			t.Fatal(err)
		}
	}
	b.clean()
}

// A broker that knows neither edits nor sent_as loses the letter too after an edit. It cannot send
// to the group alone: that is an error, and the letter stays.
func TestEditOnOlderBroker(t *testing.T) {
	var rejected, unknown atomic.Int64
	s := start(t, siteOptions{wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodDelete && strings.Contains(r.URL.RawQuery, "sent_as=") {
				rejected.Add(1)
				r.URL.RawQuery = strings.ReplaceAll(r.URL.RawQuery, "sent_as=", "unknown=")
			}
			if strings.HasSuffix(r.URL.Path, "/redrive") {
				text, _ := io.ReadAll(r.Body)
				unknown.Add(int64(bytes.Count(text, []byte(`"edit":`))))
				text = bytes.ReplaceAll(text, []byte(`"edit":`), []byte(`"tide":`))
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
			}
			h.ServeHTTP(w, r)
		})
	}})
	s.letter(&tidegate.Message{ID: "m", Topic: "orders", Keys: []string{"k"}, Properties: map[string]string{"p": "v", "q": "w"}, Body: []byte("17")})
	s.take("h", "orders", 1)
	b := open(t, s.url)
	b.load("#/dead-letters/g/m")
	b.click("edit-redrive", "")
	b.wait(`document.querySelector('dialog[open] [name=body]')`)
	b.eval(`document.querySelector('dialog [name=body]').value = '18'; document.querySelector('dialog [name="name 0"]').value = ''; document.querySelector('dialog [name="value 0"]').value = ''; document.querySelector('dialog [name=only]').checked = true; null`, nil)
	b.click("confirm", "")
	b.wait(`document.querySelector('dialog [role=alert]')?.textContent.includes('tide')`)
	if dead, err := s.Topic("%DLQ%g"); err != nil || dead.StoredMessages != 1 {
		t.Fatalf("%d dead letters are left after the error, want 1; %v", dead.StoredMessages, err)
	}
	b.eval(`document.querySelector('dialog [name=only]').checked = false; null`, nil)
	b.confirm()
	if dead, err := s.Topic("%DLQ%g"); err != nil || dead.StoredMessages != 0 || rejected.Load() != 1 || unknown.Load() != 2 {
		t.Errorf("%d dead letters are left after %d rejected edits and %d rejected removals, want none after 2 and one; %v", dead.StoredMessages, unknown.Load(), rejected.Load(), err)
	}
	if ds := s.take("g", "orders", 1); len(ds) != 1 || ds[0].Message.ID != "m.redrive-1" || string(ds[0].Message.Body) != "18" || len(ds[0].Message.Keys) != 1 ||
		ds[0].Message.Properties["p"] != "" || ds[0].Message.Properties["q"] != "w" {
		t.Errorf("the group received %+v, want the edited message", ds)
	}
}

// "Edit and send back" asks before it sends a message without a change, and again after each change
// that was taken back. It keeps the line ends of a body that nobody edited.
func TestEditWithoutAChangeAsks(t *testing.T) {
	s := start(t, siteOptions{})
	s.letter(&tidegate.Message{ID: "m", Topic: "orders", Tag: "t", Keys: []string{"k", "l"}, Properties: map[string]string{"p": "v\r\nw"}, Body: []byte("a\r\nb")})
	b := open(t, s.url)
	b.load("#/dead-letters/g/m")
	b.click("edit-redrive", "")
	b.wait(`document.querySelector('dialog[open] [name=body]')`)
	var warned bool
	if b.eval(`!!document.querySelector('dialog [data-receivers], dialog [name=only]')`, &warned); warned {
		t.Error("the dialog names other groups than the only one")
	}
	asked := `document.querySelector('dialog [role=alert]:not([hidden])')?.textContent === 'Nothing is changed. Press the button again to send it back as it is.'`
	stays := func(when string) {
		t.Helper()
		if dead, err := s.Topic("%DLQ%g"); err != nil || dead.StoredMessages != 1 {
			t.Fatalf("%d dead letters are left %s, want 1; %v", dead.StoredMessages, when, err)
		}
	}
	b.click("confirm", "")
	b.wait(asked)
	stays("after the first confirmation")
	b.eval(`document.querySelector('dialog [name=tag]').value = 'a|b'; null`, nil) // the broker rejects it
	b.click("confirm", "")
	b.wait(`document.querySelector('dialog [role=alert]:not([hidden])')?.textContent.includes('a|b')`)
	stays("after an invalid tag")
	b.eval(`document.querySelector('dialog [name=tag]').value = ''; document.querySelector('dialog [name=keys]').value += '\n\n'; null`, nil)
	b.fill("tag", `'t'`)
	b.click("confirm", "")
	b.wait(asked)
	stays("after a change that was taken back")
	b.confirm()
	ds := s.take("g", "orders", 1)
	if len(ds) != 1 || string(ds[0].Message.Body) != "a\r\nb" || ds[0].Message.Tag != "t" || len(ds[0].Message.Keys) != 2 || ds[0].Message.Properties["p"] != "v\r\nw" {
		t.Errorf("the group received %+v, want the message as it was", ds)
	}
	b.clean()
}

// The dialog of an edit names the groups that receive the message before its button is pressed.
// Tag, keys and properties can change, and the message can go to the failed group alone. Then its
// trace leads to the new message.
func TestEditOfFieldsToOneGroup(t *testing.T) {
	s := start(t, siteOptions{})
	s.letter(&tidegate.Message{ID: "m", Topic: "orders", Tag: "t", Keys: []string{"k"}, Properties: map[string]string{"p": "v", "q": "w"}, Body: []byte("17\r\n")})
	assert.MustEqual(t, "the other group received messages", len(s.take("h", "orders", 1)), 1)
	b := open(t, s.url)
	b.load("#/dead-letters/g/m")
	b.click("edit-redrive", "")
	b.wait(`document.querySelector('dialog[open] [data-receivers]')?.textContent.endsWith('All consumer groups of orders receive the changed message, also those that handled it before: g, h.')`)
	b.click("add-property", "")
	b.eval(`const set = (name, value) => { document.querySelector('dialog [name="' + name + '"]').value = value; };
		set('body', '18\n'); set('tag', ''); set('keys', 'x y\nz'); set('value 0', 'changed'); set('name 1', ''); set('value 1', '');
		set('name 2', 'new'); set('value 2', 'a\nb'); document.querySelector('dialog [name=only]').checked = true; null`, nil)
	b.confirm()
	ds := s.take("g", "orders", 1)
	assert.MustThat(t, len(ds) == 1, "the group received %d messages; the page: %s", len(ds), b.text())
	m := ds[0].Message
	if m.ID != "m.redrive-1" || string(m.Body) != "18\r\n" || m.Tag != "" || strings.Join(m.Keys, ",") != "x y,z" || m.Properties["p"] != "changed" || m.Properties["q"] != "" || m.Properties["new"] != "a\nb" {
		t.Errorf("the group received %+v", m)
	}
	if ds := s.take("h", "orders", 1); len(ds) > 0 {
		t.Errorf("the other group received %+v", ds[0].Message)
	}
	b.visit("#/trace?topic=orders&id=m")
	b.wait(`document.querySelector('main .fates a[href*="id=m.redrive-1"][href*="RETRY"]')`)
	b.clean()
}

// Letters of two topics can have one ID. An edit of one of them sends and removes this one alone,
// also on a broker that does not know edits.
func TestEditOfOneOfTwoLettersWithOneID(t *testing.T) {
	for _, older := range []bool{false, true} {
		t.Run(fmt.Sprint("older broker: ", older), func(t *testing.T) {
			s := start(t, siteOptions{wrap: func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if older && strings.HasSuffix(r.URL.Path, "/redrive") {
						w.WriteHeader(http.StatusBadRequest)
						return
					}
					h.ServeHTTP(w, r)
				})
			}})
			s.group("g", settings.Group{})
			for _, topic := range []string{"orders", "returns"} {
				s.topic(topic, settings.Topic{})
				s.bury("g", topic, 1, func(int) string { return "no such account" },
					func(int) *tidegate.Message { return &tidegate.Message{ID: "m", Topic: topic, Body: []byte("17")} })
			}
			b := open(t, s.url)
			b.load("#/dead-letters/g/m")
			b.wait(`document.querySelectorAll('[data-action=edit-redrive]').length === 2`)
			b.eval(`document.querySelectorAll('[data-action=edit-redrive]')[1].click(); null`, nil)
			b.fill("body", `'18'`)
			b.confirm()
			page, err := s.DeadLetters("g", status.DeadLetterQuery{})
			assert.MustThat(t, err == nil && len(page.DeadLetters) == 1, "%+v, %v, want one letter", page, err)
			sent := map[string]string{"orders": "returns", "returns": "orders"}[page.DeadLetters[0].Origin.Topic]
			if ds := s.take("g", sent, 2); len(ds) != 1 || string(ds[0].Message.Body) != "18" {
				t.Errorf("%d messages of %s came, want the edited one; the letter of %s is left", len(ds), sent, page.DeadLetters[0].Origin.Topic)
			}
		})
	}
}
