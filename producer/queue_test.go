package producer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A model drives a queue as the effects do, with random results, and checks what
// has to hold at every step.
type model struct {
	t      *testing.T
	rnd    *rand.Rand
	q      queue
	now    time.Time
	asks   []*ask
	flying []*request
	live   map[*item]bool
	order  map[string][]int // accepted messages of each message group, by number
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{t: t, rnd: rand.New(rand.NewPCG(seed, 2)), now: time.Unix(1000, 0), live: map[*item]bool{}, order: map[string][]int{}}
	m.q.groups = map[string]*unit{}
	m.q.share = (*item).share
	return m
}

func (m *model) add(n int) {
	it := &item{ctx: context.Background(), size: 100 + m.rnd.IntN(400), msg: &tidegate.Message{
		ID: fmt.Sprint(n), Topic: "t", MessageGroup: []string{"", "a", "b", "c"}[m.rnd.IntN(4)],
	}}
	it.limits = limits{maxAttempts: 100, attempt: time.Second, floor: time.Millisecond}
	it.throttles = n // the model's number of the message; the queue does not use it
	it.place.value = it
	m.live[it] = true
	m.q.add(it, m.now)
}

// pump takes all jobs.
func (m *model) pump() {
	m.q.wake(m.now)
	for {
		j, ok := m.q.next(m.now, nil)
		if !ok {
			return
		}
		if j.ask != nil {
			m.asks = append(m.asks, j.ask)
			if len(m.asks) > 1 {
				m.t.Fatal("two asks at once")
			}
			continue
		}
		m.began(j.req)
	}
}

func (m *model) began(r *request) {
	m.flying = append(m.flying, r)
	groups := map[string]bool{}
	for _, other := range m.flying[:len(m.flying)-1] {
		for _, it := range other.items {
			if it.msg.MessageGroup != "" {
				groups[it.msg.MessageGroup] = true
			}
		}
	}
	size := 0
	for _, it := range r.items {
		size += it.size
		if groups[it.msg.MessageGroup] {
			m.t.Fatalf("message group %q is in two requests", it.msg.MessageGroup)
		}
		if it.due.After(m.now) {
			m.t.Fatal("a message is sent before it is due")
		}
		if !m.live[it] {
			m.t.Fatal("a message is sent that has gone")
		}
	}
	l := r.lane
	switch {
	case len(r.items) == 0:
		m.t.Fatal("an empty request")
	case len(r.items) > l.most(), len(r.items) > 1 && size > l.MaxBytes:
		m.t.Fatalf("a request of %d messages and %d bytes in %+v", len(r.items), size, l.Lane)
	case m.now.Before(l.pausedUntil):
		m.t.Fatal("a request in a paused lane")
	case l.probing && l.probe != r:
		m.t.Fatal("a request beside the probe")
	}
}

func (m *model) route() {
	a := m.asks[0]
	m.asks = nil
	if m.rnd.IntN(10) == 0 {
		m.q.routed(a, nil, m.now, nil)
		r := m.q.withdraw(a)
		for _, it := range r.items {
			m.settle(it, r)
		}
		m.q.finished(r, m.now)
		return
	}
	var lanes []transport.Lane
	for range a.units {
		l := transport.Lane{Topic: "t", Endpoint: []string{"a", "b", "c"}[m.rnd.IntN(3)], MaxMessages: 4, MaxBytes: 1000}
		if l.Endpoint == "c" {
			l.MaxMessages = 1
		}
		lanes = append(lanes, l)
	}
	if r := m.q.routed(a, lanes, m.now, nil); r != nil {
		m.began(r)
	}
}

// settle gives a message of a request a random result.
func (m *model) settle(it *item, r *request) {
	if !m.live[it] {
		return
	}
	switch m.rnd.IntN(4) {
	case 0: // a retry at once
		it.due = time.Time{}
	case 1: // a retry later
		it.due = m.now.Add(time.Duration(m.rnd.IntN(5000)) * time.Millisecond)
	default:
		if g := it.msg.MessageGroup; g != "" && r.lane != nil {
			m.order[g] = append(m.order[g], it.throttles)
		}
		m.gone(it)
	}
}

func (m *model) gone(it *item) {
	delete(m.live, it)
	m.q.remove(it, m.now)
}

