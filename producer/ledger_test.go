package producer

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

// A note is a message of these tests.
type note struct {
	entry  entry[*note]
	result leaveResult
	called bool
}

func noteResult(n *note) (*entry[*note], leaveResult, bool) { return &n.entry, n.result, n.called }

// enter has a message of some bytes enter a ledger that does not let it wait.
func enter(t *testing.T, l *ledger[*note], bytes int, when whenFull, want admission) *note {
	t.Helper()
	n := &note{}
	if w, got, err := l.Enter(t.Context(), n, &n.entry, bytes, when); w != nil || got != want || (err != nil) != (want == placeFull) {
		t.Fatalf("admission %d, %v, waits: %t; want %d", got, err, w != nil, want)
	}
	return n
}

// enterFull has a message of some bytes wait for a place, and returns the end of the wait.
func enterFull(ctx context.Context, t *testing.T, l *ledger[*note], n *note, bytes int, when whenFull) admission {
	t.Helper()
	w, got, err := l.Enter(ctx, n, &n.entry, bytes, when)
	if w == nil {
		t.Errorf("admission %d, %v; want it to wait", got, err)
		return got
	}
	return l.Await(ctx, w)
}

// emptyLedger fails the test unless the ledger has forgotten all messages and can be waited for.
func emptyLedger(t *testing.T, l *ledger[*note]) {
	t.Helper()
	if l.messages != 0 || l.bytes != 0 || l.backlog != 0 || l.queue.Len() != 0 || len(l.Pending()) != 0 || len(l.sealed) != 0 {
		t.Errorf("left behind: %d messages, %d bytes, %d functions, %d that wait, %d pending, %d flushes",
			l.messages, l.bytes, l.backlog, l.queue.Len(), len(l.Pending()), len(l.sealed))
	}
	l.Running.Wait()
}

func TestLedgerBounds(t *testing.T) {
	l := newLedger[*note](3, 100)
	a := enter(t, l, 60, fullReject, placeAdmitted)
	enter(t, l, 41, fullReject, placeFull)
	b := enter(t, l, 40, fullReject, placeAdmitted)
	n := &note{}
	if _, _, err := l.Enter(t.Context(), n, &n.entry, 1, fullReject); err == nil || !strings.Contains(err.Error(), "2 of 3 messages") || !strings.Contains(err.Error(), "100 of 100 bytes") {
		t.Errorf("the error is %v", err)
	}
	l.Leave([]*note{a, b}, noteResult)
	large := enter(t, l, 1<<40, fullReject, placeAdmitted) // alone
	enter(t, l, 1, fullReject, placeFull)
	l.Leave([]*note{large}, noteResult)
	emptyLedger(t, l)
}

// A message whose function was not called yet counts in the bound of messages, but not in that of
// bytes.
func TestFunctionsCount(t *testing.T) {
	l := newLedger[*note](1, 100)
	a := enter(t, l, 100, fullReject, placeAdmitted)
	a.called = true
	l.Leave([]*note{a}, noteResult)
	enter(t, l, 1, fullReject, placeFull)
	l.calling()
	b := enter(t, l, 100, fullReject, placeAdmitted)
	l.called(&a.entry)
	l.Leave([]*note{b}, noteResult)
	emptyLedger(t, l)
}

// Messages wait in their order, also behind one that is too large; a message whose ctx ends lets
// those behind it in.
func TestWaitForAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger[*note](10, 100)
		first := enter(t, l, 80, fullWait, placeAdmitted)
		var mu sync.Mutex
		var order []int // guarded by mu
		wait := func(ctx context.Context, number, bytes int, want admission) *note {
			n := &note{}
			go func() {
				got := enterFull(ctx, t, l, n, bytes, fullWait)
				assert.That(t, got == want, "message %d: admission %d, want %d", number, got, want)
				mu.Lock()
				defer mu.Unlock()
				order = append(order, number)
			}()
			synctest.Wait()
			return n
		}
		ctx, cancel := context.WithCancel(t.Context())
		wait(ctx, 1, 30, placeEnded)
		second := wait(t.Context(), 2, 20, placeAdmitted)
		assert.That(t, len(order) == 0, "%v did not wait", order)
		cancel()
		synctest.Wait()
		third := wait(t.Context(), 3, 50, placeAdmitted)
		l.Leave([]*note{first}, noteResult)
		synctest.Wait()
		assert.That(t, slices.Equal(order, []int{2, 1, 3}) || slices.Equal(order, []int{1, 2, 3}), "they ended as %v", order)
		l.Leave([]*note{second, third}, noteResult)
		emptyLedger(t, l)
	})
}

