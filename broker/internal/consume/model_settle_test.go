package consume

import (
	"errors"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/transport"
)

// settle settles some delivery, current or not, and expects the result of the rules.
func (m *model) settle() {
	if len(m.handles) == 0 {
		return
	}
	h := m.handles[m.rnd.IntN(len(m.handles))]
	if m.rnd.IntN(2) == 0 {
		h = m.handles[max(0, len(m.handles)-1-m.rnd.IntN(6))]
	}
	msg, valid := m.at(h), m.valid(h)
	after := time.Duration(m.rnd.IntN(5)) * time.Second
	op := m.rnd.IntN(10)
	m.note("settlement %d of %d/%d, valid %t, after %v", op, msg.queue, msg.offset, valid, after)
	switch op {
	case 0, 1:
		if err := m.p.Ack(h, m.now); (err == nil) != valid || err == nil && !m.p.Effects().Durable {
			m.failf("an acknowledgement is %v; valid is %t, durable is %t", err, valid, m.p.Effects().Durable)
		}
		if valid {
			msg.finish()
		}
	case 2:
		if m.p.Release(h, m.now); valid {
			msg.state, msg.attempt, msg.handle = Ready, msg.attempt-1, Handle{}
		}
	case 3:
		if m.p.Skip(h, m.now); valid {
			msg.finish()
		}
	case 4:
		if err := m.p.Reconsume(h, "", m.now); (err == nil) != valid {
			m.failf("a reconsumption is %v; valid is %t", err, valid)
		}
		if valid {
			m.depart(msg)
		}
	case 5:
		m.deadLetter(h, msg, valid)
	case 6:
		m.change(h, msg, valid, after)
	default:
		v := transport.Verdict{Kind: []transport.VerdictKind{transport.Retry, transport.NegativeAck, transport.Snooze}[op-7], Delay: after}
		if op == 7 && m.rnd.IntN(2) == 0 {
			v.Delay = transport.BySchedule
		}
		out, err := m.p.Settle(h, v, 0, m.policy.rules(), m.now)
		m.expectValid(err, valid)
		if !valid {
			return
		}
		exhausted := ""
		if v.Kind != transport.Snooze {
			exhausted = m.policy.exhausted(msg, v.Kind == transport.NegativeAck)
		}
		if m.end(msg, exhausted) {
			m.expectOutcome(out, msg)
			return
		}
		msg.state, msg.due = WaitingRetry, m.now.Add(after)
		switch v.Kind {
		case transport.Retry:
			if v.Delay == transport.BySchedule || msg.push && m.policy.override {
				msg.due = m.now.Add(m.policy.after(msg.attempt))
			}
		case transport.NegativeAck:
			msg.negative = true
		case transport.Snooze:
			msg.attempt, msg.negative, msg.owned, msg.handle = msg.attempt-1, true, false, Handle{}
		}
		m.expectOutcome(out, msg)
	}
}

// end gives up a message after its last attempt, and reports whether it did.
func (m *model) end(msg *message, exhausted string) bool {
	switch exhausted {
	case "dead-letter":
		m.depart(msg)
	case "park":
		m.park(msg)
	case "block":
		msg.blocked = true
		return false
	default:
		return false
	}
	return true
}

func (m *model) expectValid(err error, valid bool) {
	m.t.Helper()
	if (err == nil) != valid || err == nil && !m.p.Effects().Durable {
		m.failf("a settlement is %v; valid is %t, durable is %t", err, valid, m.p.Effects().Durable)
	}
}

func (m *model) expectOutcome(out Outcome, msg *message) {
	m.t.Helper()
	want := Outcome{To: msg.state}
	if msg.state == Inflight || msg.state == WaitingRetry || msg.state == Ready {
		want.Wait = max(msg.due.Sub(m.now), 0)
	}
	if out != want {
		m.failf("a settlement of %d/%d led to %+v, want %+v", msg.queue, msg.offset, out, want)
	}
}

