package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/flow"
	"github.com/tidegate/tidegate/consumer/internal/killswitch"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/transport"
)

// A StopReport counts each disposition in one field, and a message is consumed if the group does
// not receive it again from its topic.
func TestDispositions(t *testing.T) {
	for _, tt := range []struct {
		disposition Disposition
		want        StopReport
		consumed    bool
	}{
		{disposition: Acked, want: StopReport{Acked: 1}, consumed: true},
		{disposition: Retried, want: StopReport{Retried: 1}},
		{disposition: DeadLettered, want: StopReport{Retried: 1}, consumed: true},
		{disposition: LeaseLost, want: StopReport{Unsettled: 1}},
		{disposition: Released, want: StopReport{Released: 1}},
		{disposition: Unsettled, want: StopReport{Unsettled: 1}},
		{disposition: PerhapsSettled, want: StopReport{Unsettled: 1}},
		{disposition: Parked, want: StopReport{Retried: 1}},
		{disposition: Snoozed, want: StopReport{Retried: 1}},
		{disposition: Reconsumed, want: StopReport{Retried: 1}, consumed: true},
		{disposition: Discarded, want: StopReport{Retried: 1}, consumed: true},
	} {
		var got StopReport
		it := &item{disposition: tt.disposition}
		if got.count(it); got != tt.want || it.consumed() != tt.consumed {
			t.Errorf("%v: report %+v, consumed %v; want %+v, %v", tt.disposition, got, it.consumed(), tt.want, tt.consumed)
		}
	}
}

// A settlement that is postponed in the moment in which the shutdown time ends is not forgotten:
// its delivery ends as Unsettled, so that Run can return.
func TestSettlementPostponedAtTheEndOfTheShutdown(t *testing.T) {
	var seen []Outcome
	p := assert.Value(NewPush(struct{ Transport }{}, Subscription{Group: "billing", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error { return nil },
		PushOptions{OnDelivery: func(o Outcome) { seen = append(seen, o) }}))(t)
	r := &run{Push: p, log: p.opts.Logger, events: tally.New(p.opts.Logger), hand: newHand(&p.opts), topics: p.sub.newTopics()}
	r.detached, r.settling = t.Context(), &endingContext{Context: t.Context()}
	r.announcer = newPool(1, r.effects.Go)
	r.topics[0].settings.Store(&transport.ConsumerSettings{})

	now := time.Now()
	r.hand.arrive(arrival{
		list: []*tidegate.Delivery{{Message: tidegate.Message{ID: "1", Topic: "orders"}, Attempt: 1}}, caps: func(string) transport.Capabilities { return transport.Capabilities{} },
		source: &source{topic: r.topics[0]}, sent: now, invisible: time.Minute,
	}, now)
	it := r.hand.take(func(error) {})
	carryOut, _ := r.hand.returned(it, handled{decision: verdict.Decision{Act: verdict.Ack}}, now)
	assert.MustThat(t, carryOut, "the acknowledgement is not carried out")
	it.Last = errLost
	r.goOn(it, transport.RetryResult{}, verdict.TryAgain)
	if got := seen; len(got) != 1 || got[0].Disposition != Unsettled || r.hand.credits.Messages() != 0 {
		t.Errorf("outcomes %+v with %d deliveries in hand, want one that is unsettled, and none", got, r.hand.credits.Messages())
	}
}

// endingContext ends between the first and the second look at it.
type endingContext struct {
	context.Context
	looks int
}

func (c *endingContext) Err() error {
	if c.looks++; c.looks > 1 {
		return context.Canceled
	}
	return nil
}

func newTestHand(o PushOptions) *hand {
	o = o.withDefaults()
	return newHand(&o)
}

// After an extension with a lost response the handle is uncertain, also if the next attempt was
// certainly rejected, until one succeeds.
func TestHandleStaysUncertain(t *testing.T) {
	lost := &tidegate.Error{MaybeStored: true, Message: "the connection broke"}
	throttled := &tidegate.Error{Code: tidegate.CodeTooManyRequests}
	var it item
	for i, step := range []struct {
		err  error
		want bool
	}{{throttled, false}, {lost, true}, {throttled, true}, {nil, false}, {throttled, false}} {
		if it.takeOver(extension{err: step.err}); it.unsure != step.want {
			t.Errorf("after step %d (%v) the handle is uncertain: %v", i, step.err, it.unsure)
		}
	}
}

// A receive loop that waits for credits ends when its queue is removed.
func TestRemovedQueueEndsItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHand(PushOptions{})
		h.pause(true, time.Now())
		s := &source{topic: &topic{name: "orders"}}
		done := make(chan bool, 1)
		go func() {
			_, ok := h.reserve(s, 32, true, false)
			done <- ok
		}()
		synctest.Wait()
		h.remove(s)
		synctest.Wait()
		select {
		case ok := <-done:
			assert.That(t, !ok, "a removed queue got credits")
		default:
			t.Error("the loop of a removed queue waits")
			h.stop(true)
		}
	})
}

func TestPoolRunsAllJobsWithinItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		p := newPool(3, goroutines.Go)
		var running, most, done atomic.Int64
		for range 20 {
			p.Do(func() {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(time.Second)
				running.Add(-1)
				done.Add(1)
			})
		}
		begin := time.Now()
		goroutines.Wait() // they end when nothing is to be done
		assert.That(t, done.Load() == 20 && most.Load() == 3 && time.Since(begin) == 7*time.Second, "%d jobs, %d at a time, in %v; want 20, 3 and 7s", done.Load(), most.Load(), time.Since(begin))
	})
}

// A handModel plays the workers, the server and maintainLeases of a run.
type handModel struct {
	*hand
	t        *testing.T
	r        *rand.Rand
	now      time.Time
	timer    time.Time // of maintainLeases
	sources  []*source
	grants   []granted      // of receives under way
	waits    []*bid         // receives that wait for credits
	watches  []*poll        // of queues with a watch
	handlers []*item        // that are running
	awake    int            // workers that look for a delivery
	woken    int            // of the waiting workers, counted by idle: a signal has reached them
	attempts []*item        // settlement attempts under way
	renewals []*item        // extensions under way
	in       map[*item]bool // in hand
	events   int
	checks   int // by maintainLeases
	number   int // of messages
}

// A granted is a receive under way.
type granted struct {
	source *source
	grant  flow.Grant
}

// Each delivery in hand is handled, is settled, is extended, waits behind another delivery of its
// message group, or has an entry in the leases that maintainLeases has a timer for. A ready
// delivery waits only if the gate or the workers are at their limit, and a receive waits for
// credits only while none may be granted or a settlement is under way. The checks of
// maintainLeases are bounded by the events, and when all events have ended nothing is in hand.
func TestHandModel(t *testing.T) { model.Run(t, 300, runHandModel) }

func runHandModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	o := &PushOptions{
		Concurrency: 1 + r.IntN(8), MaxBuffered: r.IntN(30), MaxBytes: 1 << 30, InvisibleDuration: 30 * time.Second, MaxExtension: time.Duration(r.IntN(600)) * time.Second,
		KillSwitch: KillSwitch(killswitch.Options{FailureRatio: 0.5 * float64(r.IntN(3)), MinMessages: 4}.WithDefaults()),
	}
	m := &handModel{hand: newHand(o), t: t, r: r, now: time.Unix(0, 0), in: map[*item]bool{}}
	for i := range 1 + r.IntN(4) {
		m.sources = append(m.sources, &source{topic: &topic{number: i}})
	}
	m.work = m
	m.addSources(len(m.sources))
	m.watch()
	for range 1000 {
		m.step()
		if m.check(); t.Failed() {
			return
		}
	}
	m.follow(m.pause(false, m.now))
	for n := 0; len(m.in) > 0; n++ {
		switch {
		case len(m.renewals) > 0:
			m.extension(nil)
		case len(m.attempts) > 0:
			m.settled(true)
		case len(m.handlers) > 0:
			m.handle(verdict.Decision{Act: verdict.Ack}, false)
		default:
			m.now = m.timer
		}
		if m.check(); n > 10_000 || t.Failed() {
			t.Errorf("%d deliveries are in hand %d steps after the last event", len(m.in), n)
			return
		}
	}
	if m.unread != 0 || m.running != 0 || m.credits.Messages() != 0 || m.leases.First() != nil {
		t.Errorf("without a delivery in hand %d are unread, %d running and %d counted, and the first entry is %v", m.unread, m.running, m.credits.Messages(), m.leases.First())
	}
	assert.That(t, m.checks <= 10*m.events, "%d checks of the leases for %d events", m.checks, m.events)
}

