package ledger

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

// A letter is a message of the model.
type letter struct {
	entry  Entry[*letter]
	bytes  int
	when   WhenFull
	wait   *Entrant[*letter] // nil if it did not wait
	result Result
	called bool
	over   bool // it has its result, and its function has returned
}

// A ledgerModel plays the callers, the topics and the goroutines of a producer.
type ledgerModel struct {
	*Ledger[*letter]
	functions *Functions[*letter]
	t         *testing.T
	r         *rand.Rand
	waiting   []*letter // for a place, in their order
	accepted  []*letter // without a result, those of the spool included, in their order
	held      int       // messages of them that count in the bounds
	heldBytes int
	concluded []*letter // with a result, and their functions are not added yet
	queued    []*letter // functions that wait for their call, in their order
	calling   []*letter // the one whose function is running
	workers   []func()  // goroutines that are starting
	working   int       // goroutines that are starting or running
	flushes   []*flush
	calls     int // under way
	awaits    []<-chan struct{}
	counts    Counts
	closing   bool
	ended     bool // no further messages
	events    int
	checked   int // events before the last check
	admitted  int // of those that waited, since the last check
}

// A flush is a call of Flush that waits.
type flush struct {
	open     []*batch
	messages []*letter
}

// A message waits only if its ledger is full, and in its order. A flush waits for the messages
// before it alone. A function that waits has a goroutine. After the end of all events nothing
// waits. Each event looks at two entrants more than it admits.
func TestLedgerModel(t *testing.T) { model.Run(t, 300, runLedgerModel) }

func runLedgerModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	m := &ledgerModel{Ledger: New[*letter](1+r.IntN(6), 10+r.IntN(100)), t: t, r: r}
	m.functions = NewFunctions(m.Ledger, func(x *letter) *Entry[*letter] { return &x.entry }, m.callFunction)
	m.functions.start = func(run func()) {
		m.Running.Add(1)
		m.working++
		m.workers = append(m.workers, run)
	}
	for n := 0; n < 3000 && !t.Failed(); n++ {
		m.step()
	}
	m.ended = true
	for n := 0; !t.Failed() && len(m.accepted)+len(m.concluded)+len(m.queued)+len(m.workers)+m.calls > 0; n++ {
		if m.step(); n > 20_000 {
			t.Error("the ledger is not empty 20,000 steps after the last message")
		}
	}
	if t.Failed() {
		return
	}
	m.events++
	m.closeLedger()
	m.check()
	assert.That(t, len(m.waiting) <= 0, "%d messages wait for a place in a closed ledger", len(m.waiting))
	if c, aborted := m.Report(); c != m.counts || len(aborted) != c.Aborted {
		t.Errorf("the counts are %+v with %d aborted messages, want %+v", c, len(aborted), m.counts)
	}
	waited := make(chan struct{})
	go func() { m.Running.Wait(); close(waited) }()
	select {
	case <-waited:
	case <-time.After(10 * time.Second):
		t.Error("Running counts a message or goroutine that has ended")
	}
}

// step makes one random event happen, and checks the state.
func (m *ledgerModel) step() {
	m.events++
	switch n := m.r.IntN(100); {
	case n < 30:
		m.enter()
	case n < 34 && len(m.waiting) > 0:
		m.stopWaiting(m.waiting[m.r.IntN(len(m.waiting))].wait)
	case n < 60 && len(m.accepted) > 0:
		m.leave()
	case n < 70 && len(m.concluded) > 0:
		x := m.concluded[0]
		m.concluded = m.concluded[1:]
		m.queued = append(m.queued, x)
		m.functions.Add(x)
	case n < 90 && len(m.workers) > 0:
		m.work()
	case n < 92:
		before := slices.Concat(slices.DeleteFunc(slices.Clone(m.accepted), isSpools), m.concluded, m.queued, m.calling)
		m.flushes = append(m.flushes, &flush{open: m.seal(), messages: before})
	case n < 94:
		if m.ended || !m.BeginCall() {
			break
		}
		m.calls++
	case n < 97 && m.calls > 0:
		m.calls--
		m.EndCall()
	case n == 97 && m.closing:
		m.awaits = append(m.awaits, m.allReturned())
	case n == 98 && m.r.IntN(30) == 0:
		m.closeLedger()
	}
	m.check()
}

