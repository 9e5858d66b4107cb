package consume

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	shared "github.com/tidegate/tidegate/internal/model"
)

// Random operations change a Progress as the rules demand, and in no other way.
func TestModel(t *testing.T) {
	t.Parallel()
	shared.Run(t, 10_000, runModel)
}

func runModel(t *testing.T, rnd *rand.Rand) {
	m := &model{
		t: t, rnd: rnd, now: time.Unix(1e9, 0), disk: newDisk(), departing: map[int]Departure{},
		replays: map[Response][]*message{}, replayed: map[Response][]Handle{}, claimed: map[int]bool{}, lossy: rnd.IntN(3) == 0,
	}
	m.policy = modelPolicy{
		fifo: rnd.IntN(3) > 0, ranked: rnd.IntN(3) == 0, attempts: rnd.IntN(4), redeliveries: rnd.IntN(3), override: rnd.IntN(4) == 0,
		onExhausted: []string{"dead-letter", "park", "block"}[rnd.IntN(3)], interval: time.Duration(rnd.IntN(4)) * time.Second, longest: 12 * time.Second,
	}
	if m.policy.lite = rnd.IntN(4) == 0; m.policy.lite {
		m.policy.fifo, m.policy.ranked = true, false
	}
	m.note("policy %+v", m.policy)
	m.open()
	for range 1 + rnd.IntN(3) {
		m.messages, m.low = append(m.messages, nil), append(m.low, 0)
		m.p.AddQueue(store.Mark{})
	}
	m.apply()
	for range 20 + rnd.IntN(60) {
		m.step(false)
	}
}

func (m *model) open() {
	held := int64(0)
	if m.rnd.IntN(4) == 0 {
		held = 2
	}
	m.holders = []*Holder{nil, NewHolder("a"), NewHolder("b")}
	for _, queue := range m.messages {
		for _, msg := range queue {
			msg.holder = nil
		}
	}
	m.filtered = 0
	m.p = New(Config{Group: 1, Topic: 2, MaxInvisible: m.policy.longest, MaxHeld: held, Owners: m, Ranked: m.policy.ranked, Lite: m.policy.lite})
	m.sinceTurn = 0
}

// step does one operation. A nested one happens while a receive reads.
func (m *model) step(nested bool) {
	switch n := m.rnd.IntN(40); {
	case n < 6:
		m.send()
	case n < 16:
		queue, tag := -1, ""
		if m.rnd.IntN(3) == 0 {
			queue = m.rnd.IntN(len(m.messages))
		}
		if m.rnd.IntN(6) == 0 {
			tag = "a"
		}
		m.receive(nested, queue, tag)
	case n < 26:
		m.settle()
	case n < 31:
		m.now = m.now.Add(time.Duration(m.rnd.IntN(8000)) * time.Millisecond)
		if m.rnd.IntN(8) > 0 {
			m.note("%v passed", m.now.Unix())
			m.expire()
			m.p.Expire(m.policy.rules(), m.now)
		}
	case n < 34:
		m.endDeparture()
	case n < 35:
		m.redrive()
	case n < 36:
		m.rewind()
	case n < 37:
		m.remove()
	case n < 38:
		m.replay()
	case n < 39:
		m.heartbeat = m.now
	case !nested && len(m.departing) == 0:
		m.restart()
	}
	m.apply()
	switch k, ok := m.p.NextLook(1 + m.rnd.Int64N(8)); {
	case m.look != nil: // others have changed the Progress meanwhile
		m.looked(*m.look)
		m.look = nil
	case ok && m.rnd.IntN(2) == 0:
		m.look = &k
	}
	if nested {
		return
	}
	for len(m.woken) > 0 {
		queue := m.woken[0]
		m.woken = m.woken[1:]
		m.receive(true, queue, "")
		m.apply()
	}
	m.check()
	for _, queue := range m.waiting {
		if want := m.deliverable(queue, ""); len(want) > 0 && m.p.Counts()[Held] < m.p.config.MaxHeld {
			m.failf("a receive waits for queue %d, and %d/%d is ready", queue, want[0].queue, want[0].offset)
		}
	}
}

