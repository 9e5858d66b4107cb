package browsertest

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
)

// answer sets the response to one path of the API.
func answer(path, text string) siteOptions {
	return siteOptions{wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != path {
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(text))
		})
	}}
}

// Free disk has a minimum: it is near if the free space is little above it.
func TestFreeDiskIsNearFromAbove(t *testing.T) {
	const gib = `073741824`
	for _, c := range []struct {
		value, state, meter string
	}{
		{"60129542144", "not reached", "0.02"}, // 56 GiB
		{"1181116006", "near", "0.91"},         // 1.1 GiB
	} {
		s := start(t, answer("/v1/throttle", `{"throttles":[],"not_reached":[{"limit":"free disk","unit":"bytes","value":`+c.value+`,"mark":1`+gib+`,"resume":1342177280,"on":false}],"limits":{"pressure":{"min_free_disk_bytes":1`+gib+`}},"revision":"1"}`))
		b := open(t, s.url)
		b.load("#/limits")
		var state, meter, title string
		b.eval(`document.querySelector('main td .badge').textContent`, &state)
		b.eval(`document.querySelector('main meter').value.toFixed(2)`, &meter)
		b.eval(`document.querySelector('main meter').title`, &title)
		if state != c.state || meter != c.meter {
			t.Errorf("%s bytes free of at least 1 GiB are %q with a bar of %s, want %q and %s", c.value, state, meter, c.state, c.meter)
		}
		if strings.Contains(title, gib[1:]) || !strings.Contains(title, "GiB") {
			t.Errorf("the title of the bar is %q, want units", title)
		}
		if text := b.text(); !strings.Contains(text, "1073741824 (1\u202fGiB)") {
			t.Errorf("the limits of the broker have no unit:\n%s", text)
		}
		b.clean()
	}
}

// The page of a throttled topic shows that sends are rejected, until when, and the slowest group.
func TestThrottledTopicNamesTheSlowestGroup(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("orders", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Messages: 10}})
	s.group("fast", settings.Group{})
	s.group("slow", settings.Group{})
	for range 10 {
		s.send(&tidegate.Message{Topic: "orders", Body: []byte("x")})
	}
	s.take("slow", "orders", 1)
	for _, err := range s.Ack(t.Context(), s.take("fast", "orders", 10)) {
		assert.Must(t, err)
	}
	b := open(t, s.url)
	b.load("#/topics/orders")
	b.wait(`document.querySelector('.state.bad a[href="#/groups/slow"]')`)
	if text := b.text(); !strings.Contains(text, "sends are rejected now (530) until it is at") {
		t.Errorf("the page of a throttled topic is\n%s", text)
	}
	b.clean()
}

// A group without a backlog has not always consumed its messages: a filter can have skipped them.
func TestSentenceOfAGroupWithoutBacklog(t *testing.T) {
	s := start(t, siteOptions{})
	s.topic("orders", settings.Topic{Queues: 1})
	s.group("g", settings.Group{})
	s.take("g", "orders", 1)
	b := open(t, s.url)
	b.load("#/groups/g")
	b.wait(`document.querySelector('.state.ok')?.textContent === 'Nothing is left for the group: it has acknowledged, skipped by a filter or passed everything.'`)
	b.clean()
}