// change changes the invisible duration. Zero returns the message: a timeout of a simple consumer;
// for a push consumer the attempt does not count.
func (m *model) change(h Handle, msg *message, valid bool, after time.Duration) {
	named := h
	if m.rnd.IntN(2) == 0 && after > 0 { // the response to another change was lost, perhaps
		h = m.p.Replacement(h)
		if again := msg.changed == named; msg.state == Inflight && again != (h != named) {
			m.failf("the handle is replaced: %t; want %t", h != named, again)
		}
		valid = m.valid(h)
	}
	next := named
	next.Serial++
	out, err := m.p.ChangeInvisible(h, after, next.Serial, m.policy.rules(), m.now)
	_, long := errors.AsType[*TooLongError](err)
	if tooLong := valid && after > 0 && m.now.Add(after).After(msg.since.Add(m.policy.longest)); tooLong != long {
		m.failf("a change by %v is too long: %t; %v", after, tooLong, err)
	}
	if long {
		return
	}
	m.expectValid(err, valid)
	if !valid {
		return
	}
	switch {
	case after > 0:
		msg.due, msg.owned, msg.changed, msg.handle = m.now.Add(after), false, named, next
		m.handles = append(m.handles, next)
	case msg.push:
		msg.state, msg.attempt, msg.due, msg.owned, msg.handle = Ready, msg.attempt-1, m.now, false, next
	case !m.end(msg, m.policy.exhausted(msg, false)):
		msg.state, msg.due, msg.owned, msg.handle = Ready, m.now, false, next
	}
	m.expectOutcome(out, msg)
}

// deadLetter requests a dead letter. The request may come late, and again.
func (m *model) deadLetter(h Handle, msg *message, valid bool) {
	claimed := m.rnd.IntN(4)
	before := msg.state
	out, err := m.p.Settle(h, transport.Verdict{Kind: transport.DeadLetter}, claimed, m.policy.rules(), m.now)
	passed := msg.offset < m.p.Cursor(msg.queue).Next
	_, spilled := m.disk.spilled[h.Place]
	switch {
	case !valid && passed && (before == Commit || spilled): // done; after a rewind, h is of a spilled message
		if err != nil || out != (Outcome{}) {
			m.failf("a late request for a dead letter: %+v, %v", out, err)
		}
		return
	case !valid && passed && (before == DeadLetter || before == Parked && msg.handle == h):
		if err != nil || out.To != before || out.Repeated == nil {
			m.failf("a repeated request for a dead letter: %+v, %v; it is %s", out, err, before)
		}
		return
	case !valid && passed && msg.handle == h && (before == Ready || before == WaitingRetry || before == Inflight):
		valid = true // no other delivery was made
	}
	m.expectValid(err, valid)
	if !valid {
		return
	}
	counted := msg.attempt
	msg.attempt = max(msg.attempt, claimed)
	switch m.policy.exhausted(msg, false) {
	case "park":
		m.park(msg)
	case "block":
		if before == Inflight {
			msg.state, msg.blocked, msg.due = WaitingRetry, true, m.now.Add(m.policy.after(msg.attempt))
		}
	default:
		m.depart(msg)
		msg.counted = counted
	}
	m.expectOutcome(out, msg)
}

// rewind moves the group in some queues.
func (m *model) rewind() {
	var targets []Target
	for q := range m.messages {
		if m.rnd.IntN(2) == 0 {
			o := m.low[q] + m.rnd.Int64N(int64(len(m.messages[q]))-m.low[q]+1)
			targets = append(targets, Target{Queue: q, At: store.Mark{Offset: o, Bytes: m.cumulative(q, o)}})
		}
	}
	if len(targets) == 0 {
		return
	}
	from := make([]int64, len(m.messages))
	for q := range from {
		from[q] = m.p.Cursor(q).Next
	}
	for i, r := range m.p.Rewind(targets, m.now) {
		at := targets[i]
		dropped := int64(0)
		for _, msg := range m.messages[at.Queue] {
			if msg.passed {
				dropped++
			}
			switch {
			case msg.removed || msg.offset < at.At.Offset:
				missing := msg.missing
				msg.finish()
				msg.missing = missing
			default:
				msg.forget()
			}
		}
		if r.From != from[at.Queue] || r.Dropped != dropped {
			m.failf("a rewind did %+v; want %d and %d", r, from[at.Queue], dropped)
		}
		m.note("queue %d was rewound from %d to %d", at.Queue, r.From, at.At.Offset)
	}
}

