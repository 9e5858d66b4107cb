package plan

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// Lost responses fill a lane. It then takes another request some time after the newest one, and
// each success lets more begin, so that the server is used long before the first timeout.
func TestFullLaneHasPatience(t *testing.T) {
	for name, c := range map[string]struct {
		most, full int
		wait       time.Duration
	}{
		"one message a request":      {1, 32, 20 * time.Millisecond},
		"several messages a request": {10, 2, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			var flying []*Request[numbered, struct{}]
			pump := func() (began int) {
				list := d.requests("a", c.most)
				flying = append(flying, list...)
				return len(list)
			}
			for range 1000 {
				d.add("")
			}
			assert.MustEqual(t, "requests began", pump(), c.full)
			for range 3 {
				if at := d.q.WakeAt(d.now); !at.Equal(d.now.Add(c.wait)) {
					t.Fatalf("the next request can begin %v after the newest, want %v", at.Sub(d.now), c.wait)
				}
				d.now = d.now.Add(c.wait - time.Millisecond)
				assert.MustEqual(t, "requests began before the time", pump(), 0)
				d.now = d.now.Add(time.Millisecond)
				assert.MustEqual(t, "requests began in the time", pump(), 1)
			}
			if c.most > 1 {
				return // its window does not change
			}
			for _, r := range flying[len(flying)-2:] { // two of the requests that the patience allowed succeed
				d.accepted(r)
			}
			assert.Equal(t, "requests began after the successes", pump(), 1)
		})
	}
}

// The patience has a bound: a server that never responds gets no more than 512 requests at once.
func TestPatienceIsBounded(t *testing.T) {
	l := &Lane[numbered, struct{}]{Lane: transport.Lane{MaxMessages: 1}, window: FirstWindow}
	l.flying = 511
	now := time.Unix(1000, 0)
	assert.That(t, l.free(now), "511 requests fill the lane")
	if l.flying++; l.free(now.Add(time.Hour)) {
		t.Error("512 requests do not fill the lane")
	}
}

// A server that does not respond at all gets no further requests: each would take an attempt from a
// message. The next success ends that.
func TestNoPatienceWithASilentServer(t *testing.T) {
	l := &Lane[numbered, struct{}]{Lane: transport.Lane{MaxMessages: 1}, window: FirstWindow}
	now := time.Unix(1000, 0)
	requests := make([]*Request[numbered, struct{}], 100)
	for i := range requests {
		requests[i] = &Request[numbered, struct{}]{}
		l.begin(requests[i], now)
	}
	l.TimedOut(requests[50])
	later := now.Add(time.Hour)
	assert.That(t, !l.free(later) && !l.patient(), "the lane has patience with a server that responded to nothing")
	l.Succeeded(requests[40])
	assert.That(t, !l.patient(), "the lane has patience although a later request timed out")
	l.Succeeded(requests[60])
	assert.That(t, l.patient() && l.free(now.Add(20*time.Millisecond)), "the lane has no patience although a later request succeeded")
}
