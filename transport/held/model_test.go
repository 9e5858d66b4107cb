package held

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

// A modelSystem is a system with queues. It keeps the truth: which link has a message, and which
// messages have ended.
type modelSystem struct {
	queues [][]*modelEntry // by source
}

// A modelEntry is a message of a queue.
type modelEntry struct {
	number int
	group  string
	tag    string
	size   int
	count  int // failed deliveries that the system counted
	due    time.Time
	push   *modelPush // that is not settled
	done   bool
}

// A modelPush is a message that was pushed to a link.
type modelPush struct {
	*modelEntry
	link    *link
	settled bool      // successfully
	unsure  bool      // it was settled, and the response was lost
	refused time.Time // when a settlement in the background was
}

// A modelLease is a delivery that a receiver of the model has.
type modelLease struct {
	handle string
	source int
	*modelPush
	until time.Time
}

// A shelfModel plays the receivers, the system and package held. All of them may be slow: each
// action waits in a list until a random step carries it out.
type shelfModel struct {
	*shelf
	t      *testing.T
	r      *rand.Rand
	now    time.Time
	keys   []key
	fifo   []bool
	system modelSystem

	waiters  []*waiter
	timers   map[*waiter]time.Time // of the receives; zero: only a wake-up
	signals  []*waiter
	opens    []*link
	closes   []*link
	settles  []settlement // in the background
	finishes []settlement // by callers
	alive    map[*link]bool
	credit   map[*link]int
	leases   []*modelLease
	links    []*link   // that were opened
	timer    time.Time // of package held
	rude     bool      // the system pushes messages that it was not asked for
	quiet    bool      // no receive comes
	stopped  bool

	number, excess, events, calls int
}

var errRefused = errors.New("refused")

// Every receive, message and source that waits has something that ends its wait; the held messages
// and the credit are bounded; a message group is in order; each message is settled at most once and
// none is forgotten; the calls of the system are bounded by the events.
func TestModel(t *testing.T) { model.Run(t, 100, runModel) }

func runModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	messages := []int{1 + r.IntN(6), 20 + r.IntN(30)}[r.IntN(2)]
	m := &shelfModel{
		shelf: newShelf(limits{Messages: messages, Bytes: 500 + 2000*messages*r.IntN(2), Idle: 2 * time.Second, Grace: 50 * time.Millisecond, Linger: 5 * time.Millisecond}, "h"),
		t:     t, r: r, now: time.Unix(1000, 0),
		timers: map[*waiter]time.Time{}, alive: map[*link]bool{}, credit: map[*link]int{}, rude: r.IntN(4) == 0,
	}
	for i := range 1 + r.IntN(3) {
		m.keys = append(m.keys, key{Group: fmt.Sprint("group", i), Topic: "orders", Filter: tidegate.Filter{Expression: []string{"", "a || b"}[r.IntN(2)]}})
		m.fifo = append(m.fifo, r.IntN(2) == 0)
		m.system.queues = append(m.system.queues, nil)
	}
	for range 2000 {
		m.step()
		if m.check(); t.Failed() {
			return
		}
	}
	m.rest()
}

// step makes one random event happen.
func (m *shelfModel) step() {
	m.events++
	switch n := m.r.IntN(100); {
	case n < 14:
		m.send(m.r.IntN(len(m.keys)))
	case n < 24 && !m.quiet:
		m.receive(m.r.IntN(len(m.keys)))
	case n < 36:
		m.collect()
	case n < 38 && len(m.waiters) > 0 || n < 44 && m.quiet && len(m.waiters) > 0:
		w := m.waiters[m.r.IntN(len(m.waiters))]
		m.left(w)
		m.Leave(w, m.now)
	case n < 45 && len(m.opens) > 0:
		m.opened(m.r.IntN(16) == 0)
	case n < 46 && len(m.closes) > 0:
		m.finishClose()
	case n < 62:
		m.push()
	case n < 72 && len(m.leases) > 0:
		m.settle(m.leases[m.r.IntN(len(m.leases))])
	case n < 80 && len(m.finishes) > 0:
		m.finish()
	case n < 88 && len(m.settles) > 0:
		m.background()
	case n < 89:
		if m.r.IntN(4) == 0 {
			m.lose()
		}
	case n < 90:
		m.quiet = m.r.IntN(3) == 0
	default:
		d := []time.Duration{2 * time.Millisecond, 200 * time.Millisecond, time.Second, 8 * time.Second}[m.r.IntN(4)]
		if next := m.soonest(); m.r.IntN(3) > 0 && !next.IsZero() {
			d = min(d, max(0, next.Sub(m.now)))
		}
		m.now = m.now.Add(d)
	}
}