// remove removes messages from the beginning of the queues, as a purge or as retention does. Some
// messages then stay, and no message behind a parked or blocked one is removed.
func (m *model) remove() {
	purge := m.rnd.IntN(2) == 0
	removals := make([]Removal, len(m.messages))
	for q := range m.messages {
		end := int64(len(m.messages[q]))
		to := end
		if !purge {
			to = min(m.low[q]+m.rnd.Int64N(end-m.low[q]+1), max(m.p.FirstSpilled(q), m.low[q]))
		}
		removals[q] = Removal{Queue: q, To: store.Mark{Offset: to, Bytes: m.cumulative(q, to)}}
		if to == m.low[q] && !purge {
			removals[q].Again = true
			for _, msg := range m.messages[q][:to] {
				if msg.passed {
					removals[q].Offsets = append(removals[q].Offsets, msg.offset)
				}
			}
		}
		m.low[q] = to
	}
	var gone []*message
	salt := m.rnd.Int64N(2)
	lost := m.p.SkipRemoved(removals, purge, func(l *Lease) bool {
		msg := m.messages[l.Queue()][l.Offset()]
		if msg.stood && (l.State() == Ready || l.State() == Held) && !l.Retain && !l.Blocked {
			m.failf("%d/%d was parked or blocked, or behind such a message, and would be removed: %+v", msg.queue, msg.offset, l.Lease)
		}
		if !purge && ((l.Offset()+salt)%2 == 0 || l.State() != Ready && l.State() != Held) {
			return false
		}
		gone = append(gone, msg)
		return true
	})
	var want Amount
	for q := range m.messages {
		for _, msg := range m.messages[q][:m.low[q]] {
			next := m.p.Cursor(q).Next
			if next < m.low[q] {
				m.failf("the group is at %d of queue %d, which begins at %d", next, q, m.low[q])
			}
			msg.removed = msg.removed || !msg.passed || purge
			switch {
			case msg.passed && (purge || slices.Contains(gone, msg)):
				msg.removed = true
			case msg.passed, !msg.undone():
				continue
			}
			want.add(1, msg.body)
			missing := msg.missing
			msg.finish()
			msg.missing = missing
		}
	}
	if lost.Messages != want.Messages || !m.lossy && lost != want {
		m.failf("a removal lost %+v, want %+v", lost, want)
	}
	m.note("removed up to %v, purge %t", m.low, purge)
}

// restart brings everything back from the disk.
func (m *model) restart() {
	if slices.ContainsFunc(m.all(), func(msg *message) bool { return msg.owned || msg.later }) {
		return // a heartbeat, or the due time on disk, would lead elsewhere
	}
	before := m.p
	m.open()
	for q := range m.messages {
		m.p.AddQueue(store.Mark{Offset: m.low[q], Bytes: m.cumulative(q, m.low[q])})
	}
	m.extend()
	for q, c := range m.disk.cursors {
		m.p.RestoreCursor(q, c)
	}
	places := make([]store.Place, 0, len(m.disk.leases))
	for at := range m.disk.leases {
		places = append(places, at)
	}
	slices.SortFunc(places, func(a, b store.Place) int { return int(a.Queue)<<20 + int(a.Offset) - int(b.Queue)<<20 - int(b.Offset) })
	for _, at := range places {
		m.p.RestoreLease(int(at.Queue), at.Offset, m.disk.leases[at], m.policy.fifo, m.now)
	}
	for at, reason := range m.disk.parked {
		m.p.RestoreReason(int(at.Queue), at.Offset, reason)
	}
	spilled := make([]store.Place, 0, len(m.disk.spilled))
	for at := range m.disk.spilled {
		spilled = append(spilled, at)
	}
	slices.SortFunc(spilled, func(a, b store.Place) int { return int(a.Offset - b.Offset) })
	for _, at := range spilled {
		m.p.RestoreSpilled(int(at.Queue), at.Offset, m.disk.spilled[at].Group, m.disk.spilled[at].Size)
	}
	m.p.Resume()
	for q := range m.messages {
		if m.p.Cursor(q) != before.Cursor(q) {
			m.failf("the cursor of queue %d is %+v, and was %+v", q, m.p.Cursor(q), before.Cursor(q))
		}
	}
	m.done, m.leasedBytes, m.waiting, m.woken = Amount{}, 0, nil, nil // they are counted again
	clear(m.replays)
	clear(m.replayed)
	m.apply()
	m.expire() // effects of time were not written, and follow again
	m.p.Expire(m.policy.rules(), m.now)
	m.note("restarted")
}