func isSpools(x *letter) bool { return x.result == Drained || x.result == LeftInSpool }

// enter adds a message, a half message or a message of the spool.
func (m *ledgerModel) enter() {
	if m.ended {
		return
	}
	x := &letter{bytes: 1 + m.r.IntN(m.maxBytes*6/5), when: WhenFull(m.r.IntN(3)), result: Result(m.r.IntN(4))}
	x.bytes = min(x.bytes, 1+m.r.IntN(2*m.maxBytes))
	kind := m.r.IntN(20)
	if kind == 0 {
		x.result = Result(4 + m.r.IntN(2))
		if m.Adopt(x, &x.entry) == m.closing {
			m.t.Errorf("a message of the spool, ledger closed %v", m.closing)
		} else if !m.closing {
			m.accepted = append(m.accepted, x)
		}
		return
	}
	x.called = m.r.IntN(3) == 0
	size := x.bytes
	x.bytes = min(x.bytes, m.maxBytes)
	if kind == 1 {
		if m.Admit(x, &x.entry, size) == m.closing {
			m.t.Errorf("a half message, ledger closed %v", m.closing)
		} else if !m.closing {
			m.accept(x)
		}
		return
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	defer cancel()
	if kind == 2 {
		cancel()
	}
	fits := len(m.waiting) == 0 && m.fit(x)
	want := Admitted
	switch {
	case m.closing:
		want = Closed
	case fits:
	case x.when == Reject:
		want = Full
	case x.when == Spool && m.backlogged() < m.maxMessages:
		want = Forced
	case kind == 2:
		want = Ended
	}
	w, got, err := m.Ledger.Enter(ctx, x, &x.entry, size, x.when)
	assert.That(m.t, got == want && (err != nil) == (want == Full) && (w != nil) == (want == Admitted && !fits),
		"a message has admission %d (%v) and waits: %v; want admission %d", got, err, w != nil, want)
	switch {
	case w != nil:
		x.wait = w
		m.waiting = append(m.waiting, x)
	case got == Admitted || got == Forced:
		m.accept(x)
	}
}

func (m *ledgerModel) accept(x *letter) {
	m.accepted = append(m.accepted, x)
	m.held, m.heldBytes = m.held+1, m.heldBytes+x.bytes
	m.counts.Accepted++
}

// backlogged is the number of messages with a result whose functions were not called.
func (m *ledgerModel) backlogged() int { return len(m.concluded) + len(m.queued) }

func (m *ledgerModel) fit(x *letter) bool {
	return m.held < m.maxMessages && m.backlogged() < m.maxMessages && m.heldBytes+x.bytes <= m.maxBytes
}

// leave gives some messages their results.
func (m *ledgerModel) leave() {
	var leaving []*letter
	for range 1 + m.r.IntN(3) {
		if len(m.accepted) == 0 {
			break
		}
		i := m.r.IntN(len(m.accepted))
		x := m.accepted[i]
		m.accepted = slices.Delete(m.accepted, i, i+1)
		leaving = append(leaving, x)
		if !isSpools(x) {
			m.held, m.heldBytes = m.held-1, m.heldBytes-x.bytes
		}
		*[...]*int{&m.counts.Delivered, &m.counts.Failed, &m.counts.Spooled, &m.counts.Aborted, &m.counts.Drained, new(int)}[x.result]++
		if x.over = !x.called; x.called {
			m.concluded = append(m.concluded, x)
		}
	}
	m.Leave(leaving, func(x *letter) (*Entry[*letter], Result, bool) { return &x.entry, x.result, x.called })
}

// work runs a goroutine that calls functions, until it ends.
func (m *ledgerModel) work() {
	run := m.workers[0]
	m.workers = m.workers[1:]
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		defer m.Running.Done()
		defer func() { m.working-- }()
		run()
	}()
	<-returned
}