// step makes one random event happen.
func (m *handModel) step() {
	m.events++
	failure := []error{nil, nil, errLost, tidegate.ErrInvalidHandle}[m.r.IntN(4)]
	switch n := m.r.IntN(100); {
	case n < 10:
		s := m.sources[m.r.IntN(len(m.sources))]
		if g, ok := m.reserve(s, 1+m.r.IntN(32), false, m.r.IntN(2) == 0); ok {
			m.grants = append(m.grants, granted{s, g})
		}
	case n < 15 && len(m.bids) < 8:
		m.bid(m.sources[m.r.IntN(len(m.sources))], m.r.IntN(2) == 0)
	case n < 18:
		if p := (&poll{source: m.sources[m.r.IntN(len(m.sources))], cancel: func() {}}); len(m.watches) < len(m.sources) && m.beginWatch(p) {
			m.watches = append(m.watches, p)
		}
	case n < 20 && len(m.watches) > 0:
		p := pop(m, &m.watches)
		m.endWatch(p)
		m.bid(p.source, true)
	case n < 30 && len(m.grants) > 0:
		m.receive()
	case n < 50 && len(m.handlers) > 0:
		d := verdict.Decision{Act: verdict.Ack}
		if n := m.r.IntN(5); n > 2 {
			d = verdict.Decision{Verdict: transport.Verdict{Kind: []transport.VerdictKind{transport.Retry, transport.DeadLetter}[n-3]}}
			if d.Kind == transport.Retry {
				d.Delay = time.Duration(m.r.IntN(20)) * time.Second
			}
		}
		m.handle(d, d.Act != verdict.Ack)
	case n < 75 && len(m.attempts) > 0:
		m.settled(m.r.IntN(4) > 0)
	case n < 85 && len(m.renewals) > 0:
		m.extension(failure)
	case n < 87:
		m.follow(m.pause(m.r.IntN(2) == 0, m.now))
	default:
		m.now = m.now.Add(min(time.Duration(m.r.IntN(8000))*time.Millisecond, m.timer.Sub(m.now)))
	}
}

// bid is reserve without its wait.
func (m *handModel) bid(s *source, prompt bool) {
	b := &bid{source: s, batch: 1 + m.r.IntN(32), prompt: prompt, ended: make(chan struct{})}
	m.bids, m.waits = append(m.bids, b), append(m.waits, b)
	m.offer()
}

var errLost = &tidegate.Error{Err: tidegate.ErrUnavailable, MaybeStored: true}

