package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
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

// A throttle of a request that began before the last pause can lengthen that pause. It cannot begin
// another one, because the server decided it before the probe.
func TestLateThrottles(t *testing.T) {
	begin := time.Unix(1000, 0)
	for _, tt := range []struct {
		name  string
		late  time.Duration // of the result, since the begin of a pause of 1 s
		pause time.Duration // that it demands
		until time.Duration // end of the pause, since its begin
	}{
		{"a longer pause", 500 * time.Millisecond, time.Second, 1500 * time.Millisecond},
		{"a shorter pause", 500 * time.Millisecond, 100 * time.Millisecond, time.Second},
		{"beside the probe", 1500 * time.Millisecond, time.Minute, time.Second},
	} {
		l := &Lane[numbered, struct{}]{Lane: transport.Lane{MaxMessages: 1}, window: FirstWindow}
		first, late := &Request[numbered, struct{}]{Lane: l}, &Request[numbered, struct{}]{Lane: l}
		l.begin(first, begin)
		l.begin(late, begin)
		assert.MustThat(t, l.Pause(first, begin, time.Second, nil), "%s: the first throttle begins no pause", tt.name)
		if counts := l.Pause(late, begin.Add(tt.late), tt.pause, nil); counts || !l.PausedUntil.Equal(begin.Add(tt.until)) {
			t.Errorf("%s: it counts: %t, and the pause ends after %v, want %v", tt.name, counts, l.PausedUntil.Sub(begin), tt.until)
		}
	}
}

// A list has the elements of a slice after the same random operations.
func TestListIsASlice(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	var l List[int]
	var model []int
	links := make([]Link[int], 20)
	for step := range 2000 {
		n := rnd.IntN(len(links))
		e := &links[n]
		e.Value = n
		switch at := slices.Index(model, n); {
		case at >= 0:
			e.Leave()
			model = slices.Delete(model, at, at+1)
		case rnd.IntN(2) == 0:
			l.PushBack(e)
			model = append(model, n)
		default:
			l.PushFront(e)
			model = slices.Insert(model, 0, n)
		}
		if got := slices.Collect(l.All); !slices.Equal(got, model) || l.Len() != len(model) {
			t.Fatalf("step %d: the list has %d elements %v, want %v", step, l.Len(), got, model)
		}
		assert.MustThat(t, e.Joined() == slices.Contains(model, n) && e.Joined() == e.In(&l),
			"step %d: element %d: Joined returned %v", step, n, e.Joined())
		if len(model) > 0 && l.First() != model[0] {
			t.Fatalf("step %d: the first element is %d, want %d", step, l.First(), model[0])
		}
	}
}

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

// timed is the owner of a message: the time that its next attempt gets.
type timed time.Duration

func (t timed) Share(time.Time) time.Duration { return time.Duration(t) }

// Messages share a request only if neither has less than half of the time of the other: the request
// ends with the shortest one, which would cut the attempts of the others short.
func TestMessagesWithSimilarTimesShareARequest(t *testing.T) {
	for _, tt := range []struct {
		name   string
		shares []time.Duration
		want   int // messages in the first request
	}{
		{"equal", []time.Duration{3 * time.Second, 3 * time.Second, 3 * time.Second}, 3},
		{"half", []time.Duration{2 * time.Second, time.Second}, 2},
		{"twice", []time.Duration{time.Second, 2 * time.Second}, 2},
		{"less than half", []time.Duration{3 * time.Second, time.Second}, 1},
		{"more than twice", []time.Duration{time.Second, 3 * time.Second}, 1},
		{"more than twice of the shortest", []time.Duration{2 * time.Second, time.Second, 3 * time.Second}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			var q Queue[timed, struct{}]
			for i, s := range tt.shares {
				q.Add(&Item[timed, struct{}]{Of: timed(s), Size: 100, Message: &tidegate.Message{ID: fmt.Sprint(i), Topic: "t"}}, now)
			}
			j, ok := q.Next(now, nil)
			assert.MustThat(t, ok && j.Ask != nil, "the first job is %+v, want an ask", j)
			j.Ask.Lanes = []transport.Lane{{Endpoint: "a", MaxMessages: 10}}
			r := q.Routed(j.Ask, now)
			assert.That(t, r != nil && len(r.Items) == tt.want, "request %+v, want one with %d messages", r, tt.want)
		})
	}
}

// Units that no lane takes wait. Calling the transport again at once would return the same result,
// in an endless loop.
func TestNoAskWhileNoLaneTakes(t *testing.T) {
	for name, change := range map[string]func(l *Lane[numbered, struct{}]){
		"the pause is being decided":       func(l *Lane[numbered, struct{}]) { l.Deciding = true },
		"a request beside the next probe":  func(*Lane[numbered, struct{}]) {},
		"the pause has not ended":          func(l *Lane[numbered, struct{}]) { l.PausedUntil = l.PausedUntil.Add(time.Second) },
		"it is probed, and another flies":  func(l *Lane[numbered, struct{}]) { l.sincePause = 1 },
		"not even the lane's window opens": func(l *Lane[numbered, struct{}]) { l.probing, l.flying = false, sharedWindow },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			for range 20 {
				d.add("")
			}
			first, second := d.request("a", 10), d.request("a", 10)
			assert.MustThat(t, first != nil && second != nil && len(first.Items) == 10 && len(second.Items) == 10,
				"%+v, %+v", first, second)
			for _, it := range first.Items {
				it.Due = d.now.Add(time.Minute)
			}
			first.Lane.Pause(first, d.now, 0, nil)
			d.q.Finished(first, d.now)
			change(first.Lane)
			d.add("")
			before := d.lanes
			r := d.request("a", 10)
			assert.MustThat(t, r == nil && d.lanes-before <= 1, "the request %+v after %d calls of Lane, although nothing has changed", r, d.lanes-before)
			assert.Equal(t, "units are ready", d.q.loose.Len(), 1)
		})
	}
}
