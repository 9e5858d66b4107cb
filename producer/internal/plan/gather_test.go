package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A loop is a number of callers that send a message each, wait for its result and send the next
// one, over one server that takes many messages in a request.
type loop struct {
	*desk
	flying []*Request[numbered, struct{}]
}

func newLoop(t *testing.T) *loop { return &loop{desk: newDesk(t)} }

// add queues n messages one after the other.
func (l *loop) add(n int) {
	for range n {
		l.desk.add("")
		l.pump()
	}
}

// pump begins requests.
func (l *loop) pump() { l.flying = append(l.flying, l.requests("a", 256)...) }

// finish ends the oldest request and returns the number of its messages.
func (l *loop) finish() int {
	r := l.flying[0]
	l.flying = l.flying[1:]
	n := len(r.Items)
	l.accepted(r)
	l.pump()
	return n
}

// Callers that wait for their results share large requests: no request with a few messages goes
// beside one with all others.
func TestRequestsOfManyCallersAreEqual(t *testing.T) {
	for _, callers := range []int{2, 3, 16, 64, 256} {
		l := newLoop(t)
		l.add(callers)
		for request := range 100 {
			assert.MustThat(t, len(l.flying) != 0, "%d callers: no request is under way", callers)
			l.now = l.now.Add(time.Millisecond)
			n := l.finish()
			if least := callers / 8; request >= 20 && n < least {
				t.Errorf("%d callers: request %d has %d messages, want at least %d", callers, request, n, least)
			}
			l.add(n)
		}
	}
}

// A few messages wait beside a large request, for at most 5 ms. An idle server gets them at once.
func TestGatherEnds(t *testing.T) {
	l := newLoop(t)
	l.add(1)
	assert.MustEqual(t, "the idle server did not get the first message at once", len(l.flying), 1)
	l.add(61) // the second request has one of them
	l.finish()
	l.finish()
	assert.MustThat(t, len(l.flying) == 1 && len(l.flying[0].Items) == 60,
		"%d requests are under way, want one with 60 messages", len(l.flying))
	began := l.now
	l.now = l.now.Add(time.Millisecond)
	l.add(3)
	assert.MustEqual(t, "3 messages did not wait beside a request with 60", len(l.flying), 1)
	if at := l.q.WakeAt(l.now); !at.Equal(began.Add(5 * time.Millisecond)) {
		t.Fatalf("the wait ends %v after the start of the request, want 5 ms", at.Sub(began))
	}
	l.now = l.q.WakeAt(l.now)
	l.pump()
	assert.MustThat(t, len(l.flying) == 2 && len(l.flying[1].Items) == 3,
		"%d requests are under way after the wait, want 2", len(l.flying))
	l.add(30)
	l.finish()
	assert.MustThat(t, len(l.flying) == 2 && len(l.flying[1].Items) == 30,
		"%d requests are under way, want 2, the second with 30 messages", len(l.flying))
}

// Half as many messages as the recent requests had are enough for a second request.
func TestGatherTakesEnough(t *testing.T) {
	l := newLoop(t)
	l.add(61)
	l.finish()
	l.finish()
	for n := 1; len(l.flying) < 2; n++ {
		if l.add(1); n > 29 {
			t.Fatal("29 messages beside a request with 59 still wait")
		} else if len(l.flying) == 2 && n < 29 {
			t.Fatalf("%d messages did not wait beside a request with 59", n)
		}
	}
}

// A crowded topic has one request under way. Its other messages share the next one, which begins
// with the end of the first, or 200 ms after its start if its response is lost.
func TestCrowdedTopicHasOneRequest(t *testing.T) {
	l := newLoop(t)
	l.q.Crowded = true
	l.add(1)
	assert.MustEqual(t, "the first message was not sent at once", len(l.flying), 1)
	l.add(10)
	assert.MustEqual(t, "requests are under way", len(l.flying), 1)
	l.now = l.now.Add(time.Millisecond)
	l.finish()
	assert.MustThat(t, len(l.flying) == 1 && len(l.flying[0].Items) == 10,
		"%d requests are under way after the first, want one with 10 messages", len(l.flying))
	began := l.now
	l.add(3)
	if at := l.q.WakeAt(l.now); !at.Equal(began.Add(200 * time.Millisecond)) {
		t.Fatalf("the wait ends %v after the start of the request, want 200 ms", at.Sub(began))
	}
	l.now = l.q.WakeAt(l.now)
	l.pump()
	assert.MustThat(t, len(l.flying) == 2 && len(l.flying[1].Items) == 3,
		"%d requests are under way after the wait, want 2", len(l.flying))
	l.q.Crowded = false
	l.finish()
	l.add(3)
	assert.MustEqual(t, "requests are under way without the crowd", len(l.flying), 2)
}

