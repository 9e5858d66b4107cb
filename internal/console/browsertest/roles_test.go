package browsertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

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