func (m *model) finish() {
	i := m.rnd.IntN(len(m.flying))
	r := m.flying[i]
	m.flying = slices.Delete(m.flying, i, i+1)
	blocked := map[string]bool{} // the server stores nothing of a message group behind a failure
	for _, it := range r.items {
		if blocked[it.msg.MessageGroup] && m.live[it] {
			it.due = time.Time{}
			continue
		}
		m.settle(it, r)
		if m.live[it] && it.msg.MessageGroup != "" {
			blocked[it.msg.MessageGroup] = true
		}
	}
	switch m.rnd.IntN(5) {
	case 0:
		r.lane.pause(r, m.now, time.Duration(m.rnd.IntN(3000))*time.Millisecond, nil)
	case 1:
		r.lane.timedOut()
	default:
		r.lane.succeeded(r)
	}
	m.q.finished(r, m.now)
}

// Order per message group over random partial failures, cancels and splits; no
// message is lost, and the queue never stands still.
func TestQueueProperties(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(300) {
		m := newModel(t, seed+round)
		next := 0
		for range 400 {
			switch k := m.rnd.IntN(10); {
			case k < 4 && next < 200:
				m.add(next)
				next++
			case k == 4 && len(m.live) > 0:
				for it := range m.live {
					m.gone(it)
					break
				}
			case k == 5:
				m.now = m.now.Add(time.Duration(m.rnd.IntN(1000)) * time.Millisecond)
			case k < 8 && len(m.asks) > 0:
				m.route()
			case len(m.flying) > 0:
				m.finish()
			}
			m.pump()
		}
		for steps := 0; len(m.live) > 0; steps++ {
			switch {
			case steps > 10_000:
				t.Fatalf("round %d: %d messages stand still", round, len(m.live))
			case len(m.asks) > 0:
				m.route()
			case len(m.flying) > 0:
				m.finish()
			default:
				at := m.q.wakeAt(m.now)
				if at.IsZero() {
					t.Fatalf("round %d: %d messages wait for nothing", round, len(m.live))
				}
				m.now = at
			}
			m.pump()
		}
		for len(m.asks)+len(m.flying) > 0 {
			if len(m.asks) > 0 {
				m.route()
			} else {
				m.finish()
			}
			m.pump()
		}
		if m.q.ready.n+len(m.q.waiting)+len(m.q.groups) > 0 {
			t.Fatalf("round %d: left behind %d ready, %d waiting, %d message groups", round, m.q.ready.n, len(m.q.waiting), len(m.q.groups))
		}
		for g, list := range m.order {
			if !slices.IsSorted(list) {
				t.Fatalf("round %d: message group %s was stored as %v", round, g, list)
			}
		}
	}
}

func TestWindowAdapts(t *testing.T) {
	now := time.Unix(1000, 0)
	l := &lane{Lane: transport.Lane{MaxMessages: 1}, window: firstWindow}
	requests := func() (n int) {
		for l.free(now) {
			l.begin(&request{lane: l})
			n++
		}
		return n
	}
	if n := requests(); n != firstWindow {
		t.Errorf("%d requests at first, want %d", n, firstWindow)
	}
	for range 10_000 {
		r := &request{lane: l}
		l.succeeded(r)
		l.end(r)
		requests()
	}
	if l.flying != maxWindow {
		t.Errorf("%d requests after many successes, want %d", l.flying, maxWindow)
	}
	for range 20 {
		l.timedOut()
	}
	if l.window != 1 {
		t.Errorf("a window of %d after 20 timeouts, want 1", l.window)
	}
	l.flying = 0
	old := &request{lane: l}
	l.begin(old)
	if !l.pause(old, now, time.Second, nil) || l.pause(old, now, time.Second, nil) {
		t.Error("the second result from before the pause counts as another throttle")
	}
	l.end(old)
	if l.free(now) || l.free(now.Add(time.Second-1)) || !l.free(now.Add(time.Second)) {
		t.Error("the pause is not one second")
	}
	now = now.Add(time.Second)
	if n := requests(); n != 1 || l.most() != 1 {
		t.Errorf("%d probes of up to %d messages, want 1 of 1", n, l.most())
	}
	l.succeeded(l.probe)
	if l.probing {
		t.Error("the lane is not open after a successful probe")
	}
}