func pop[T any](m *handModel, list *[]T) (x T) {
	i := m.r.IntN(len(*list))
	x = (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return x
}

// receive brings a receive some messages, of which the first ones are of one message group, and ends
// it or not.
func (m *handModel) receive() {
	g := pop(m, &m.grants)
	a := arrival{source: g.source, grant: g.grant, sent: m.now.Add(-time.Second), invisible: m.opts.InvisibleDuration, fifo: m.r.IntN(2) == 0}
	caps := transport.Capabilities{Suspend: m.r.IntN(2) == 0}
	if m.r.IntN(2) == 0 {
		caps.Verdicts = transport.Snooze
	}
	a.caps = func(string) transport.Capabilities { return caps }
	n := m.r.IntN(g.grant.Messages + 1)
	if a.more = m.r.IntN(2) == 0; a.more {
		a.grant, g.grant = g.grant.Split(n, 0)
		m.grants = append(m.grants, g)
	}
	for i := range n {
		m.number++
		d := &tidegate.Delivery{Message: tidegate.Message{ID: fmt.Sprint(m.number), Topic: "orders"}, Attempt: 1}
		if i < 5 {
			d.MessageGroup = fmt.Sprint("group", m.number-i)
		}
		a.list = append(a.list, d)
	}
	before := m.all()
	c := m.arrive(a, m.now)
	for _, it := range slices.Concat(m.all(), c.release) {
		if !slices.Contains(before, it) {
			m.in[it] = true
		}
	}
	m.follow(c)
}

// handle ends a handler with a verdict.
func (m *handModel) handle(d verdict.Decision, failed bool) {
	it := pop(m, &m.handlers)
	carryOut, c := m.returned(it, handled{decision: d, took: time.Millisecond, failed: failed}, m.now)
	if carryOut {
		m.attempts = append(m.attempts, it)
	}
	if m.r.IntN(8) == 0 { // the handler has ended its goroutine
		m.awake += m.leave()
	} else {
		m.awake++
	}
	m.follow(c)
}

// settled ends an attempt to settle a delivery.
func (m *handModel) settled(good bool) {
	it := pop(m, &m.attempts)
	if it.Decision.Act == verdict.Forget || it.Decision.Act == verdict.Keep {
		good = true
	}
	if at := m.now.Add(time.Second); !good && at.Before(it.lease.Until) {
		m.later(it, at)
		return
	}
	it.disposition = Unsettled
	delete(m.in, it)
	if it.Decision.Act == verdict.Keep {
		before := m.all()
		c := m.keep(it, m.now)
		for _, next := range slices.Concat(m.all(), c.release) {
			if !slices.Contains(before, next) {
				m.in[next] = true
			}
		}
		m.follow(c)
		return
	}
	if good {
		it.conclude(transport.RetryResult{}, nil)
	}
	m.follow(m.removeSettled(m.now, it))
}

// extension ends an extension.
func (m *handModel) extension(err error) {
	it := pop(m, &m.renewals)
	x := extension{sent: m.now.Add(-2 * time.Second), now: m.now, inv: m.opts.InvisibleDuration, handle: "handle", err: err}
	t, lost, carryOut := m.extended(it, x)
	assert.That(m.t, err != nil || it.lease.Until.Before(x.sent.Add(x.inv)), "a lease ends %v after the request for its extension by %v", it.lease.Until.Sub(x.sent), x.inv)
	if carryOut || lost && t.do == endLost {
		m.attempts = append(m.attempts, it)
	}
}

func (m *handModel) follow(c change) {
	m.awake += c.hire
	m.attempts = append(m.attempts, c.release...)
}

// watch plays maintainLeases.
func (m *handModel) watch() {
	m.checks++
	tasks, c, next := m.due(m.now)
	m.follow(c)
	for _, t := range tasks {
		switch m.events++; t.do {
		case extendLease:
			m.renewals = append(m.renewals, t.it)
		case endLost, settleAgain:
			m.attempts = append(m.attempts, t.it)
		}
	}
	if m.timer = next; !next.After(m.now) {
		m.t.Errorf("the next check is %v ago", m.now.Sub(next))
	}
}

// check lets maintainLeases and the workers act, and checks the state.
func (m *handModel) check() {
	m.t.Helper()
	for again := true; again; {
		select {
		case <-m.kicked:
			m.watch()
		default:
			if again = !m.timer.After(m.now); again {
				m.watch()
			}
		}
	}
	m.awake, m.idle, m.woken = m.awake+m.woken, m.idle-m.woken, 0
	for ; m.awake > 0; m.awake-- {
		it := m.next()
		if it == nil {
			m.idle++
			continue
		}
		it.phase, it.cancel = running, func(error) {}
		m.unread--
		m.running++
		m.handlers = append(m.handlers, it)
	}
	if first := m.leases.First(); first != nil && first.At.Before(m.timer) || !m.gate.Wake().IsZero() && m.gate.Wake().Before(m.timer) ||
		len(m.reminders) > 0 && m.reminders[0].At.Before(m.timer) {
		m.t.Error("maintainLeases sleeps longer than until the first entry, the change of the gate or the first reminder")
	}
	m.waits = slices.DeleteFunc(m.waits, func(b *bid) bool {
		select {
		case <-b.ended:
			m.grants = append(m.grants, granted{b.source, b.grant})
			return true
		default:
		}
		// The end of a settlement under way offers the credits, which its handler may have changed.
		settles := func(it *item) bool { return it.phase == settling }
		credits := m.credits
		if ask, may := m.ask(b); may && credits.May(ask) && !slices.ContainsFunc(slices.Collect(maps.Keys(m.in)), settles) {
			m.t.Errorf("a receive waits for credits: %+v, and may have them", ask)
		}
		return false
	})
	waiting, entries := 0, m.all()
	for it := range m.in {
		switch it.phase {
		case running:
			assert.That(m.t, slices.Contains(m.handlers, it), "a running delivery has no handler")
		case settling:
			assert.That(m.t, slices.Contains(m.attempts, it) || slices.Contains(m.renewals, it) || slices.Contains(entries, it), "the settlement of %s waits for nothing", it.current.ID)
		case ready:
			waiting++
			fallthrough
		case inLine:
			assert.That(m.t, it.phase != inLine || m.behind(it), "%s stands behind no other delivery", it.current.ID)
			assert.That(m.t, slices.Contains(entries, it), "the lease of %s has no entry", it.current.ID)
		case resting:
			assert.That(m.t, slices.Contains(entries, it) && !it.wake.At.After(it.due), "the retry of %s in this process has no entry", it.current.ID)
		case gone:
			m.t.Errorf("%s is settled and in hand", it.current.ID)
		}
	}
	if limit := m.gate.Limit(m.opts.Concurrency); waiting > 0 && m.running < limit {
		m.t.Errorf("%d deliveries are ready, and %d of %d handlers are running", waiting, m.running, limit)
	}
}

// Wait, Signal and Broadcast are those of a sync.Cond whose woken workers wait for the lock.
func (m *handModel) Wait()      { m.t.Error("the model waits") }
func (m *handModel) Signal()    { m.woken = min(m.woken+1, m.idle) }
func (m *handModel) Broadcast() { m.woken = m.idle }

// behind reports whether a delivery is in a line with a delivery whose end makes the next one
// ready.
func (m *handModel) behind(it *item) bool {
	for o := range m.in {
		if o.line == it.line && o.phase != inLine {
			return true
		}
	}
	return false
}

// bucket is a limiter that permits a number of events without a wait, and then fails.
type bucket struct {
	free int
	err  error // of a wait; nil permits one event
}

func (b *bucket) Allow() bool { b.free--; return b.free >= 0 }

func (b *bucket) WaitN(ctx context.Context, _ int) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return b.err
}