// A full ledger admits messages on their way to the spool, as long as functions keep up.
func TestLedgerSpoolWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger[*note](1, 100)
		a := enter(t, l, 1, fullSpool, placeAdmitted)
		b := enter(t, l, 1, fullSpool, placeForced)
		b.result, b.called = leftSpooled, true
		l.Leave([]*note{b}, noteResult)
		c := &note{result: leftSpooled}
		var got admission
		go func() { got = enterFull(t.Context(), t, l, c, 1, fullSpool) }()
		synctest.Wait()
		assert.That(t, !c.entry.Place.Joined(), "a message was admitted while a function was not called")
		l.calling()
		synctest.Wait()
		assert.Equal(t, "admission after the call", got, placeForced)
		l.called(&b.entry)
		l.Leave([]*note{a, c}, noteResult)
		emptyLedger(t, l)
	})
}

// Flush waits for the messages before it, and their functions, alone.
func TestLedgerFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger[*note](10, 100)
		a := enter(t, l, 1, fullWait, placeAdmitted)
		a.called = true
		flushed := make(chan error, 1)
		go func() { flushed <- l.Flush(t.Context()) }()
		synctest.Wait()
		b := enter(t, l, 1, fullWait, placeAdmitted)
		l.Leave([]*note{a}, noteResult)
		l.calling()
		synctest.Wait()
		assert.Equal(t, "Flush did not wait for the function", len(flushed), 0)
		l.called(&a.entry)
		assert.NoError(t, <-flushed)
		cause := errors.New("the caller has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		assert.Is(t, "err", l.Flush(ctx), cause)
		l.Leave([]*note{b}, noteResult)
		emptyLedger(t, l)
	})
}

// Close rejects the waiting messages, and Settled follows the last result. Messages of the spool
// count in no bound and are in no account but their own.
func TestCloseAndReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger[*note](4, 100)
		var all []*note
		for _, r := range []leaveResult{leftDelivered, leftFailed, leftSpooled, leftAborted} {
			n := enter(t, l, 1, fullWait, placeAdmitted)
			n.result = r
			all = append(all, n)
		}
		for _, r := range []leaveResult{leftDrained, leftInSpool} {
			n := &note{result: r}
			assert.MustThat(t, l.Adopt(n, &n.entry), "the ledger is not closed")
			all = append(all, n)
		}
		waiting := &note{}
		go func() {
			got := enterFull(t.Context(), t, l, waiting, 1, fullWait)
			assert.That(t, got == placeClosed, "admission %d of a message that waited, want Closed", got)
		}()
		synctest.Wait()
		got := l.Pending()
		assert.That(t, slices.Equal(got, all), "%d messages are pending, want 6 in order", len(got))
		l.Close()
		l.Close()
		synctest.Wait()
		enter(t, l, 1, fullWait, placeClosed)
		assert.That(t, !l.Adopt(waiting, &waiting.entry) && !l.Hold(), "a closed ledger took something")
		l.Leave(all[1:], noteResult)
		select {
		case <-l.Settled():
			t.Error("settled before the last result")
		default:
		}
		l.Leave(all[:1], noteResult)
		<-l.Settled()
		c, aborted := l.Report()
		want := (ledgerCounts{Accepted: 4, Delivered: 1, Failed: 1, Spooled: 1, Aborted: 1, Drained: 1})
		assert.That(t, c == want && slices.Equal(aborted, all[3:4]), "%+v and %d aborted, want %+v", c, len(aborted), want)
		emptyLedger(t, l)
	})
}

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
	synctest.Test(t, func(t *testing.T) {
		for range 200 { // Await may come before Leave; then the message has ended
			l := newLedger[*note](1, 100)
			first := enter(t, l, 1, fullWait, placeAdmitted)
			ctx, cancel := context.WithCancel(t.Context())
			n := &note{}
			got := make(chan admission, 1)
			go func() { got <- enterFull(ctx, t, l, n, 1, fullWait) }()
			synctest.Wait()
			cancel() // wakes Await, which waits for the lock while all this happens:
			l.Leave([]*note{first}, noteResult)
			l.Close()
			pending := l.Pending()
			l.Leave(pending, noteResult)
			a := <-got
			if ended := len(pending) == 0; ended != (a == placeEnded) || !ended && a != placeAdmitted {
				t.Fatalf("admission %d; the message has a result: %v", a, !ended)
			}
		}
	})
}
