package session

import (
	"runtime"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// The texts of a request share memory. The name of a topic does not keep it.
func TestPublishesKeepsNoRequest(t *testing.T) {
	const topics, request = 16, 1 << 20
	r := New(MaxSettingsBytes, &forgets{})
	defer r.Close()
	p := assert.Value(ProfileOf(producer(), "GO", "5.1.4", false))(t)
	s := NewStream(anySender{})
	assert.Must(t, assert.Err(r.Attach("a", of("here"), s, p, nil)))
	defer r.Detach("a", s)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range topics {
		text := strings.Repeat(string(rune('a'+i)), request)
		r.Publishes("a", &rmqpb.Resource{Name: text[:5], ResourceNamespace: text[5:10]})
	}
	if kept := heap() - before; kept > topics*request/2 {
		t.Errorf("%d topics keep %d bytes", topics, kept)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.publishers); n != topics {
		t.Errorf("%d topics are known, want %d", n, topics)
	}
}
