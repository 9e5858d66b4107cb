package browsertest

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
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
	var text string
	b.eval(`document.querySelector('.job').innerText`, &text)
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
	s.topic("orders", settings.Topic{})
	s.group("g", settings.Group{})
	s.bury("g", "orders", 1, func(int) string { return "no such account" },
		func(int) *tidegate.Message {
			return &tidegate.Message{ID: "ORDER", Topic: "orders", Body: []byte(`{"a":1}`)}
		})
	b := open(t, s.url)
	b.load("#/dead-letters/g")
	b.eval(`document.querySelector('main td a[href^="#/dead-letters/g/"]').click()`, nil)
	b.click("edit-redrive", "")
	b.wait(`document.querySelector('dialog[open] [name=body]')`)
	b.eval(`document.querySelector('dialog [name=body]').value = '{"a":1'; null`, nil)
	b.click("confirm", "")
	b.wait(`document.querySelector('dialog [role=alert]')?.textContent.includes('at position 6')`)
	if dead, err := s.Topic("%DLQ%g"); err != nil || dead.StoredMessages != 1 {
		t.Fatalf("%d dead letters are left after the first confirmation, want 1; %v", dead.StoredMessages, err)
	}
	b.click("confirm", "")
	b.wait(`!document.querySelector('dialog')`)
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
	b.wait(`document.querySelector('main').innerText.includes('purgeDeadLetters: the client reports that it sent the message again as ')`)
	b.clean()
}

// An edited letter with a long ID gets the hash of the ID in the new one, which would be too long
// otherwise. The second edit continues the number of the first.
func TestEditShortensLongIDs(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("orders", settings.Topic{})
	s.group("g", settings.Group{})
	long := strings.Repeat("i", 250)
	s.bury("g", "orders", 1, func(int) string { return "no such account" },
		func(int) *tidegate.Message { return &tidegate.Message{ID: long, Topic: "orders", Body: []byte("17")} })
	b := open(t, s.url)
	first := fmt.Sprintf("%x", sha256.Sum256([]byte(long)))
	for n := 1; n <= 2; n++ {
		b.load("#/dead-letters/g")
		b.eval(`document.querySelector('main td a[href^="#/dead-letters/g/"]').click()`, nil)
		b.click("edit-redrive", "")
		b.wait(`document.querySelector('dialog[open] [name=body]')`)
		b.click("confirm", "")
		b.wait(`!document.querySelector('dialog')`)
		want := fmt.Sprintf("%s.redrive-%d", first, n)
		ds := s.take("g", "orders", 1)
		if len(ds) != 1 || ds[0].Message.ID != want {
			t.Fatalf("the group received %d messages after edit %d, want one with the ID %s; the page: %s", len(ds), n, want, b.text())
		}
		if _, err := s.DeadLetter(t.Context(), ds[0], "still no account"); err != nil {
			t.Fatal(err)
		}
	}
	b.clean()
}

// A broker that does not know sent_as loses the letter too after an edit.
func TestEditOnOlderBroker(t *testing.T) {
	var rejected atomic.Int64
	s := start(t, siteOptions{wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodDelete && strings.Contains(r.URL.RawQuery, "sent_as=") {
				rejected.Add(1)
				r.URL.RawQuery = strings.ReplaceAll(r.URL.RawQuery, "sent_as=", "unknown=")
			}
			h.ServeHTTP(w, r)
		})
	}})
	s.topic("orders", settings.Topic{})
	s.group("g", settings.Group{})
	s.bury("g", "orders", 1, func(int) string { return "no such account" },
		func(int) *tidegate.Message { return &tidegate.Message{Topic: "orders", Body: []byte("17")} })
	b := open(t, s.url)
	b.load("#/dead-letters/g")
	b.eval(`document.querySelector('main td a[href^="#/dead-letters/g/"]').click()`, nil)
	b.click("edit-redrive", "")
	b.wait(`document.querySelector('dialog[open] [name=body]')`)
	b.click("confirm", "")
	b.wait(`!document.querySelector('dialog')`)
	if dead, err := s.Topic("%DLQ%g"); err != nil || dead.StoredMessages != 0 || rejected.Load() != 1 {
		t.Errorf("%d dead letters are left after %d rejected removals, want none after one; %v", dead.StoredMessages, rejected.Load(), err)
	}
}
