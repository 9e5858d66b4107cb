package browsertest

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
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

// line is the path of a line of a plot by the title of the plot and the color of the line.
func line(title, color string) string {
	return `([...document.querySelectorAll('.plot')].find(p => p.querySelector('b').textContent === '` + title +
		`')?.querySelector('.line.` + color + `')?.getAttribute('d') || '')`
}

// pieces is the number of pieces of a line: those between gaps.
func pieces(line string) string { return `(` + line + `.match(/M/g) || []).length` }

// The charts of the overview, of a topic and of a group begin with what the broker has kept, also
// before the first moment of the live stream.
func TestChartsBeginWithThePast(t *testing.T) {
	live := newStreams()
	live.broken.Store(true)
	s := start(t, siteOptions{wrap: live.wrap})
	s.topic("orders", settings.Topic{Queues: 1})
	s.group("billing", settings.Group{})
	for range 5 {
		s.send(&tidegate.Message{Topic: "orders", Body: []byte("x")})
	}
	s.take("billing", "orders", 2)
	b := open(t, s.url)
	for _, page := range []string{"#/overview", "#/topics/orders", "#/groups/billing", "#/topics/orders?window=day"} {
		b.load(page)
		b.wait(line("Backlog", "blue") + ` !== ''`)
		state := value[string](b, `[...document.querySelectorAll('.plot .key')].map(k => k.innerText).join()`)
		assert.That(t, strings.Contains(strings.ToLower(state), "messages 5"), "%s shows %s", page, state)
		if page != "#/groups/billing" { // it has none acknowledged
			d := value[string](b, line("Messages per second", "blue"))
			assert.That(t, d != "", "%s draws no messages: %s", page, state)
		}
	}
	current := value[string](b, `document.querySelector('a[aria-current=true]').innerText`)
	assert.Equal(t, "the window is", current, "Last day")
}

// An hour of the broker and the moments after it are one line without a gap.
func TestChartsContinueThePast(t *testing.T) {
	var requests atomic.Int64
	s := start(t, siteOptions{wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/history" {
				h.ServeHTTP(w, r)
				return
			}
			requests.Add(1)
			now := time.Now().UTC()
			if err := json.NewEncoder(w).Encode(map[string]any{
				"now": now, "as_of": now, "started": now.Add(-48 * time.Hour), "step_ms": 10_000,
				"topics": []any{map[string]any{
					"name": "orders", "from": now.Add(-time.Hour), "counters": map[string]any{"accepted": 3},
					"accepted": slices.Repeat([]int{100}, 360), "acked": make([]int, 360), "backlog": slices.Repeat([]int{6}, 360),
				}},
			}); err != nil {
				t.Error(err)
			}
		})
	}})
	s.topic("orders", settings.Topic{Queues: 1})
	for range 3 {
		s.send(&tidegate.Message{Topic: "orders", Body: []byte("x")})
	}
	b := open(t, s.url)
	b.load("#/topics/orders")
	accepted, backlog := line("Messages per second", "blue"), line("Backlog", "blue")
	b.wait(accepted + `.split('L').length > 300`)
	b.wait(`document.querySelector('.plot .key').innerText.includes('3')`) // the first moment has another backlog
	for _, l := range []string{accepted, backlog} {
		n := value[int](b, pieces(l))
		assert.Equal(t, "a line has pieces", n, 1)
	}
	state := value[string](b, `document.querySelectorAll('.plot')[1].querySelector('.top').innerText`)
	axis := value[string](b, `document.querySelector('.plot .axis').innerText`)
	if state != "10" || !strings.HasPrefix(axis, "1\u202fh") {
		t.Errorf("the highest rate is %s, of %q; want 10 a second in an hour", state, axis)
	}
	b.visit("#/topics")
	b.visit("#/topics/orders")
	assert.Equal(t, "requests of the past", requests.Load(), 1)
	b.clean()
}

// A page recovers within 5 s of the restart of a broker that was killed. The restart is a gap in its
// charts, and the samples before it stay.
func TestRestartIsAGap(t *testing.T) {
	o := siteOptions{broker: broker.Options{Dir: t.TempDir()}}
	s := launch(t, o)
	s.topic("orders", settings.Topic{Queues: 1})
	s.send(&tidegate.Message{Topic: "orders", Body: []byte("x")})
	b := open(t, s.url)
	b.load("#/topics/orders")
	backlog := line("Backlog", "blue")
	b.wait(`document.querySelector('[data-live=ok]') && ` + backlog + ` !== ''`)
	s.kill()
	b.wait(`document.querySelector('main [role=alert]')`)
	o.addr = s.addr
	s = launch(t, o)
	t.Cleanup(s.kill)
	began := time.Now()
	b.wait(`!document.querySelector('main [role=alert]') && document.querySelector('[data-live=ok]')`)
	took := time.Since(began)
	assert.That(t, took <= 5*time.Second, "the page recovered after %v, want at most 5 s", took)
	s.send(&tidegate.Message{Topic: "orders", Body: []byte("x")})
	b.wait(`document.querySelector('.plot .key').innerText.includes('2')`)
	b.wait(pieces(backlog) + ` === 2`)
	b.clean()
}