// callFunction is the function of a message. Other events happen meanwhile.
func (m *ledgerModel) callFunction(x *letter) {
	if len(m.queued) == 0 || m.queued[0] != x {
		m.t.Error("a function is not called in its order")
		return
	}
	m.events++
	m.queued, m.calling = m.queued[1:], m.queued[:1:1]
	m.check()
	for range m.r.IntN(4) {
		m.step()
	}
	x.over, m.calling = true, nil
	if m.r.IntN(6) == 0 {
		m.working-- // from here on another goroutine may start
		defer func() { m.working++ }()
		runtime.Goexit()
	}
}

func (m *ledgerModel) closeLedger() {
	m.Close()
	m.closing = true
}

// check checks the state.
func (m *ledgerModel) check() {
	m.checkPlaces()
	if n := len(m.queued); n > 0 && m.working == 0 || m.working > 1 {
		m.t.Errorf("%d functions wait for their call, with %d goroutines", n, m.working)
	}
	m.flushes = slices.DeleteFunc(m.flushes, func(f *flush) bool {
		waits := slices.ContainsFunc(f.open, func(b *batch) bool { return !closed(b.done) })
		late := slices.ContainsFunc(f.messages, func(x *letter) bool { return !x.over })
		assert.That(m.t, waits == late, "a flush waits: %v; a message before it is not done: %v", waits, late)
		return !waits
	})
	m.awaits = slices.DeleteFunc(m.awaits, func(c <-chan struct{}) bool {
		assert.That(m.t, closed(c) == (m.calls == 0), "AwaitCalls has ended: %v, with %d calls", closed(c), m.calls)
		return closed(c)
	})
	assert.That(m.t, !m.closing || closed(m.Settled()) == (m.held == 0),
		"settled: %v, with %d messages without a result", closed(m.Settled()), m.held)
	assert.That(m.t, m.looks <= m.admitted+2*(m.events-m.checked),
		"%d looks at entrants for %d events and %d admissions", m.looks, m.events-m.checked, m.admitted)
	m.looks, m.admitted, m.checked = 0, 0, m.events
	assert.That(m.t, m.events%64 != 0 || slices.Equal(m.Pending(), m.accepted),
		"Pending returns other messages than those without a result, or another order")
}

// checkPlaces finds the messages whose wait has ended, and checks that no other one could end.
func (m *ledgerModel) checkPlaces() {
	var behind, behindSpools bool // an earlier message still waits
	forced := 0
	before := m.held
	m.waiting = slices.DeleteFunc(m.waiting, func(x *letter) bool {
		if !closed(x.wait.granted) {
			behind, behindSpools = true, behindSpools || x.when == Spool
			return false
		}
		switch a := x.wait.admission; {
		case a == Closed && m.closing || a == Ended:
			return true
		case a == Admitted && !behind:
		case a == Forced && !behindSpools && x.when == Spool:
			forced++
		default:
			m.t.Errorf("the wait of a message has ended with admission %d, before an earlier message: %v", a, behind)
		}
		m.accept(x)
		m.admitted++
		return true
	})
	assert.That(m.t, m.held <= before+forced || m.held-forced <= m.maxMessages && m.backlogged() < m.maxMessages,
		"%d messages of %d and %d functions after an admission", m.held, m.maxMessages, m.backlogged())
	for _, x := range m.waiting {
		if x == m.waiting[0] && m.fit(x) || x.when == Spool && m.backlogged() < m.maxMessages || m.closing {
			m.t.Error("a message waits in vain")
			return
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
