package browsertest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
)

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
