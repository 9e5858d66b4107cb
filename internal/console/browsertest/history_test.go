package browsertest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
)

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