// apply has the duties of the caller of a Progress.
func (m *model) apply() {
	for fails := m.rnd.IntN(16); ; {
		e := m.p.Effects()
		m.done.add(e.Done.Messages, e.Done.Bytes)
		m.leasedBytes += e.LeasedBytes
		for _, w := range e.Writes {
			m.disk.write(m, w)
		}
		for _, d := range e.Departures {
			number := m.messages[d.Lease.Queue()][d.Lease.Offset()].departs
			if _, ok := m.departing[number]; number == 0 || ok {
				m.failf("%d/%d departs", d.Lease.Queue(), d.Lease.Offset())
			}
			m.departing[number] = d
		}
		for _, w := range e.Wakes {
			m.wake(w.N, int(w.Queue))
		}
		if e.WakeRest {
			m.wakeRest()
		}
		fetch := e.Fetch
		e.Reset()
		if !fetch {
			return
		}
		for f, ok := m.p.NextFetch(); ok; f, ok = m.p.NextFetch() {
			if !m.p.Valid(f) {
				m.failf("%+v is not valid at once", f)
			}
			if fails--; fails%4 == 0 { // the disk
				m.p.FetchAgain(f)
				continue
			}
			ls, offsets := m.disk.spilledOf(f)
			if len(ls) == 0 {
				m.failf("nothing is spilled for %+v", f)
			}
			m.p.TakeBack(f, ls, offsets)
			for _, w := range m.p.Effects().Writes {
				m.disk.write(m, w)
			}
			m.p.Effects().Writes = m.p.Effects().Writes[:0]
		}
		m.p.Effects().Fetch = false
	}
}

// applyTake is apply within a receive. One from lite topics looks at others only if it has enough.
func (m *model) applyTake() {
	if m.policy.lite {
		m.p.Effects().WakeRest = false
	}
	m.apply()
}

func (m *model) wakeRest() {
	m.extend()
	for q := range m.messages {
		m.wake(m.p.Available(q), q)
	}
}

// set returns the queues of a receive from lite topics, in any order.
func (m *model) set(queue int) *Set {
	if queue >= 0 {
		return m.p.NewSet([]uint16{uint16(queue)}) //nolint:gosec // there are few
	}
	var all []uint16
	for _, q := range m.rnd.Perm(len(m.messages)) {
		all = append(all, uint16(q)) //nolint:gosec // there are few
	}
	return m.p.NewSet(all)
}

func (m *model) wake(n int64, queue int) {
	for i := 0; n > 0 && i < len(m.waiting); {
		q := m.waiting[i]
		if q >= 0 && q != queue {
			i++
			continue
		}
		m.waiting = slices.Delete(m.waiting, i, i+1)
		m.woken = append(m.woken, q)
		n--
	}
}

func (m *model) extend() {
	for q := range m.messages {
		m.p.Extend(q, int64(len(m.messages[q])))
	}
}

func (m *model) send() {
	for range 1 + m.rnd.IntN(4) {
		msg := &message{body: 1 + m.rnd.Int64N(5), tag: string('a' + rune(m.rnd.IntN(2))), state: Ready, missing: m.lossy && m.rnd.IntN(6) == 0}
		msg.queue = m.rnd.IntN(len(m.messages))
		if m.policy.lite {
			msg.group = "lite" + strconv.Itoa(msg.queue)
		} else if m.rnd.IntN(4) > 0 {
			msg.group = "mg" + strconv.Itoa(msg.queue) + strconv.Itoa(m.rnd.IntN(2))
		}
		msg.offset = int64(len(m.messages[msg.queue]))
		m.messages[msg.queue] = append(m.messages[msg.queue], msg)
		m.p.Extend(msg.queue, msg.offset+1)
		m.wake(1, msg.queue)
		m.note("sent %d/%d of %q, missing %t", msg.queue, msg.offset, msg.group, msg.missing)
	}
}

// cumulative returns the bytes of a queue before an offset.
func (m *model) cumulative(queue int, offset int64) (sum int64) {
	for _, msg := range m.messages[queue][:offset] {
		sum += msg.body
	}
	return sum
}

type tagFilter string

func (f tagFilter) Wants(m *store.Message) bool { return f == "" || string(f) == m.Tag }

