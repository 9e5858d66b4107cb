package plan

import (
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
	q      Queue
	now    time.Time
	asks   []*Ask
	flying []*Request
	live   map[*Item]bool
	order  map[string][]int // accepted messages of each message group, by number
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{t: t, rnd: rand.New(rand.NewPCG(seed, 2)), now: time.Unix(1000, 0), live: map[*Item]bool{}, order: map[string][]int{}}
	m.q = New(func() *Request { return &Request{} })
	return m
}

func (m *model) add(n int) {
	it := &Item{Owner: numbered(n), Size: 100 + m.rnd.IntN(400), Message: &tidegate.Message{
		ID: fmt.Sprint(n), Topic: "t", MessageGroup: []string{"", "a", "b", "c"}[m.rnd.IntN(4)],
	}}
	m.live[it] = true
	m.q.Add(it, m.now)
}

// numbered is the owner of a message: its number in the order of the calls of Add.
type numbered int

func (numbered) Share(time.Time) time.Duration { return time.Second }

// pump takes all jobs.
func (m *model) pump() {
	m.q.Wake(m.now)
	for {
		j, ok := m.q.Next(m.now, nil)
		if !ok {
			return
		}
		if j.Ask != nil {
			m.asks = append(m.asks, j.Ask)
			if len(m.asks) > 1 {
				m.t.Fatal("two asks at once")
			}
			continue
		}
		m.began(j.Request)
	}
}

func (m *model) began(r *Request) {
	m.flying = append(m.flying, r)
	groups := map[string]bool{}
	for _, other := range m.flying[:len(m.flying)-1] {
		for _, it := range other.Items {
			if it.Message.MessageGroup != "" {
				groups[it.Message.MessageGroup] = true
			}
		}
	}
	size := 0
	for _, it := range r.Items {
		size += it.Size
		if groups[it.Message.MessageGroup] {
			m.t.Fatalf("message group %q is in two requests", it.Message.MessageGroup)
		}
		if it.Due.After(m.now) {
			m.t.Fatal("a message is sent before it is due")
		}
		if !m.live[it] {
			m.t.Fatal("a message is sent that has gone")
		}
	}
	l := r.Lane
	switch {
	case len(r.Items) == 0:
		m.t.Fatal("an empty request")
	case len(r.Items) > l.most(), len(r.Items) > 1 && size > l.MaxBytes:
		m.t.Fatalf("a request of %d messages and %d bytes in %+v", len(r.Items), size, l.Lane)
	case m.now.Before(l.PausedUntil):
		m.t.Fatal("a request in a paused lane")
	case l.probing && l.probe != r:
		m.t.Fatal("a request beside the probe")
	}
}

func (m *model) route() {
	a := m.asks[0]
	m.asks = nil
	if m.rnd.IntN(10) == 0 {
		m.q.Routed(a, nil, m.now, nil)
		r := m.q.Withdraw(a)
		for _, it := range r.Items {
			m.settle(it, r)
		}
		m.q.Finished(r, m.now)
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
	if r := m.q.Routed(a, lanes, m.now, nil); r != nil {
		m.began(r)
	}
}

// settle gives a message of a request a random result.
func (m *model) settle(it *Item, r *Request) {
	if !m.live[it] {
		return
	}
	switch m.rnd.IntN(4) {
	case 0: // a retry at once
		it.Due = time.Time{}
	case 1: // a retry later
		it.Due = m.now.Add(time.Duration(m.rnd.IntN(5000)) * time.Millisecond)
	default:
		if g := it.Message.MessageGroup; g != "" && r.Lane != nil {
			m.order[g] = append(m.order[g], int(it.Owner.(numbered)))
		}
		m.gone(it)
	}
}

func (m *model) gone(it *Item) {
	delete(m.live, it)
	m.q.Remove(it, m.now)
}

func (m *model) finish() {
	i := m.rnd.IntN(len(m.flying))
	r := m.flying[i]
	m.flying = slices.Delete(m.flying, i, i+1)
	blocked := map[string]bool{} // the server stores nothing of a message group behind a failure
	for _, it := range r.Items {
		if blocked[it.Message.MessageGroup] && m.live[it] {
			it.Due = time.Time{}
			continue
		}
		m.settle(it, r)
		if m.live[it] && it.Message.MessageGroup != "" {
			blocked[it.Message.MessageGroup] = true
		}
	}
	switch m.rnd.IntN(5) {
	case 0:
		r.Lane.Pause(r, m.now, time.Duration(m.rnd.IntN(3000))*time.Millisecond, nil)
	case 1:
		r.Lane.TimedOut(r)
	default:
		r.Lane.Succeeded(r)
	}
	m.q.Finished(r, m.now)
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
				at := m.q.WakeAt(m.now)
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
		if m.q.loose.Len()+m.q.laneless.Len()+len(m.q.waiting)+len(m.q.groups) > 0 {
			t.Fatalf("round %d: left behind %d ready, %d waiting, %d message groups", round, m.q.loose.Len()+m.q.laneless.Len(), len(m.q.waiting), len(m.q.groups))
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
	l := &Lane{Lane: transport.Lane{MaxMessages: 1}, window: FirstWindow}
	requests := func() (n int) {
		for l.free(now) {
			l.begin(&Request{Lane: l}, now)
			n++
		}
		return n
	}
	if n := requests(); n != FirstWindow {
		t.Errorf("%d requests at first, want %d", n, FirstWindow)
	}
	for range 10_000 {
		r := &Request{Lane: l}
		l.Succeeded(r)
		l.requestEnded(r)
		requests()
	}
	if l.flying != maxWindow {
		t.Errorf("%d requests after many successes, want %d", l.flying, maxWindow)
	}
	together := []*Request{{}, {}, {}}
	for _, r := range together {
		l.begin(r, now)
	}
	for _, r := range together {
		l.TimedOut(r)
	}
	if l.window != maxWindow/2 {
		t.Errorf("a window of %d after 3 timeouts of requests that were under way together, want %d", l.window, maxWindow/2)
	}
	for range 20 {
		r := &Request{}
		l.begin(r, now)
		l.TimedOut(r)
	}
	if l.window != 1 {
		t.Errorf("a window of %d after 20 timeouts, want 1", l.window)
	}
	l.flying = 0
	old := &Request{Lane: l}
	l.begin(old, now)
	if !l.Pause(old, now, time.Second, nil) || l.Pause(old, now, time.Second, nil) {
		t.Error("the second result from before the pause counts as another throttle")
	}
	l.requestEnded(old)
	if l.free(now) || l.free(now.Add(time.Second-1)) || !l.free(now.Add(time.Second)) {
		t.Error("the pause is not one second")
	}
	now = now.Add(time.Second)
	if n := requests(); n != 1 || l.most() != 1 {
		t.Errorf("%d probes of up to %d messages, want 1 of 1", n, l.most())
	}
	l.Succeeded(l.probe)
	if l.probing {
		t.Error("the lane is not open after a successful probe")
	}
}
