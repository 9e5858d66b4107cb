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

// A desk is a queue with the helpers of the tests below. Its clock is now.
type desk struct {
	t      *testing.T
	q      Queue[numbered, struct{}]
	now    time.Time
	number int
	lanes  int // lanes that the queue has requested
}

func newDesk(t *testing.T) *desk { return &desk{t: t, now: time.Unix(1000, 0)} }

func (d *desk) add(group string) *Item[numbered, struct{}] {
	d.number++
	it := &Item[numbered, struct{}]{Of: numbered(d.number), Size: 100, Message: &tidegate.Message{ID: fmt.Sprint(d.number), Topic: "t", MessageGroup: group}}
	d.q.Add(it, d.now)
	return it
}

// request returns the next request. The transport returns the lane at endpoint for each ask. The
// result is nil if the queue neither asks nor sends. The test fails after ten asks.
func (d *desk) request(endpoint string, most int) *Request[numbered, struct{}] {
	d.t.Helper()
	for asks := 0; ; asks++ {
		j, ok := d.q.Next(d.now, nil)
		if !ok {
			return nil
		}
		if j.Ask == nil {
			return j.Request
		}
		assert.MustThat(d.t, asks != 10, "the queue asks for lanes again and again, although nothing has changed")
		for range j.Ask.Requests {
			d.lanes++
			j.Ask.Lanes = append(j.Ask.Lanes, transport.Lane{Endpoint: endpoint, MaxMessages: most})
		}
		if r := d.q.Routed(j.Ask, d.now); r != nil {
			return r
		}
	}
}

// requests returns the requests that begin now.
func (d *desk) requests(endpoint string, most int) (list []*Request[numbered, struct{}]) {
	d.t.Helper()
	for r := d.request(endpoint, most); r != nil; r = d.request(endpoint, most) {
		list = append(list, r)
	}
	return list
}

// accepted ends a request with a success.
func (d *desk) accepted(r *Request[numbered, struct{}]) {
	for _, it := range r.Items {
		d.q.Remove(it, d.now)
	}
	r.Lane.Succeeded(r)
	d.q.Finished(r, d.now)
}

// throttled ends a request with a throttle. The messages are due again after the pause.
func (d *desk) throttled(r *Request[numbered, struct{}], pause time.Duration) {
	for _, it := range r.Items {
		it.Due = d.now.Add(pause)
	}
	r.Lane.Pause(r, d.now, pause, tidegate.ErrThrottled)
	d.q.Finished(r, d.now)
}

// sleep moves the clock to the next event of the queue.
func (d *desk) sleep() {
	d.t.Helper()
	at := d.q.WakeAt(d.now)
	assert.MustThat(d.t, at.After(d.now), "the queue holds messages and waits for %v, which is not in the future (%v)", at, d.now)
	d.now = at
}

// Message groups wait for the only server of their topic without an ask. When another message
// learns that the topic has other servers, these message groups ask at once.
func TestMessageGroupsLeaveALaneThatIsNotTheOnlyOne(t *testing.T) {
	d := newDesk(t)
	route := func(lane transport.Lane) *Request[numbered, struct{}] {
		j, _ := d.q.Next(d.now, nil)
		assert.MustThat(t, j.Ask != nil, "the next job is %+v, want an ask", j)
		for range j.Ask.Requests {
			j.Ask.Lanes = append(j.Ask.Lanes, lane)
		}
		return d.q.Routed(j.Ask, d.now)
	}
	first := d.add("")
	route(transport.Lane{Endpoint: "a", MaxMessages: 10, Topics: true})
	l, _ := d.q.Ready(d.now)
	r := d.q.Take(l, new(Load), d.now, false)
	group := d.add("g")
	j, ok := d.q.Next(d.now, nil)
	assert.MustThat(t, !ok, "a message group of a topic with one server causes %+v", j)
	first.Avoid = "a"
	d.q.Finished(r, d.now) // the first message returns, and asks
	if r := route(transport.Lane{Endpoint: "b", MaxMessages: 10}); r == nil || r.Items[0] != first {
		t.Fatalf("the request to b is %+v", r)
	}
	if r := d.request("b", 10); r == nil || r.Items[0] != group {
		t.Errorf("the message group waits: the next request is %+v", r)
	}
}

// A request that was shortened ends when the messages that it kept have left.
func TestShortenedRequestEndsWithItsMessages(t *testing.T) {
	d := newDesk(t)
	for range 6 {
		d.add("")
	}
	first, second := d.request("a", 3), d.request("a", 3)
	assert.MustThat(t, first != nil && second != nil && len(second.Items) == 3,
		"%+v, %+v; want a second request of three messages", first, second)
	kept := second.Items[0]
	d.q.Shorten(second, 1, d.now)
	assert.Equal(t, "the only message of the request left, and Remove returned", d.q.Remove(kept, d.now), second)
}

// A transport without a lane fails the messages that waited when it was asked, not later ones.
func TestWithdrawKeepsLaterMessages(t *testing.T) {
	d := newDesk(t)
	early := d.add("g")
	j, _ := d.q.Next(d.now, nil)
	d.q.Routed(j.Ask, d.now)
	late := []*Item[numbered, struct{}]{d.add("g"), d.add("")}
	r := d.q.Withdraw(j.Ask)
	assert.That(t, len(r.Items) == 1 && r.Items[0] == early, "%d messages fail, want the first one", len(r.Items))
	for _, it := range late {
		assert.That(t, it.Queued(), "message %s came after the ask and is not queued", it.Message.ID)
	}
}

// The transport has more servers than the queue remembers. A paused one stays paused.
func TestManyServersKeepTheirPauses(t *testing.T) {
	d := newDesk(t)
	d.add("")
	d.throttled(d.request("paused", 1), 10*time.Minute)
	for i := range 2 * maxLanes {
		d.add("")
		d.accepted(d.request(fmt.Sprint("server", i), 1))
	}
	d.add("")
	assert.That(t, d.request("paused", 1) == nil, "a request to the server during its pause")
}

// A limiter lets few messages of each request pass. The message groups that return to the queue
// keep their lane, because an ask for each of them in each request is quadratic.
func TestShortenedRequestsCauseFewAsks(t *testing.T) {
	d := newDesk(t)
	const groups = 100
	for i := range groups {
		d.add(fmt.Sprint("group", i))
	}
	for sent := range groups {
		r := d.request("a", 1000)
		assert.MustThat(t, r != nil, "no request after %d messages, although the lane is free", sent)
		if want := fmt.Sprint("group", sent); r.Items[0].Message.MessageGroup != want {
			t.Errorf("request %d begins with %s, want %s", sent, r.Items[0].Message.MessageGroup, want)
		}
		d.q.Shorten(r, 1, d.now)
		d.accepted(r)
	}
	assert.That(t, d.lanes <= groups, "the lane of %d messages was requested %d times, want each once", groups, d.lanes)
}

// A few of the message groups that wait for a lane show each second whether they still have it.
func TestPausedMessageGroupsCauseFewAsks(t *testing.T) {
	d := newDesk(t)
	for i := range 300 {
		d.add(fmt.Sprint("group", i))
	}
	d.throttled(d.request("a", 1), time.Hour)
	for d.request("a", 1) != nil {
		t.Fatal("a request during the pause")
	}
	before, began := d.lanes, d.now
	for d.now.Before(began.Add(time.Minute)) {
		d.sleep()
		assert.MustThat(t, d.request("a", 1) == nil, "a request during the pause")
	}
	n := d.lanes - before
	assert.That(t, n >= 60 && n <= 61*10, "%d calls of Lane for messages that wait for a minute, want 1 to 10 a second", n)
}