// soonest returns the time of the first timer.
func (m *shelfModel) soonest() time.Time {
	next := m.Next()
	for _, t := range m.timers {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	return next
}

func (m *shelfModel) send(source int) {
	m.number++
	e := &modelEntry{number: m.number, tag: []string{"a", "b", "c"}[m.r.IntN(3)], size: m.r.IntN(2000)}
	if m.r.IntN(4) > 0 {
		e.group = fmt.Sprint("mg", m.r.IntN(2))
	}
	m.system.queues[source] = append(m.system.queues[source], e)
}

func (m *shelfModel) receive(source int) {
	r := request{
		key: m.keys[source], FIFO: m.fifo[source], MaxAttempts: source, Push: m.r.IntN(2) == 0, Max: 1 + m.r.IntN(8), MaxBytes: m.r.IntN(3) * 1000,
		Invisible: time.Duration(1+m.r.IntN(10_000)) * time.Millisecond, Wait: time.Duration(m.r.IntN(10)) * time.Second,
	}
	if m.r.IntN(3) == 0 {
		r.AttemptID = fmt.Sprint(m.r.IntN(10))
		r.Repeat = m.r.IntN(3) == 0
	}
	m.Due(m.now)
	w, ds, err := m.Receive(r, m.now)
	assert.That(m.t, err == nil, "Receive: %v", err)
	assert.That(m.t, !r.Repeat || w == nil, "a repeated receive waits")
	m.got(source, r, ds)
	if w != nil {
		m.waiters = append(m.waiters, w)
		m.timers[w] = m.now.Add(r.Wait)
	}
}

// collect runs a receive after its signal or timer.
func (m *shelfModel) collect() {
	var w *waiter
	if len(m.signals) > 0 {
		w = m.signals[0]
		m.signals = m.signals[1:]
	} else {
		i := slices.IndexFunc(m.waiters, func(w *waiter) bool { return !m.timers[w].IsZero() && !m.timers[w].After(m.now) })
		if i < 0 {
			return
		}
		w = m.waiters[i]
		m.timers[w] = time.Time{}
	}
	m.run(w)
}

func (m *shelfModel) run(w *waiter) {
	m.Due(m.now)
	ds, done, next, err := m.Collect(w, m.now)
	assert.That(m.t, err == nil || errors.Is(err, errRefused), "Collect: %v", err)
	m.got(slices.Index(m.keys, w.r.key), w.r, ds)
	switch {
	case done:
		m.left(w)
	case !next.IsZero():
		m.timers[w] = next
		assert.That(m.t, next.After(m.now), "the receive should have ended %v ago and continues", m.now.Sub(next))
	}
}

func (m *shelfModel) left(w *waiter) {
	m.waiters = slices.DeleteFunc(m.waiters, func(o *waiter) bool { return o == w })
	m.signals = slices.DeleteFunc(m.signals, func(o *waiter) bool { return o == w })
	delete(m.timers, w)
}

// got checks and remembers the deliveries of a receive.
func (m *shelfModel) got(source int, r request, ds []*tidegate.Delivery) {
	bytes := 0
	for i, d := range ds {
		msg := m.handles[d.Handle]
		if msg == nil {
			m.t.Errorf("%q was delivered without a lease", d.ID)
			return
		}
		e := msg.Native.(*modelPush)
		if bytes += len(d.Body); i > 0 && r.MaxBytes > 0 && bytes > r.MaxBytes && r.AttemptID == "" {
			m.t.Errorf("%d bytes, the bound is %d", bytes, r.MaxBytes)
		}
		assert.That(m.t, e.push == e || e.unsure, "message %d was delivered after it had left the link", e.number)
		if m.fifo[source] && e.group != "" {
			for _, o := range m.system.queues[source] {
				if o.group == e.group && o.number < e.number && !o.done && (m.keys[source].Filter.Expression == "" || o.tag != "c") {
					m.t.Errorf("%d of %s was delivered before %d has ended", e.number, e.group, o.number)
				}
			}
		}
		if old := m.lease(d.Handle); old != nil {
			assert.That(m.t, r.AttemptID != "", "%d was delivered twice with the handle %s", e.number, d.Handle)
			continue // repeated
		}
		for _, l := range m.leases {
			assert.That(m.t, l.modelPush != e || !l.until.After(m.now),
				"%d was delivered again %v before the end of its lease", e.number, l.until.Sub(m.now))
		}
		assert.That(m.t, len(ds) <= r.Max && !r.Repeat && d.InvisibleUntil.Equal(m.now.Add(r.Invisible)), "%d deliveries until %v for %+v", len(ds), d.InvisibleUntil, r)
		m.leases = append(m.leases, &modelLease{d.Handle, source, e, d.InvisibleUntil})
	}
}

func (m *shelfModel) lease(handle string) *modelLease {
	for _, l := range m.leases {
		if l.handle == handle {
			return l
		}
	}
	return nil
}

func (m *shelfModel) end(l *modelLease) {
	m.leases = slices.DeleteFunc(m.leases, func(o *modelLease) bool { return o == l })
}

// settle makes a receiver settle or change a delivery.
func (m *shelfModel) settle(l *modelLease) {
	m.Due(m.now)
	valid := l.until.After(m.now) && m.alive[l.link] && !slices.ContainsFunc(m.finishes, func(s settlement) bool { return s.handle == l.handle })
	var err error
	switch delay := time.Duration(m.r.IntN(4)) * time.Second; m.r.IntN(8) {
	case 0, 1:
		var msg *message
		if msg, err = m.Begin(l.handle, m.now); err == nil {
			m.finishes = append(m.finishes, settlement{message: msg, Outcome: []outcome{accepted, deadLettered}[m.r.IntN(2)]})
		}
	case 2:
		var s *settlement
		if s, err = m.Retry(l.handle, delay, "", m.now); err == nil {
			if s != nil {
				m.finishes = append(m.finishes, *s)
			} else {
				m.end(l)
			}
		}
	case 3, 4:
		var handle string
		if handle, err = m.Change(l.handle, delay, m.now); err == nil {
			if delay == 0 {
				m.end(l)
			} else {
				l.handle, l.until = handle, m.now.Add(delay)
			}
		}
	case 5:
		if err = m.Snooze(l.handle, delay, m.now); err == nil {
			m.end(l)
		}
	case 7:
		if err = m.NegativeAck(l.handle, delay, m.now); err == nil {
			m.end(l)
		}
	case 6:
		if err = m.Release(l.handle, m.now); err == nil {
			m.end(l)
		}
	}
	assert.That(m.t, valid == (err == nil), "a handle that is valid %v until %v, at %v: %v", valid, l.until, m.now, err)
	if err != nil && !l.until.After(m.now) {
		m.end(l)
	}
}

// finish ends a settlement of a receiver.
func (m *shelfModel) finish() {
	s := pop(m, &m.finishes)
	err := m.outcome(s)
	m.Due(m.now)
	m.Finish(s.message, err, s.Outcome == deadLettered, m.now)
	assert.That(m.t, !m.Buried(s.handle) || s.until.After(m.now), "a dead letter is known after the end of its lease")
	if err == nil {
		if l := m.lease(s.handle); l != nil {
			m.end(l)
		}
	}
}

// background ends a settlement in the background.
func (m *shelfModel) background() {
	s := pop(m, &m.settles)
	err := m.outcome(s)
	if err != nil {
		s.Native.(*modelPush).refused = m.now
	}
	m.Due(m.now)
	m.Left(s.message, err, m.now)
}

// outcome is the system's response to a settlement: done, refused, or done with a lost response.
func (m *shelfModel) outcome(s settlement) error {
	m.calls++
	p := s.Native.(*modelPush)
	if !m.alive[s.Link] {
		return errRefused
	}
	refused := !m.stopped && m.r.IntN(4) == 0
	if refused && m.r.IntN(2) == 0 {
		return errRefused
	}
	if p.push == p {
		p.push = nil
		switch s.Outcome {
		case accepted, deadLettered:
			p.done = true
		case retried:
			p.count++
			p.due = m.now.Add(s.Delay)
		case redelivered:
			p.count++
		}
	}
	if refused {
		p.unsure = true
		return errRefused
	}
	assert.That(m.t, !p.settled, "message %d was settled twice", p.number)
	p.settled = true
	return nil
}

// push makes the system push a message, sometimes one that it was not asked for, or to a link that
// has ended.
func (m *shelfModel) push() {
	if n := len(m.links); n > 0 && m.r.IntN(20) == 0 && !m.alive[m.links[n-1]] {
		m.Due(m.now)
		m.Deliver(m.links[n-1], &tidegate.Delivery{}, nil, m.now)
	}
	m.links = slices.DeleteFunc(m.links, func(l *link) bool { return !m.alive[l] })
	if len(m.links) == 0 {
		return
	}
	l := m.links[m.r.IntN(len(m.links))]
	if m.credit[l] == 0 {
		if !m.rude || m.r.IntN(4) > 0 {
			return
		}
		m.credit[l]++
		m.excess++
	}
	for _, e := range m.system.queues[slices.Index(m.keys, l.Source.key)] {
		if e.done || e.push != nil || e.due.After(m.now) {
			continue
		}
		m.credit[l]--
		e.push = &modelPush{modelEntry: e, link: l}
		d := &tidegate.Delivery{Message: tidegate.Message{Tag: e.tag, MessageGroup: e.group, Body: make([]byte, e.size)}, Attempt: e.count + 1}
		m.Due(m.now)
		m.Deliver(l, d, e.push, m.now)
		return
	}
}

func (m *shelfModel) opened(fails bool) {
	l := pop(m, &m.opens)
	m.calls++
	m.Due(m.now)
	if fails {
		m.Opened(l, errRefused, m.now)
		return
	}
	m.links = append(m.links, l)
	m.alive[l] = true
	m.Opened(l, nil, m.now)
}

func (m *shelfModel) finishClose() {
	l := pop(m, &m.closes)
	m.calls++
	m.kill(l)
	m.Due(m.now)
	m.Closed(l)
}

func (m *shelfModel) kill(l *link) {
	m.alive[l] = false
	delete(m.credit, l)
	for _, e := range m.system.queues[slices.Index(m.keys, l.Source.key)] {
		if e.push != nil && e.push.link == l {
			e.push = nil
		}
	}
}

// lose ends a link.
func (m *shelfModel) lose() {
	for _, k := range m.keys {
		src := m.sources[k]
		if src == nil || src.link == nil || !src.link.open || m.r.IntN(len(m.keys)) > 0 {
			continue
		}
		l := src.link
		m.kill(l)
		m.Due(m.now)
		m.Lost(l, errRefused, m.now)
		return
	}
}

// take carries out or remembers the actions of the Shelf.
func (m *shelfModel) take() {
	m.t.Helper()
	o := m.Take()
	m.opens = append(m.opens, o.Open...)
	m.closes = append(m.closes, o.Close...)
	m.settles = append(m.settles, o.Settle...)
	for _, s := range o.Settle {
		if p := s.Native.(*modelPush); m.now.Sub(p.refused) < time.Second {
			m.t.Errorf("a settlement is repeated %v after it was refused", m.now.Sub(p.refused))
		}
	}
	for _, w := range o.Wake {
		if !slices.Contains(m.signals, w) {
			m.signals = append(m.signals, w)
		}
	}
	for _, g := range o.Grant {
		m.calls++
		assert.That(m.t, g.N >= 1, "%d messages are asked for", g.N)
		if m.alive[g.Link] {
			m.credit[g.Link] += g.N
		}
	}
}

func pop[T any](m *shelfModel, list *[]T) (x T) {
	i := m.r.IntN(len(*list))
	x = (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return x
}

// check checks the state after an event.
func (m *shelfModel) check() {
	m.t.Helper()
	m.take()
	for m.timer.IsZero() || !m.Next().IsZero() && m.Next().Before(m.timer) || !m.timer.After(m.now) {
		if m.timer = m.Next(); m.timer.IsZero() {
			break
		}
		if !m.timer.After(m.now) {
			m.Due(m.now)
			m.take()
		}
	}
	for _, w := range m.waiters {
		m.checkWaiter(w)
	}
	held, bytes, credit, waiting := 0, 0, 0, 0
	for _, src := range m.sources {
		l := src.link
		if l == nil {
			assert.That(m.t, src.closing != 0 || len(src.waiters) != 0, "a source is left without links and receives")
			continue
		}
		assert.That(m.t, !l.open || len(src.waiters) != 0 || !l.canReturn() || src.alarm.place != 0, "no alarm returns the messages of a source without receives")
		assert.That(m.t, l.credit == m.credit[l] || m.excess != 0, "the credit is %d, the system has %d", l.credit, m.credit[l])
		inHand := 0
		for _, msg := range l.messages {
			held, bytes = held+1, bytes+msg.size
			if msg.state != buffered {
				inHand++
			}
			if msg.state == postponed {
				waiting++
			}
			m.checkMessage(l, msg)
		}
		if credit += l.credit; inHand != l.inHand {
			m.t.Errorf("%d messages are in hand, counted %d", inHand, l.inHand)
		}
	}
	if held != m.held || bytes != m.bytes || credit != m.shelf.credit {
		m.t.Errorf("%d messages, %d bytes, credit %d; counted %d, %d, %d", held, bytes, credit, m.held, m.bytes, m.shelf.credit)
	}
	assert.That(m.t, waiting == m.postponed, "%d messages are postponed, counted %d", waiting, m.postponed)
	if limit := m.limits.Messages + len(m.keys); credit > limit || held+credit > limit+m.limits.Messages+m.excess {
		m.t.Errorf("%d messages are held and %d asked for, the limit is %d", held, credit, limit)
	}
}

// checkWaiter checks that something ends the wait of a receive, and that it waits for messages
// only.
func (m *shelfModel) checkWaiter(w *waiter) {
	m.t.Helper()
	signalled := slices.Contains(m.signals, w)
	assert.That(m.t, w.woken == signalled || !w.woken, "a woken receive has no signal")
	src := w.source
	l := src.link
	switch {
	case signalled:
	case w.err != nil || w.ended || l == nil:
		m.t.Errorf("a receive that has ended, with %v, is not woken", w.err)
	case !l.asked:
		assert.That(m.t, slices.ContainsFunc(m.closes, func(o *link) bool { return o.Source == src }), "a receive waits for a link that is not being opened")
	case !l.open:
		assert.That(m.t, slices.Contains(m.opens, l), "a receive waits for the end of an Open that has ended")
	default:
		assert.That(m.t, !m.timers[w].IsZero(), "no timer ends a receive")
		awake := slices.ContainsFunc(m.signals, func(o *waiter) bool { return o.source == src })
		lingers := !m.timers[src.waiters[0]].After(m.now.Add(m.limits.Linger)) && l.credit > 0 && l.ready.len() < src.waiters[0].r.Max
		assert.That(m.t, l.ready.len() <= 0 || awake || lingers, "%d messages are ready, and no receive is woken", l.ready.len())
		full := m.held >= m.limits.Messages || m.bytes >= m.limits.Bytes
		assert.That(m.t, l.ready.len() != 0 || l.credit != 0 || len(l.messages) != 0 && full && slices.Contains(m.starved, src), "a receive waits, and its link has no credit")
	}
}

func (m *shelfModel) checkMessage(l *link, msg *message) {
	m.t.Helper()
	ok := false
	line := l.lines[msg.Delivery.MessageGroup]
	switch msg.state {
	case buffered:
		ok = msg.ready > 0 || msg.inLine && slices.Index(line, msg) > 0
	case leased, postponed:
		ok = msg.alarm.place > 0
	case settling:
		ok = slices.ContainsFunc(m.finishes, func(s settlement) bool { return s.message == msg })
	case leaving:
		ok = msg.alarm.place > 0 || slices.ContainsFunc(m.settles, func(s settlement) bool { return s.message == msg })
	}
	if ok && msg.inLine && line[0] != msg {
		ok = msg.state == buffered && msg.ready == 0
	}
	assert.That(m.t, ok, "a message in state %d waits for nothing", msg.state)
}

// rest ends all receives, completes all pending actions, and checks that no state is left.
func (m *shelfModel) rest() {
	m.stopped = true
	if m.r.IntN(4) == 0 {
		m.Due(m.now)
		m.Close()
		m.take()
		for _, w := range slices.Clone(m.waiters) {
			if _, done, _, err := m.Collect(w, m.now); !slices.Contains(m.signals, w) || !done || !errors.Is(err, tidegate.ErrClosed) && !errors.Is(err, errRefused) && !w.ended {
				m.t.Errorf("after Close a receive ended %v with %v", done, err)
			}
			m.left(w)
		}
		m.settles = nil
	}
	for len(m.waiters) > 0 {
		w := m.waiters[0]
		m.left(w)
		m.Leave(w, m.now)
		m.take()
	}
	for n := 0; len(m.opens)+len(m.closes)+len(m.settles)+len(m.finishes) > 0 || !m.Next().IsZero(); n++ {
		switch {
		case len(m.opens) > 0:
			m.opened(false)
		case len(m.closes) > 0:
			m.finishClose()
		case len(m.settles) > 0:
			m.background()
		case len(m.finishes) > 0:
			m.finish()
		default:
			m.now = m.Next()
		}
		if m.check(); n > 10_000 || m.t.Failed() {
			m.t.Errorf("%d messages are held %d steps after the last event", m.held, n)
			return
		}
	}
	if m.held != 0 || m.bytes != 0 || m.shelf.credit != 0 || len(m.handles) != 0 || len(m.sources) != 0 {
		m.t.Errorf("at rest %d messages, %d bytes, credit %d, %d handles and %d sources are left", m.held, m.bytes, m.shelf.credit, len(m.handles), len(m.sources))
	}
	for _, q := range m.system.queues {
		for _, e := range q {
			assert.That(m.t, e.push == nil, "message %d was forgotten", e.number)
		}
	}
	assert.That(m.t, m.calls <= 2*m.events, "%d calls of the system for %d events", m.calls, m.events)
}