// receiveAs receives a message over HTTP as a client of this ID.
func (s *site) receiveAs(id, group, topic string) {
	s.t.Helper()
	s.receiveWith(id, group, topic, "*")
}

// receiveWith is receiveAs with a filter by tags.
func (s *site) receiveWith(id, group, topic, tags string) {
	s.t.Helper()
	r := assert.Value(http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/v1/groups/"+group+"/topics/"+topic+"/receive", strings.NewReader(fmt.Sprintf(`{"max": 1, "invisible_duration": "10m", "filter": {"expression": %q}}`, tags))))(s.t)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Mq-Client-Id", id)
	answer := assert.Value(http.DefaultClient.Do(r))(s.t)
	if answer.Body.Close(); answer.StatusCode != http.StatusOK {
		s.t.Fatalf("a receive: %s", answer.Status)
	}
}

// The page of clients shows the connected clients and filters them. The page of a group has its
// consumers.
func TestClients(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("orders", settings.Topic{})
	s.topic("pays", settings.Topic{})
	s.send(&tidegate.Message{Topic: "orders", Body: []byte("x")})
	s.receiveAs(`<img src=x onerror="window.pwned=1">`, "billing", "orders")
	s.receiveAs("second", "ledger", "pays")
	b := open(t, s.url)
	b.load("#/clients")
	b.is("clients")
	for _, want := range []string{`<img src=x onerror="window.pwned=1">`, "second", "billing", "ledger", "orders", "pays", "127.0.0.1:"} {
		if text := b.text(); !strings.Contains(text, want) {
			t.Errorf("the page of clients has no %q:\n%s", want, text)
		}
	}
	b.shoot("clients")
	b.visit("#/clients?group=ledger")
	if text := b.text(); !strings.Contains(text, "second") || strings.Contains(text, "onerror") {
		t.Errorf("the clients of one group are\n%s", text)
	}
	b.visit("#/groups/ledger")
	if text := b.text(); !strings.Contains(text, "second") || strings.Contains(text, "onerror") {
		t.Errorf("the page of a group is\n%s", text)
	}
	var pwned bool
	if b.eval(`!!window.pwned`, &pwned); pwned {
		t.Error("the ID of a client ran as a script")
	}
	b.clean()
}

// The page of a group warns of consumers with different filters for a topic, and shows the filters.
func TestFiltersDiffer(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("orders", settings.Topic{})
	s.receiveWith("first", "billing", "orders", "a || b")
	b := open(t, s.url)
	b.load("#/groups/billing")
	if text := b.text(); !strings.Contains(text, "orders: a || b") || strings.Contains(text, "different filters") {
		t.Errorf("the page of a group with one consumer is\n%s", text)
	}
	s.receiveWith("second", "billing", "orders", "*")
	b.visit("#/groups/billing?again=1")
	if text := b.text(); !strings.Contains(text, "different filters for orders: a || b / *") {
		t.Errorf("the page of a group with two consumers is\n%s", text)
	}
	b.shoot("group-filters")
	b.visit("#/clients")
	if text := b.text(); !strings.Contains(text, "orders: a || b") {
		t.Errorf("the page of clients is\n%s", text)
	}
	b.clean()
}

// A redrive to the group alone leaves the other groups of the topic as they are.
func TestRedriveToOneGroup(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("orders", settings.Topic{})
	s.group("g", settings.Group{})
	s.bury("g", "orders", 3, func(int) string { return "no such account" },
		func(int) *tidegate.Message { return &tidegate.Message{Topic: "orders", Body: []byte("x")} })
	for _, err := range s.Ack(t.Context(), s.take("other", "orders", 3)) {
		assert.Must(t, err)
	}
	b := open(t, s.url)
	b.load("#/dead-letters/g")
	b.click("redrive", "g")
	b.wait(`document.querySelector('dialog [data-count="3"]')`)
	b.eval(`document.querySelector('dialog [name=only]').click()`, nil)
	b.click("confirm", "")
	b.wait(`document.querySelector('.job.ok')`)
	assert.Equal(t, "another group received messages again", len(s.take("other", "orders", 3)), 0)
	assert.Equal(t, "the group received messages", len(s.take("g", "orders", 4)), 3)
	b.clean()
}