// receive receives from a queue, or any, with a filter for a tag, or none.
func (m *model) receive(nested bool, queue int, tag string) {
	const enough = 1 << 20
	r := Receive{
		Queue: queue, Max: 1 + m.rnd.IntN(6), MaxBytes: enough, Push: m.rnd.IntN(2) == 0, Invisible: time.Duration(1+m.rnd.IntN(10)) * time.Second,
		Filter: tagFilter(tag), Holder: m.holders[m.rnd.IntN(len(m.holders))],
	}
	if m.policy.lite {
		r.Queue, r.Set = -1, m.set(queue)
	}
	if m.rnd.IntN(6) == 0 {
		r.Owner = "owner"
	}
	if m.rnd.IntN(4) == 0 {
		r.MaxBytes = 1 + m.rnd.Int64N(12) // of bodies of 1 to 5 bytes
	}
	if m.rnd.IntN(4) == 0 {
		r.Skipped = MaxSkipped - 1 - m.rnd.IntN(4) // it ends before the end of the queue, and its client leaves
	}
	taken, bytes := 0, int64(0)
	take := func() { // the later deliveries
		for _, g := range r.Grants[taken:] {
			m.deliver(g, &r)
			bytes += m.at(g.Receipt).body
		}
		taken = len(r.Grants)
		if taken > 1 && bytes > r.MaxBytes {
			m.failf("a receive of at most %d bytes got %d messages with %d", r.MaxBytes, taken, bytes)
		}
	}
	m.extend()
	m.p.Begin(&r, m.now)
	take()
	quiet := true // nothing happened while it read
	for {
		m.extend()
		c, ok := m.p.Claim(&r, m.now)
		if !ok {
			break
		}
		m.applyTake()
		take()
		m.claimed[c.Queue] = true
		ms, offsets, to := m.read(c)
		if !nested && m.rnd.IntN(4) == 0 {
			quiet = false
			m.step(true)
			m.extend()
		}
		delete(m.claimed, c.Queue)
		if !m.p.Unclaim(&r, c.Queue) {
			continue
		}
		from := m.p.Cursor(c.Queue).Next
		if len(ms) == 0 {
			end := int64(len(m.messages[c.Queue]))
			m.p.SkipMissing(&r, c, to, store.Mark{Offset: end, Bytes: m.cumulative(c.Queue, end)})
		} else {
			m.p.Admit(&r, c, m.policy.fifo, ms, offsets, m.now)
		}
		m.pass(c.Queue, from, tag, r.Grants[taken:])
		take()
	}
	m.p.End(&r, m.now)
	take()
	if m.applyTake(); m.policy.lite && !r.WantsMore() {
		m.wakeRest()
	}
	full := m.p.Counts()[Held] >= m.p.config.MaxHeld
	if want := m.deliverable(queue, tag); quiet && !full && r.MaxBytes == enough && r.WantsMore() && len(want) > 0 {
		m.failf("a receive of queue %d got %d of %d, and %d/%d was ready", queue, len(r.Grants), r.Max, want[0].queue, want[0].offset)
	}
	if m.policy.ranked {
		m.checkRanks(&r, tag, quiet && !full && !nested)
	}
	if id := m.response(); len(r.Grants) > 0 && m.rnd.IntN(3) == 0 {
		m.forget(id)
		for _, g := range r.Grants {
			m.replays[id], m.replayed[id] = append(m.replays[id], m.at(g.Receipt)), append(m.replayed[id], g.Receipt)
		}
		m.p.Remember(id, r.Grants, m.now)
	}
	if len(r.Grants) == 0 && r.Skipped == 0 && tag == "" {
		m.waiting = append(m.waiting, queue)
	}
}

// checkRanks checks the order of the deliveries in a ranked topic. While nothing else changes the
// progress, a receive gets no message while a higher queue has one. The first message of a receive
// that begins after turnAfter deliveries can be another one, and then further turnAfter must follow.
func (m *model) checkRanks(r *Receive, tag string, undisturbed bool) {
	since := m.sinceTurn
	m.sinceTurn += len(r.Grants)
	if !undisturbed {
		return
	}
	highest := -1 // from the deliveries behind, and the messages that are left
	if r.Queue < 0 {
		for q := range m.messages {
			if len(m.deliverable(q, tag)) > 0 {
				highest = q
			}
		}
	}
	for i, g := range slices.Backward(r.Grants) {
		q := int(g.Lease.Queue())
		switch {
		case q >= highest:
		case i > 0 || since < turnAfter:
			m.failf("delivery %d of a receive, %d after the last turn, is of queue %d, and queue %d had a message", i+1, since, q, highest)
		default:
			m.sinceTurn = len(r.Grants)
		}
		highest = max(highest, q)
	}
}

// read returns some of the messages of a claim. Without any, it returns the offset up to which all
// messages are missing.
func (m *model) read(c Claim) (ms []store.Message, offsets []int64, to int64) {
	if m.messages[c.Queue][c.From].missing && m.rnd.IntN(2) == 0 {
		return nil, nil, c.From + 1 // the store reports one corrupt message
	}
	for o := c.From; o < c.To && len(ms) < c.Limit; o++ {
		msg := m.messages[c.Queue][o]
		if msg.missing || msg.removed {
			continue
		}
		ms = append(ms, store.Message{
			Message:  tidegate.Message{Tag: msg.tag, MessageGroup: msg.group, Body: make([]byte, msg.body)},
			StoredAt: time.Unix(1e9, o*1e8), Cumulative: m.cumulative(c.Queue, o+1),
		})
		offsets = append(offsets, o)
	}
	return ms, offsets, c.To
}

