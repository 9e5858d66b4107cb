package producer

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

// An entered is a message of the model.
type entered struct {
	entry  entry[*entered]
	bytes  int
	when   whenFull
	wait   *entrant[*entered] // nil if it did not wait
	result leaveResult
	called bool
	over   bool // it has its result, and its function has returned
}

// A ledgerModel plays the callers, the topics and the goroutines of a producer.
type ledgerModel struct {
	*ledger[*entered]
	functions *functions[*entered]
	t         *testing.T
	r         *rand.Rand
	waiting   []*entered // for a place, in their order
	accepted  []*entered // without a result, those of the spool included, in their order
	held      int        // messages of them that count in the bounds
	heldBytes int
	concluded []*entered // with a result, and their functions are not added yet
	queued    []*entered // functions that wait for their call, in their order
	calling   []*entered // the one whose function is running
	workers   []func()   // goroutines that are starting
	working   int        // goroutines that are starting or running
	flushes   []*flush
	calls     int // under way
	awaits    []<-chan struct{}
	counts    ledgerCounts
	closing   bool
	ended     bool // no further messages
	events    int
	checked   int // events before the last check
	admitted  int // of those that waited, since the last check
}

// A flush is a call of Flush that waits.
type flush struct {
	open     []*batch
	messages []*entered
}

// A message waits only if its ledger is full, and in its order. A flush waits for the messages
// before it alone. A function that waits has a goroutine. After the end of all events nothing
// waits. Each event looks at two entrants more than it admits.
func TestLedgerModel(t *testing.T) { model.Run(t, 300, runLedgerModel) }

func runLedgerModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	m := &ledgerModel{ledger: newLedger[*entered](1+r.IntN(6), 10+r.IntN(100)), t: t, r: r}
	m.functions = newFunctions(m.ledger, func(x *entered) *entry[*entered] { return &x.entry }, m.callFunction)
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
	assert.That(t, len(m.waiting) == 0, "%d messages wait for a place in a closed ledger", len(m.waiting))
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

func isSpools(x *entered) bool { return x.result == leftDrained || x.result == leftInSpool }

// enter adds a message, a half message or a message of the spool.
func (m *ledgerModel) enter() {
	if m.ended {
		return
	}
	x := &entered{bytes: 1 + m.r.IntN(m.maxBytes*6/5), when: whenFull(m.r.IntN(3)), result: leaveResult(m.r.IntN(4))}
	x.bytes = min(x.bytes, 1+m.r.IntN(2*m.maxBytes))
	kind := m.r.IntN(20)
	if kind == 0 {
		x.result = leaveResult(4 + m.r.IntN(2))
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
	want := placeAdmitted
	switch {
	case m.closing:
		want = placeClosed
	case fits:
	case x.when == fullReject:
		want = placeFull
	case x.when == fullSpool && m.backlogged() < m.maxMessages:
		want = placeForced
	case kind == 2:
		want = placeEnded
	}
	w, got, err := m.ledger.Enter(ctx, x, &x.entry, size, x.when)
	assert.That(m.t, got == want && (err != nil) == (want == placeFull) && (w != nil) == (want == placeAdmitted && !fits),
		"a message has admission %d (%v) and waits: %v; want admission %d", got, err, w != nil, want)
	switch {
	case w != nil:
		x.wait = w
		m.waiting = append(m.waiting, x)
	case got == placeAdmitted || got == placeForced:
		m.accept(x)
	}
}

func (m *ledgerModel) accept(x *entered) {
	m.accepted = append(m.accepted, x)
	m.held, m.heldBytes = m.held+1, m.heldBytes+x.bytes
	m.counts.Accepted++
}

// backlogged is the number of messages with a result whose functions were not called.
func (m *ledgerModel) backlogged() int { return len(m.concluded) + len(m.queued) }

func (m *ledgerModel) fit(x *entered) bool {
	return m.held < m.maxMessages && m.backlogged() < m.maxMessages && m.heldBytes+x.bytes <= m.maxBytes
}

// leave gives some messages their results.
func (m *ledgerModel) leave() {
	var leaving []*entered
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
	m.Leave(leaving, func(x *entered) (*entry[*entered], leaveResult, bool) { return &x.entry, x.result, x.called })
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
func (m *ledgerModel) callFunction(x *entered) {
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
		waits := slices.ContainsFunc(f.open, func(b *batch) bool { return !isClosed(b.done) })
		late := slices.ContainsFunc(f.messages, func(x *entered) bool { return !x.over })
		assert.That(m.t, waits == late, "a flush waits: %v; a message before it is not done: %v", waits, late)
		return !waits
	})
	m.awaits = slices.DeleteFunc(m.awaits, func(c <-chan struct{}) bool {
		assert.That(m.t, isClosed(c) == (m.calls == 0), "AwaitCalls has ended: %v, with %d calls", isClosed(c), m.calls)
		return isClosed(c)
	})
	assert.That(m.t, !m.closing || isClosed(m.Settled()) == (m.held == 0),
		"settled: %v, with %d messages without a result", isClosed(m.Settled()), m.held)
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
	m.waiting = slices.DeleteFunc(m.waiting, func(x *entered) bool {
		if !isClosed(x.wait.granted) {
			behind, behindSpools = true, behindSpools || x.when == fullSpool
			return false
		}
		switch a := x.wait.admission; {
		case a == placeClosed && m.closing || a == placeEnded:
			return true
		case a == placeAdmitted && !behind:
		case a == placeForced && !behindSpools && x.when == fullSpool:
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
		if x == m.waiting[0] && m.fit(x) || x.when == fullSpool && m.backlogged() < m.maxMessages || m.closing {
			m.t.Error("a message waits in vain")
			return
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A message that got its place and its result before its Await noticed: an Await whose ctx has
// ended meanwhile still reports that the message was accepted.
func TestEndedCtxHidesNoAdmission(t *testing.T) {
	delivered := func(x *entered) (*entry[*entered], leaveResult, bool) { return &x.entry, leftDelivered, false }
	synctest.Test(t, func(t *testing.T) {
		for range 200 { // Await may come before Leave; then the message has ended
			l := newLedger[*entered](1, 100)
			first, second := &entered{}, &entered{}
			assert.That(t, l.Admit(first, &first.entry, 1), "the ledger is closed")
			ctx, cancel := context.WithCancel(t.Context())
			w, a, err := l.Enter(ctx, second, &second.entry, 1, fullWait)
			assert.MustThat(t, w != nil, "admission %d, %v; want it to wait", a, err)
			got := make(chan admission, 1)
			go func() { got <- l.Await(ctx, w) }()
			synctest.Wait()
			cancel() // wakes Await, which waits for the lock while all this happens:
			l.Leave([]*entered{first}, delivered)
			l.Close()
			pending := l.Pending()
			l.Leave(pending, delivered)
			a = <-got
			if ended := len(pending) == 0; ended != (a == placeEnded) || !ended && a != placeAdmitted {
				t.Fatalf("admission %d; the message has a result: %v", a, !ended)
			}
		}
	})
}