// waiter is a limiter that can only be waited for.
type waiter struct{ bucket *bucket }

func (w waiter) WaitN(ctx context.Context, n int) error { return w.bucket.WaitN(ctx, n) }

func TestAwait(t *testing.T) {
	fault := errors.New("the limiter is out of order")
	ended, end := context.WithCancel(t.Context())
	end()
	for name, tt := range map[string]struct {
		p            permits
		ctx          context.Context
		more, helper bool
		want         int
		err          error
	}{
		"no limiter":                    {want: 10},
		"one, after a wait":             {p: permits{Limiter: &bucket{free: 5}}, want: 1},
		"as many as there are":          {p: permits{Limiter: &bucket{free: 5}}, more: true, want: 6},
		"no more than asked for":        {p: permits{Limiter: &bucket{free: 50}}, more: true, want: 10},
		"one without Allow":             {p: permits{Limiter: waiter{&bucket{free: 5}}}, more: true, want: 1},
		"those that are left":           {p: permits{Limiter: &bucket{err: fault}, left: 3}, want: 3},
		"a helper does not wait":        {p: permits{Limiter: &bucket{}}, more: true, helper: true},
		"a helper takes a free permit":  {p: permits{Limiter: &bucket{free: 2}}, more: true, helper: true, want: 2},
		"a helper waits without Allow":  {p: permits{Limiter: waiter{&bucket{}}}, helper: true, want: 1},
		"the limiter's fault":           {p: permits{Limiter: &bucket{err: fault}}, err: fault},
		"the end of ctx is not a fault": {p: permits{Limiter: &bucket{}}, ctx: ended},
	} {
		ctx := tt.ctx
		if ctx == nil {
			ctx = t.Context()
		}
		if n, err := tt.p.Await(ctx, 10, tt.more, tt.helper); n != tt.want || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
			t.Errorf("%s: %d, %v; want %d, %v", name, n, err, tt.want, tt.err)
		}
	}
}