// pass notes that a cursor has moved from an offset on over messages, of which some are granted.
func (m *model) pass(queue int, from int64, tag string, grants []Grant) {
	for o := from; o < m.p.Cursor(queue).Next; o++ {
		msg := m.messages[queue][o]
		granted := slices.ContainsFunc(grants, func(g Grant) bool { return m.at(g.Receipt) == msg })
		switch {
		case msg.missing || msg.removed || tag != "" && tag != msg.tag:
			if granted {
				m.failf("%d/%d was delivered, and the filter is %q", queue, o, tag)
			}
			if !msg.missing && !msg.removed {
				m.filtered++
			}
			missing := msg.missing
			msg.finish()
			msg.missing = missing
		default:
			if msg.passed = true; !granted && m.isHead(msg) {
				m.failf("%d/%d was passed, and not delivered", queue, o)
			}
		}
	}
}

func (m *model) deliver(g Grant, r *Receive) {
	msg := m.at(g.Receipt)
	if msg.state != Ready || !m.isHead(msg) || !msg.passed || g.Attempt != msg.attempt+1 || g.Receipt == msg.handle {
		m.failf("%d/%d was delivered as attempt %d: %+v", msg.queue, msg.offset, g.Attempt, msg)
	}
	msg.state, msg.attempt, msg.push, msg.negative, msg.owned, msg.holder = Inflight, g.Attempt, r.Push, false, r.Owner != "", r.Holder
	msg.since, msg.due, msg.handle, msg.changed = m.now, m.now.Add(r.Invisible), g.Receipt, Handle{}
	msg.later = false
	m.handles = append(m.handles, g.Receipt)
	m.note("%d/%d was delivered as attempt %d, push %t, due %d", msg.queue, msg.offset, g.Attempt, r.Push, msg.due.Unix())
}

func (m *model) endDeparture() {
	for _, number := range slices.Sorted(maps.Keys(m.departing)) {
		if len(m.departing) > 1 && m.rnd.IntN(2) == 0 {
			continue
		}
		d := m.departing[number]
		msg := m.messages[d.Lease.Queue()][d.Lease.Offset()]
		mine := msg.departs == number
		delete(m.departing, number)
		if m.rnd.IntN(3) == 0 {
			if m.p.Returned(d, m.now) != mine {
				m.failf("%d/%d is returned: %t", msg.queue, msg.offset, !mine)
			}
			if mine {
				msg.departs, msg.attempt, msg.state = 0, msg.counted, d.From
				if again := m.now.Add(time.Second); (d.From == Inflight || d.From == WaitingRetry) && msg.due.Before(again) {
					msg.due, msg.later = again, true
				}
			}
		} else {
			if m.p.Departed(d, ToDeadLetters) != mine {
				m.failf("%d/%d has departed: %t", msg.queue, msg.offset, !mine)
			}
			if mine {
				msg.finish()
			}
		}
		m.note("departure of %d/%d, %t, is %s", msg.queue, msg.offset, mine, msg.state)
		return
	}
}

func (m *model) redrive() {
	dead, name := m.rnd.IntN(2) == 0, ""
	if m.rnd.IntN(2) == 0 {
		name = "mg00"
	}
	var groups int64
	for _, msg := range m.all() {
		if msg.state != Parked || name != "" && msg.group != name {
			continue
		}
		groups++
		if dead {
			m.depart(msg)
		} else {
			msg.state, msg.attempt, msg.push, msg.handle, msg.changed = Ready, 0, false, Handle{}, Handle{}
		}
	}
	if got, _, _ := m.p.Redrive(name, dead, m.now); got != groups {
		m.failf("%d message groups were redriven, want %d", got, groups)
	}
	m.note("redrive of %d, dead letters %t", groups, dead)
}

// response returns one of the parts of responses.
func (m *model) response() Response {
	return Response{strconv.Itoa(m.rnd.IntN(3)), m.rnd.IntN(responseParts)}
}

const responseParts = 3

// forget removes a part of a response and the later ones.
func (m *model) forget(from Response) {
	for ; from.Part < responseParts; from.Part++ {
		delete(m.replays, from)
		delete(m.replayed, from)
	}
}

func (m *model) replay() {
	from := m.response()
	grants := m.p.Replay(from, m.now)
	var want []*message
	for id := from; id.Part < responseParts; id.Part++ {
		for i, msg := range m.replays[id] {
			if msg.state == Inflight && msg.handle == m.replayed[id][i] && m.now.Before(msg.due) {
				want = append(want, msg)
			}
		}
	}
	m.forget(Response{AttemptID: from.AttemptID})
	if len(grants) != len(want) {
		m.failf("deliveries from %v on were repeated: %+v, want %+v", from, grants, want)
	}
	for i, g := range grants {
		if m.at(g.Receipt) != want[i] || g.Attempt != want[i].attempt || g.Receipt == want[i].handle {
			m.failf("%+v was repeated, want %+v", g, want[i])
		}
		want[i].handle, want[i].changed = g.Receipt, Handle{}
		m.handles = append(m.handles, g.Receipt)
	}
}

// Last implements the owners of Config: there is one.
func (m *model) Last(string) (time.Time, bool) { return m.heartbeat, true }
