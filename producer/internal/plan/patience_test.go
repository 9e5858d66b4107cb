package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
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
			now := time.Unix(1000, 0)
			var q Queue[numbered, struct{}]
			var flying []*Request[numbered, struct{}]
			pump := func() (began int) {
				for {
					j, ok := q.Next(now, nil)
					if !ok {
						return began
					}
					r := j.Request
					if j.Ask != nil {
						j.Ask.Lanes = []transport.Lane{{Endpoint: "a", MaxMessages: c.most}}
						r = q.Routed(j.Ask, now)
					}
					if r != nil {
						flying, began = append(flying, r), began+1
					}
				}
			}
			for i := range 1000 {
				q.Add(&Item[numbered, struct{}]{Of: numbered(i), Size: 100, Message: &tidegate.Message{ID: fmt.Sprint(i), Topic: "t"}}, now)
			}
			assert.MustEqual(t, "requests began", pump(), c.full)
			for range 3 {
				if at := q.WakeAt(now); !at.Equal(now.Add(c.wait)) {
					t.Fatalf("the next request can begin %v after the newest, want %v", at.Sub(now), c.wait)
				}
				now = now.Add(c.wait - time.Millisecond)
				assert.MustEqual(t, "requests began before the time", pump(), 0)
				now = now.Add(time.Millisecond)
				assert.MustEqual(t, "requests began in the time", pump(), 1)
			}
			if c.most > 1 {
				return // its window does not change
			}
			for range 2 { // two of the requests that the patience allowed succeed
				last := len(flying) - 1
				r := flying[last]
				flying = flying[:last]
				q.Remove(r.Items[0], now)
				r.Lane.Succeeded(r)
				q.Finished(r, now)
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
