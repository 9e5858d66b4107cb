package held

import (
	"errors"
	"slices"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

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
