package browsertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// orders sends n messages of a message group to the topic orders.
func (s *site) orders(n int, messageGroup string) {
	s.t.Helper()
	for range n {
		s.send(&tidegate.Message{Topic: "orders", Tag: "open", MessageGroup: messageGroup, Body: []byte(`{"account":17}`)})
	}
}

// If a group consumes nothing, these clicks lead from the first page to the sentence with the
// cause.
func TestWhyNothingIsConsumed(t *testing.T) {
	const group = `#bar a[href="#/groups"]`
	billing := []string{group, `main a[href="#/groups/billing"]`}
	for name, c := range map[string]struct {
		topic   settings.Topic
		group   settings.Group
		prepare func(s *site)
		clicks  []string // links, in this order
		want    []string
	}{
		"no consumer": {
			prepare: func(s *site) {
				s.take("billing", "orders", 1) // the group has received once
				s.orders(5, "")
			},
			clicks: billing,
			want:   []string{"Ready: 5, in flight: none. No consumer receives them: start a consumer of this group."},
		},
		"all parked": {
			topic: settings.Topic{Type: settings.TopicFIFO},
			group: settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark},
			prepare: func(s *site) {
				s.orders(5, "customer-1")
				for _, d := range s.take("billing", "orders", 1) {
					if _, err := s.Settle(s.t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule, Reason: "no such account 17"}); err != nil {
						s.t.Fatal(err)
					}
				}
			},
			clicks: []string{`main a[href="#/parked"]`, `main a[href^="#/parked/billing"]`},
			want:   []string{"customer-1", "no such account 17"},
		},
		"throttled elsewhere": {
			topic: settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 10}},
			prepare: func(s *site) {
				s.group("ledger", settings.Group{})
				s.take("ledger", "orders", 1)
				s.take("billing", "orders", 1)
				s.orders(10, "")
				for _, err := range s.Ack(s.t.Context(), s.take("billing", "orders", 10)) {
					assert.Must(s.t, err)
				}
				s.Send(s.t.Context(), []*tidegate.Message{{Topic: "orders", ID: "rejected", Body: []byte("x")}})
			},
			clicks: billing,
			want:   []string{"New messages are rejected, for all groups of the topic:", "backlog of the topic 10 of 10"},
		},
		"throttled topic": { // by the slowest of its groups
			topic: settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 10}},
			prepare: func(s *site) {
				s.orders(10, "")
				s.take("billing", "orders", 1)
				for _, err := range s.Ack(s.t.Context(), s.take("fast", "orders", 10)) {
					assert.Must(s.t, err)
				}
			},
			clicks: []string{`#bar a[href="#/topics"]`, `main a[href="#/topics/orders"]`},
			want:   []string{"sends are rejected now (530) until it is at", "billing"},
		},
		"nothing left": {
			prepare: func(s *site) { s.take("billing", "orders", 1) },
			clicks:  billing,
			want:    []string{"Nothing is left for the group: it has acknowledged, skipped by a filter or passed everything."},
		},
		"lease held by a client": {
			prepare: func(s *site) {
				s.orders(1, "")
				s.receiveAs("worker-3", "billing", "orders")
			},
			clicks: billing,
			want:   []string{"Client worker-3 holds 1 message, the first for "},
		},
		"filter excludes everything": {
			prepare: func(s *site) {
				s.orders(5, "")
				_, err := s.Receive(s.t.Context(), transport.ReceiveRequest{
					Group: "billing", Topic: "orders", Max: 32, InvisibleDuration: time.Hour, Wait: 50 * time.Millisecond, Queue: transport.AnyQueue,
					Filter: tidegate.Filter{Expression: "paid"},
				})
				assert.Must(s.t, err)
			},
			clicks: billing,
			want:   []string{"No message has matched the filter of the consumer: it skipped all 5 since "},
		},
		"poison message": {
			prepare: func(s *site) {
				s.bury("billing", "orders", 1, func(int) string { return "no such account 17" },
					func(int) *tidegate.Message {
						return &tidegate.Message{Topic: "orders", ID: "POISON", Body: []byte(`{"account":17}`)}
					})
			},
			clicks: []string{`main a[href="#/dead-letters/billing"]`, `main a[href^="#/dead-letters/billing/POISON"]`},
			want:   []string{"no such account 17", `"account"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, siteOptions{})
			s.topic("orders", c.topic)
			s.group("billing", c.group)
			c.prepare(s)
			b := open(t, s.url)
			b.load("")
			for _, link := range c.clicks {
				b.wait(`document.querySelector(` + "`" + link + "`" + `)`)
				b.eval(`document.querySelector(`+"`"+link+"`"+`).click(); null`, nil)
				b.ready()
			}
			for _, want := range c.want {
				if !b.becomes(`document.querySelector('main').innerText.replaceAll('\u202f', ' ').includes(`+"`"+want+"`"+`)`, 20*time.Second) {
					t.Errorf("the page does not contain %q:\n%s", want, b.text())
				}
			}
			b.pictures("why-" + strings.ReplaceAll(name, " ", "-"))
			b.clean()
		})
	}
}

// The page of one message follows its state: a delivery in flight, then the acknowledgement.
func TestTraceFollowsTheMessage(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("orders", settings.Topic{})
	s.group("billing", settings.Group{})
	s.send(&tidegate.Message{Topic: "orders", ID: "watched", Body: []byte("x")})
	held := s.take("billing", "orders", 1)
	b := open(t, s.url)
	b.load("#/trace?topic=orders&id=watched")
	contains := func(text string) string {
		return `document.querySelector('main').innerText.includes(` + "`" + text + "`" + `)`
	}
	if !b.becomes(contains("In flight"), 20*time.Second) {
		t.Fatalf("the page of a message in flight is\n%s", b.text())
	}
	for _, err := range s.Ack(t.Context(), held) {
		assert.Must(t, err)
	}
	assert.That(t, b.becomes(contains("Done"), 20*time.Second), "after the acknowledgement the page is\n%s", b.text())
	b.clean()
}

// pictures makes screenshots in the widths of the specification, dark and in Chinese.
func (b *tab) pictures(name string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	for _, width := range []int64{320, 1280, 2560} {
		b.size(width, 900)
		b.shoot(name + "-" + map[int64]string{320: "320", 1280: "1280", 2560: "2560"}[width])
	}
	b.size(1280, 900)
	b.dark(true)
	b.shoot(name + "-dark")
	b.dark(false)
	b.speak("zh")
	b.ready()
	b.shoot(name + "-zh")
}

// The first page names a client that has held messages for longer than a minute.
func TestOverviewNamesClientThatHolds(t *testing.T) {
	since := time.Now().Add(-5 * time.Minute).UTC().Format(time.RFC3339)
	now := time.Now().UTC().Format(time.RFC3339)
	found := func(first string, n string) string { return `{"count":` + n + `,"first":[` + first + `]}` }
	held := `{"group":"billing","topic":"orders","inflight":16,"held":{"client":"worker-3","messages":16,"since":"` + since + `","until":"` + now + `"}}`
	s := start(t, answer("/v1/overview", `{"version":"v1","started":"`+since+`","now":"`+now+`","as_of":"`+now+`","ready":true,"storage":{},"memory":[],"totals":{},`+
		`"counters":{"accepted":{"messages":0,"bytes":0},"rejected":{},"throttled":{}},"top":{},"wrong":{"throttles":`+found("", "0")+`,"parked":`+found("", "0")+
		`,"behind":`+found("", "0")+`,"held":`+found(held, "1")+`,"dead_letters":`+found("", "0")+`}}`))
	b := open(t, s.url)
	b.load("")
	for _, want := range []string{"billing ← orders", "Client worker-3 holds 16 messages, the first for ", "If its handler hangs, restart it."} {
		if !b.becomes(`document.querySelector('main').innerText.replaceAll('\u202f', ' ').includes(`+"`"+want+"`"+`)`, 20*time.Second) {
			t.Errorf("the overview does not contain %q:\n%s", want, b.text())
		}
	}
	b.pictures("why-held-overview")
	b.clean()
}

// buttons are all buttons of the console that change something, with the requests that each makes.
// LETTER is replaced by the ID of a dead letter.
var buttons = []struct {
	fragment, action string
	needs            []string
}{
	{"#/topics", "create-topic", []string{`PUT topics/normal-new {}`}},
	{"#/topics/normal", "send", []string{`POST topics/normal/messages {"body_text":"x"}`}},
	{"#/topics/normal", "change-topic", []string{`PUT topics/normal {}`}},
	{"#/topics/normal", "purge-topic", []string{`POST topics/normal/purge`}},
	{"#/topics/normal", "delete-topic", []string{`DELETE topics/normal`}},
	{"#/topics/fifo", "send", []string{`POST topics/fifo/messages {"body_text":"x"}`}},
	{"#/topics/fifo", "change-topic", []string{`PUT topics/fifo {}`}},
	{"#/topics/fifo", "purge-topic", []string{`POST topics/fifo/purge`}},
	{"#/topics/fifo", "delete-topic", []string{`DELETE topics/fifo`}},
	{"#/groups", "create-group", []string{`PUT groups/g {}`}},
	{"#/groups/g", "change-group", []string{`PATCH groups/g {}`}},
	{"#/groups/g", "rewind", []string{`POST groups/g/rewind {"topic":"normal","to":"latest"}`}},
	{"#/groups/g", "delete-group", []string{`DELETE groups/g`}},
	{"#/groups/other", "change-group", []string{`PATCH groups/other {}`}},
	{"#/groups/other", "rewind", []string{`POST groups/other/rewind {"topic":"normal","to":"latest"}`}},
	{"#/groups/other", "delete-group", []string{`DELETE groups/other`}},
	{"#/parked/g", "redrive-parked", []string{`POST groups/g/parked/redrive {}`}},
	{"#/parked/other", "redrive-parked", []string{`POST groups/other/parked/redrive {}`}},
	{"#/dead-letters/g", "redrive", []string{`POST groups/g/dead-letters/redrive {"limit":1}`}},
	{"#/dead-letters/g", "purge-letters", []string{`DELETE groups/g/dead-letters?all=true`}},
	{"#/dead-letters/g?topic=normal", "redrive", []string{`POST groups/g/dead-letters/redrive {"topic":"normal","limit":1}`}},
	{"#/dead-letters/g?topic=normal", "purge-letters", []string{`DELETE groups/g/dead-letters?topic=normal`}},
	{"#/dead-letters/other", "redrive", []string{`POST groups/other/dead-letters/redrive {"limit":1}`}},
	{"#/dead-letters/other", "purge-letters", []string{`DELETE groups/other/dead-letters?all=true`}},
	{"#/dead-letters/g/LETTER", "purge-one", []string{`GET groups/g/dead-letters`, `DELETE groups/g/dead-letters?message_id=LETTER`}},
	{"#/dead-letters/g/LETTER", "edit-redrive", []string{`GET groups/g/dead-letters?text=true`, `POST topics/normal/messages {"body_text":"x"}`,
		`DELETE groups/g/dead-letters?message_id=LETTER`}},
	{"#/limits", "set-limits", []string{`GET throttle`, `PATCH throttle {}`}},
	{"#/address", "add-address", []string{`PUT address-settings/new {}`}},
	{"#/address", "change-address", []string{`GET address-settings`, `PUT address-settings/set {}`}},
	{"#/address", "delete-address", []string{`GET address-settings`, `DELETE address-settings/set`}},
}

// redriveOne is the button that sends one letter back. It names the letter's topic if the key may
// not send to every topic, so either request is enough.
var redriveOne = [][]string{
	{`GET groups/g/dead-letters`, `POST groups/g/dead-letters/redrive {"message_ids":["LETTER"]}`},
	{`GET groups/g/dead-letters`, `POST groups/g/dead-letters/redrive {"message_ids":["LETTER"],"topic":"normal"}`},
}

// roles are the keys of the permission test of the server, and two that may also send; the secret
// of key k is "sesame-k".
func roles() server.AccessConfig {
	key := func(name string, allow ...server.Rule) server.Key {
		return server.Key{Name: name, Secrets: []server.Secret{server.NewSecret("sesame-" + name)}, Allow: allow}
	}
	all, norm, g := []string{"*"}, []string{"norm*"}, []string{"g"}
	return server.AccessConfig{Keys: []server.Key{
		key("producer", server.Rule{Actions: []server.Action{"send"}, Topics: norm}),
		key("consumer", server.Rule{Actions: []server.Action{"receive"}, Topics: norm, Groups: g}),
		key("monitor", server.Rule{Actions: []server.Action{"observe"}, Topics: all, Groups: all}),
		key("owner", server.Rule{Actions: []server.Action{"admin"}, Topics: norm, Groups: g}),
		key("team", server.Rule{Actions: []server.Action{"admin", "send", "receive"}, Topics: norm, Groups: g}),
		key("admin", server.Rule{Actions: []server.Action{"admin"}, Topics: all, Groups: all}),
		key("root", server.Rule{Actions: []server.Action{"admin", "send", "receive"}, Topics: all, Groups: all}),
	}}
}

// guarded starts a broker with the keys of roles, and returns the ID of a dead letter.
func guarded(t *testing.T, wrap ...func(http.Handler) http.Handler) (s *site, letter string) {
	t.Helper()
	o := siteOptions{server: server.Options{Access: roles()}}
	for _, w := range wrap {
		o.wrap = w
	}
	s = start(t, o)
	s.populate(1)
	s.topic("fifo", settings.Topic{Type: "FIFO"})
	s.group("other", settings.Group{})
	if status, text := s.ask(t, "root", `PUT address-settings/set {"max-delivery-attempts":3}`); status >= 300 {
		t.Fatal(text)
	}
	_, text := s.ask(t, "root", `GET groups/g/dead-letters?limit=1`)
	var page struct {
		Letters []struct {
			ID string `json:"message_id"`
		} `json:"dead_letters"`
	}
	if err := json.Unmarshal([]byte(text), &page); err != nil || len(page.Letters) == 0 {
		t.Fatal(text, err)
	}
	return s, page.Letters[0].ID
}

// ask makes a request "METHOD path body" with a key, without the console.
func (s *site) ask(t *testing.T, key, request string) (status int, text string) {
	t.Helper()
	parts := append(strings.SplitN(request, " ", 3), "")
	r, err := http.NewRequestWithContext(t.Context(), parts[0], s.url+"/v1/"+parts[1], strings.NewReader(parts[2]))
	assert.Must(t, err)
	r.SetBasicAuth(key, "sesame-"+key)
	if parts[2] != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(r)
	assert.Must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == http.StatusUnauthorized {
		t.Fatalf("%s as %s: %s %s %v", request, key, resp.Status, body, err)
	}
	return resp.StatusCode, string(body)
}

// permits reports whether a broker permits all requests to a key.
func (s *site) permits(t *testing.T, key, letter string, requests []string) bool {
	t.Helper()
	for _, r := range requests {
		if status, _ := s.ask(t, key, strings.ReplaceAll(r, "LETTER", letter)); status == http.StatusForbidden {
			return false
		}
	}
	return true
}

// Each key sees exactly those buttons whose requests the broker permits. A broker of its own
// decides for each key, because the requests change it.
func TestButtonsOfEachKey(t *testing.T) {
	s, letter := guarded(t)
	for _, k := range roles().Keys {
		t.Run(k.Name, func(t *testing.T) {
			judge, other := guarded(t)
			want := map[string][]string{} // by page
			for _, b := range buttons {
				if _, ok := want[b.fragment]; !ok {
					want[b.fragment] = nil
				}
				if judge.permits(t, k.Name, other, b.needs) {
					want[b.fragment] = append(want[b.fragment], b.action)
				}
			}
			if judge.permits(t, k.Name, other, redriveOne[0]) || judge.permits(t, k.Name, other, redriveOne[1]) {
				want["#/dead-letters/g/LETTER"] = append(want["#/dead-letters/g/LETTER"], "redrive-one")
			}
			b := open(t, s.url)
			b.load("")
			b.signIn(k.Name)
			for fragment, actions := range want {
				b.visit(strings.ReplaceAll(fragment, "LETTER", letter))
				slices.Sort(actions)
				if got := b.actions(); !slices.Equal(got, actions) {
					t.Errorf("%s shows the buttons %q, the broker permits %q", fragment, got, actions)
				}
			}
			b.clean()
		})
	}
}

// harmless are the buttons that change nothing on the broker.
var harmless = []string{"pause", "copy-command", "copy-body", "download-body", "show-all", "scan-on", "scan-stop", "show-newer", "sign-out"}

// actions returns the buttons of the page that change something, sorted and each once.
func (b *tab) actions() (list []string) {
	b.t.Helper()
	names := assert.Value(json.Marshal(harmless))(b.t)
	b.eval(fmt.Sprintf(`[...new Set([...document.querySelectorAll('[data-action]')].map((e) => e.dataset.action))].filter((a) => !%s.includes(a)).sort()`, names), &list)
	return list
}

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