// The topics of a server share its requests: two at once, the second with half as many messages as
// the recent ones or after 5 ms, and another one after 100 ms in which none began. None begins
// while one takes messages.
func TestTopicsGather(t *testing.T) {
	now := time.Unix(1000, 0)
	var s Server[int]
	turns := make([]Turn[int], 100)
	ready := func(from, to, units int) {
		for i := from; i < to; i++ {
			s.Ready(&turns[i], units)
		}
	}
	begins := func(want bool, what string) (number int) {
		t.Helper()
		number, ok := s.Next(now)
		assert.MustThat(t, ok == want, "%s: a request begins: %t", what, ok)
		return number
	}
	wakes := func(after time.Duration) {
		t.Helper()
		at := s.WakeAt(now)
		assert.That(t, at.Equal(now.Add(after)), "it wakes after %v, want %v", at.Sub(now), after)
	}
	first, ok := s.Own(now)
	second, also := s.Own(now)
	assert.MustThat(t, ok && also && first != second, "two messages alone do not begin requests of their own")
	ready(0, 60, 1)
	if _, ok := s.Own(now); ok {
		t.Error("a request of one message begins before those that wait")
	}
	begins(false, "two are under way")
	wakes(sharedPatience)
	s.Ended(first, true, false)
	begins(true, "60 topics wait")
	s.Ended(first+1, true, false)
	begins(false, "the other one takes messages")
	s.Filled(&Load{units: 60})
	ready(0, 60, 0)
	ready(60, 89, 1)
	begins(false, "29 messages beside 60")
	wakes(gather)
	ready(89, 90, 1)
	number := begins(true, "30 messages beside 60")
	s.Filled(&Load{units: 30})
	now = now.Add(sharedPatience)
	s.Ended(number, false, true)
	begins(true, "5 ms are over")
	s.Filled(&Load{units: 30})
	now = now.Add(time.Hour)
	begins(false, "the last result is that the server does not respond")
	assert.That(t, s.WakeAt(now).IsZero(), "it wakes although only a result lets a request begin")
}

// A topic whose messages find no place keeps its turn; one that had a place has its next turn last.
func TestPlacesInASharedRequest(t *testing.T) {
	now := time.Unix(1000, 0)
	shared := transport.Lane{Endpoint: "a", MaxMessages: 10, MaxBytes: 1000, Topics: true}
	take := func(load *Load, sizes ...int) (taken int) {
		var q Queue[timed, struct{}]
		for i, size := range sizes {
			q.Add(&Item[timed, struct{}]{Of: timed(time.Second), Size: size, Message: &tidegate.Message{ID: fmt.Sprint(i), Topic: "t"}}, now)
		}
		j, _ := q.Next(now, nil)
		j.Ask.Lanes = []transport.Lane{shared}
		q.Routed(j.Ask, now)
		q.Next(now, nil)
		l, units := q.Ready(now)
		assert.MustEqual(t, "units are ready", units, len(sizes))
		if r := q.Take(l, load, now, false); r != nil {
			taken = len(r.Items)
		}
		_, left := q.Ready(now)
		assert.That(t, left == units-taken, "%d units remain of %d after %d", left, units, taken)
		return taken
	}
	var load Load
	for i, c := range []struct{ sizes, taken int }{{400, 2}, {300, 0}, {100, 2}, {100, 0}} {
		n := take(&load, c.sizes, c.sizes)
		assert.That(t, n == c.taken, "topic %d: %d messages of %d bytes find a place, want %d", i, n, c.sizes, c.taken)
	}
	load = Load{}
	for i := range maxTopics + 1 {
		shared.MaxMessages = 1000
		n := take(&load, 1)
		assert.That(t, n == min(1, maxTopics-i), "topic %d: %d messages find a place", i, n)
	}
}
