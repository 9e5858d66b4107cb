package browsertest

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
)

// streams counts the live streams of a site. It rejects them while broken, and all requests for
// data while the site is down.
type streams struct {
	now, most, requests atomic.Int64
	broken              atomic.Bool
	up                  atomic.Pointer[uptime] // nil while the site is down
}

// uptime ends with the requests for data that began in it.
type uptime struct {
	context.Context
	end context.CancelFunc
}

func newStreams() *streams {
	s := new(streams)
	s.rise()
	return s
}

func (s *streams) rise() {
	ctx, cancel := context.WithCancel(context.Background())
	s.up.Store(&uptime{ctx, cancel})
}

func (s *streams) fall() { s.up.Swap(nil).end() }

func (s *streams) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		up := s.up.Load()
		if up == nil && strings.HasPrefix(r.URL.Path, "/v1/") {
			http.Error(w, "", http.StatusServiceUnavailable)
			return
		}
		if !strings.HasSuffix(r.URL.Path, "/v1/live") {
			h.ServeHTTP(w, r)
			return
		}
		s.requests.Add(1)
		if s.broken.Load() {
			http.Error(w, "", http.StatusServiceUnavailable)
			return
		}
		n := s.now.Add(1)
		defer s.now.Add(-1)
		for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(up, cancel)()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// await waits until there are n streams.
func (s *streams) await(t *testing.T, n int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for s.now.Load() != n {
		select {
		case <-ctx.Done():
			t.Fatalf("after %v there are %d live streams, want %d", patience, s.now.Load(), n)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// cell is the text of a column of the row that shows a name.
func cell(name, column string) string {
	column = strings.ToUpper(column[:1]) + column[1:]
	return `[...document.querySelectorAll('main tbody tr')].find(r => r.textContent.includes('` + name +
		`'))?.querySelector('td[data-label="` + column + `"]')?.innerText.trim()`
}

// The tabs of a browser share one live stream, which shows a change on the pages of both. When the
// tab that reads it has another page, the other tab reads it.
func TestTabsShareOneStream(t *testing.T) {
	live := newStreams()
	s := start(t, siteOptions{wrap: live.wrap})
	for _, name := range []string{"first", "second"} {
		s.topic(name, settings.Topic{Queues: 1})
	}
	a := open(t, s.url)
	a.load("#/topics")
	a.wait(cell("first", "stored") + ` === '0'`)
	b := a.beside()
	b.load("#/topics/second")
	b.wait(`document.querySelector('[data-live=ok]')`)
	for i, name := range []string{"first", "second", "second"} {
		s.send(&tidegate.Message{Topic: name, Body: []byte{byte(i)}})
	}
	a.wait(cell("first", "stored") + ` === '1' && ` + cell("second", "stored") + ` === '2'`)
	b.wait(`document.querySelector('main').innerText.includes('2 · 2')`)
	assert.Equal(t, "live streams at a time", live.most.Load(), 1)
	a.visit("#/help")
	s.send(&tidegate.Message{Topic: "second", Body: []byte("x")})
	b.wait(`document.querySelector('main').innerText.includes('3 · 3')`)
	b.visit("#/help")
	live.await(t, 0)
	a.clean()
	if faults := b.recorded(); len(faults) > 0 {
		t.Error(faults)
	}
}

// A pause holds for all tabs and is kept; it ends the stream, and its end begins a stream.
func TestPauseEndsTheStream(t *testing.T) {
	live := newStreams()
	s := start(t, siteOptions{wrap: live.wrap})
	s.topic("first", settings.Topic{Queues: 1})
	a := open(t, s.url)
	a.load("#/topics")
	live.await(t, 1)
	a.eval(`document.querySelector('[data-action=pause]').click()`, nil)
	live.await(t, 0)
	a.load("#/topics")
	a.wait(`document.querySelector('[data-live=paused]')`)
	s.send(&tidegate.Message{Topic: "first", Body: []byte("x")})
	a.eval(`document.querySelector('[data-action=pause]').click()`, nil)
	a.wait(cell("first", "stored") + ` === '1'`)
	a.wait(`document.querySelector('[data-live=ok]')`)
	live.await(t, 1)
	a.clean()
}

// Without a stream the pages ask for their lists; the console asks for a stream again and again.
func TestPagesWorkWithoutAStream(t *testing.T) {
	live := newStreams()
	s := start(t, siteOptions{wrap: live.wrap})
	live.broken.Store(true)
	s.topic("first", settings.Topic{Queues: 1})
	a := open(t, s.url)
	a.load("#/topics")
	s.send(&tidegate.Message{Topic: "first", Body: []byte("x")})
	a.wait(cell("first", "stored") + ` === '1'`)
	live.broken.Store(false)
	live.await(t, 1)
	if n := live.requests.Load(); n < 2 {
		t.Errorf("%d requests for a stream, want more than one", n)
	}
	a.clean()
}

// The badge of the page is late after three intervals without data, and recovers.
func TestBadgeTurnsLate(t *testing.T) {
	live := newStreams()
	s := start(t, siteOptions{wrap: live.wrap})
	a := open(t, s.url)
	a.load("#/topics")
	a.eval(`{const e = document.querySelector('select[name=interval]'); e.value = '1000'; e.dispatchEvent(new Event('change')); null}`, nil)
	live.await(t, 1)
	a.wait(`document.querySelector('[data-live=ok]')`)
	live.fall()
	a.wait(`document.querySelector('[data-live=late]')`)
	live.rise()
	a.wait(`document.querySelector('[data-live=ok]')`)
	live.await(t, 1)
	a.clean()
}
