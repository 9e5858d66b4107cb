package plan

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A server that accepts a later request is not slow, so a lost response does not halve the window.
func TestLostResponsesKeepTheWindow(t *testing.T) {
	now := time.Unix(1000, 0)
	l := &Lane[numbered, struct{}]{Lane: transport.Lane{MaxMessages: 1}, window: FirstWindow}
	for range 100 {
		lost, later := &Request[numbered, struct{}]{Lane: l}, &Request[numbered, struct{}]{Lane: l}
		l.begin(lost, now)
		l.begin(later, now)
		l.Succeeded(later)
		l.requestEnded(later)
		l.TimedOut(lost)
		l.requestEnded(lost)
	}
	assert.Equal(t, "a window of after lost responses", l.window, FirstWindow)
	earlier, late := &Request[numbered, struct{}]{Lane: l}, &Request[numbered, struct{}]{Lane: l}
	l.begin(earlier, now)
	l.begin(late, now)
	l.Succeeded(earlier)
	l.TimedOut(late)
	assert.Equal(t, "a window of after a timeout with no success after it", l.window, FirstWindow/2)
}

// numbered is the owner of a message: its number in the order of the calls of Add.
type numbered int

func (numbered) Share(time.Time) time.Duration { return time.Second }

func TestWindowAdapts(t *testing.T) {
	now := time.Unix(1000, 0)
	l := &Lane[numbered, struct{}]{Lane: transport.Lane{MaxMessages: 1}, window: FirstWindow}
	requests := func() (n int) {
		for l.free(now) {
			l.begin(&Request[numbered, struct{}]{Lane: l}, now)
			n++
		}
		return n
	}
	assert.Equal(t, "requests at first", requests(), FirstWindow)
	for range 10_000 {
		r := &Request[numbered, struct{}]{Lane: l}
		l.Succeeded(r)
		l.requestEnded(r)
		requests()
	}
	assert.Equal(t, "requests after many successes", l.flying, maxWindow)
	together := []*Request[numbered, struct{}]{{}, {}, {}}
	for _, r := range together {
		l.begin(r, now)
	}
	for _, r := range together {
		l.TimedOut(r)
	}
	assert.Equal(t, "a window of after 3 timeouts of requests that were under way together", l.window, maxWindow/2)
	for range 20 {
		r := &Request[numbered, struct{}]{}
		l.begin(r, now)
		l.TimedOut(r)
	}
	assert.Equal(t, "a window of after 20 timeouts", l.window, 1)
	l.flying = 0
	old := &Request[numbered, struct{}]{Lane: l}
	l.begin(old, now)
	assert.That(t, l.Pause(old, now, time.Second, nil) && !l.Pause(old, now, time.Second, nil),
		"the second result from before the pause counts as another throttle")
	l.requestEnded(old)
	assert.That(t, !l.free(now) && !l.free(now.Add(time.Second-1)) && l.free(now.Add(time.Second)), "the pause is not one second")
	now = now.Add(time.Second)
	assert.Equal(t, "probes", requests(), 1)
	l.requestEnded(&Request[numbered, struct{}]{pauses: l.pauses})
	probe := &Request[numbered, struct{}]{Lane: l}
	l.begin(probe, now)
	l.Succeeded(old)
	assert.That(t, l.probing, "the success of a request from before the pause opened the lane")
	l.Succeeded(probe)
	assert.That(t, !l.probing, "the lane is not open after a successful probe")
}

// If a server has not responded to a probe after the length of a pause, it has not throttled the
// probe, so the lane sends another one. A success opens the lane for as many requests as were under
// way.
func TestProbesWithoutResponse(t *testing.T) {
	const pause = 50 * time.Millisecond
	for _, c := range []struct {
		name         string
		lane         Lane[numbered, struct{}]
		probes, open int
	}{
		{"one message a request", Lane[numbered, struct{}]{Lane: transport.Lane{MaxMessages: 1}, window: 1}, 4, 4},
		{"a larger window", Lane[numbered, struct{}]{Lane: transport.Lane{MaxMessages: 1}, window: 20}, 4, 10},
		{"many messages a request", Lane[numbered, struct{}]{Lane: transport.Lane{MaxMessages: 100}, window: 1}, 1, sharedWindow},
	} {
		t.Run(c.name, func(t *testing.T) {
			now, l := time.Unix(1000, 0), &c.lane
			throttled := &Request[numbered, struct{}]{}
			l.begin(throttled, now)
			l.Pause(throttled, now, pause, nil)
			l.requestEnded(throttled)
			var probes []*Request[numbered, struct{}]
			for now = now.Add(pause); len(probes) < 4 && l.free(now); now = now.Add(pause) {
				probes = append(probes, &Request[numbered, struct{}]{})
				l.begin(probes[len(probes)-1], now)
				assert.That(t, !l.free(now.Add(pause-1)), "another probe in less than a pause after probe %d", len(probes))
			}
			assert.MustEqual(t, "probes", len(probes), c.probes)
			l.Succeeded(probes[0])
			if l.requestEnded(probes[0]); l.probing {
				t.Fatal("the lane is not open after a success")
			}
			open := l.flying
			for ; l.free(now) && open < 100; open++ {
				l.begin(&Request[numbered, struct{}]{}, now)
			}
			assert.Equal(t, "requests are under way in the open lane", open, c.open)
		})
	}
}