func TestSpend(t *testing.T) {
	p := permits{Limiter: &bucket{free: 5}}
	n, _ := p.Await(t.Context(), 4, true, false)
	p.Spend(1)
	again, _ := p.Await(t.Context(), 10, false, false)
	assert.That(t, n == 4 && again == 3, "%d, and %d after one was spent, want 4 and 3", n, again)
	p.Spend(9) // a server brought more than was asked for
	again, _ = p.Await(t.Context(), 10, false, false)
	assert.That(t, again == 1, "%d after all were spent, want 1 after a wait", again)
}

// Retries and new messages wait for handlers in two queues. While
// both have messages, each four turns are three new messages and one retry, so that neither queue
// starves; a queue that is alone has all turns.
func TestRetriesAndNewMessagesShareTheHandlers(t *testing.T) {
	o := PushOptions{Concurrency: 1000}.withDefaults()
	h := newHand(&o)
	arrive := func(attempt, n int) {
		for range n {
			h.unread++
			it := newItem(&tidegate.Delivery{Attempt: attempt}, nil, transport.Capabilities{}, flow.Lease{})
			h.makeReady(it)
		}
	}
	_, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	attempts := func(n int) (fresh, retried int) {
		for range n {
			if it := h.take(cancel); it.current.Attempt == 1 {
				fresh++
			} else {
				retried++
			}
		}
		return fresh, retried
	}
	arrive(2, 100)
	arrive(1, 100)
	for order := range 30 {
		if fresh, retried := attempts(4); fresh != 3 || retried != 1 {
			t.Fatalf("turns %d to %d are %d new messages and %d retries, want 3 and 1", 4*order+1, 4*order+4, fresh, retried)
		}
	}
	fresh, retried := attempts(80)
	assert.That(t, fresh == 10 && retried == 70, "the rest is %d new messages and %d retries, want 10 and 70", fresh, retried)
}

// The settings of a topic have no attempts for its retry topic.
func TestAttemptsOfARetryTopicAreUnknown(t *testing.T) {
	src := &source{topic: &topic{name: "orders"}}
	src.topic.settings.Store(&transport.ConsumerSettings{MaxAttempts: 3})
	r := &run{}
	for name, want := range map[string]int{"orders": 3, "orders-billing-RETRY": 0} {
		it := &item{source: src, current: tidegate.Delivery{Message: tidegate.Message{Topic: name}, Attempt: 3}}
		got := r.maxAttempts(it)
		assert.That(t, got == want, "%s: %v, want %v", name, got, want)
	}
}
