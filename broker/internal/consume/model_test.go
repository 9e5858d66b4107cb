package consume

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/transport"
)

// The model has the state of each message for a group, by the rules of the doc of package broker
// and of CONFORMANCE.md. It has no cursors, heaps, message groups or spills: every question looks
// at all messages. It chooses nothing. It checks that each choice of a Progress was legal, and that
// all due messages were delivered.
type message struct {
	queue  int
	offset int64
	body   int64 // bytes
	tag    string
	group  string

	missing bool // it cannot be read, and was never passed
	removed bool // from the beginning of its queue, though a group may still have it

	state    State // Ready if it was never delivered; Commit for done in any way
	passed   bool  // a cursor has passed it, and it is not done
	attempt  int
	push     bool
	negative bool
	blocked  bool
	owned    bool
	holder   *Holder // that received it last, since the last restart
	stood    bool    // it was parked or blocked, or behind such a message: retention keeps it
	since    time.Time
	due      time.Time
	handle   Handle
	changed  Handle // the handle that the last change replaced
	departs  int    // number of the departure under way; 0 for none
	later    bool   // due is a second later than on disk, after a departure that failed
	counted  int    // deliveries before that, with any count of the consumer
}

func (msg *message) undone() bool { return msg.state != Commit }

// A modelPolicy is the settings of a group, which stay for a sequence.
type modelPolicy struct {
	fifo, ranked      bool
	lite              bool // each queue has the messages of a lite topic
	attempts          int  // at most; 0 for no maximum
	redeliveries      int
	onExhausted       string // dead-letter, park or block
	override          bool
	interval, longest time.Duration
}

func (p *modelPolicy) rules() *Policy {
	rules := &Policy{
		MaxAttempts: p.attempts, MaxRedeliveries: p.redeliveries, Schedule: p,
		OnExhausted: map[string]Exhaustion{"dead-letter": ThenDeadLetter, "park": ThenPark, "block": ThenBlock}[p.onExhausted],
	}
	if p.override {
		rules.Address = &RetryRules{Delay: p.interval, Multiplier: 2, Longest: time.Hour}
	}
	return rules
}

// Interval implements Schedule.
func (p *modelPolicy) Interval(attempt int) time.Duration { return p.interval * time.Duration(attempt) }

// after returns the interval after an attempt. With address settings it doubles.
func (p *modelPolicy) after(attempt int) time.Duration {
	if p.override {
		return min(p.interval<<min(attempt-1, 16), time.Hour)
	}
	return p.Interval(attempt)
}

// exhausted returns the end if the attempt was the last one: dead-letter, park, block, or nothing.
// The maximum is that of deliveries, or of redeliveries after negative acknowledgements.
func (p *modelPolicy) exhausted(m *message, negative bool) string {
	last := p.attempts > 0 && m.attempt >= p.attempts
	if negative {
		last = p.redeliveries > 0 && m.attempt > p.redeliveries
	}
	switch {
	case !last:
		return ""
	case !p.fifo || m.group == "":
		return "dead-letter"
	}
	return p.onExhausted
}

type model struct {
	t      *testing.T
	rnd    *rand.Rand
	policy modelPolicy
	p      *Progress
	disk   disk
	now    time.Time

	messages  [][]*message // by queue and offset
	low       []int64
	handles   []Handle // some are not valid any more
	departing map[int]Departure
	departed  int
	replays   map[Response][]*message
	replayed  map[Response][]Handle
	heartbeat time.Time // of the only owner
	sinceTurn int       // in a ranked topic: at least as many deliveries as since the last turn
	holders   []*Holder // the first is nil
	claimed   map[int]bool
	waiting   []int // queues that receives wait for
	woken     []int // likewise, of receives that were woken
	lossy     bool  // messages can be missing
	look      *Look // of an earlier step, whose messages are being read

	done        Amount
	leasedBytes int64
	filtered    int64 // messages skipped by the filter since the last restart
	log         []string
}

func (m *model) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

func (m *model) failf(format string, args ...any) {
	m.t.Helper()
	for _, l := range m.log[max(0, len(m.log)-40):] {
		m.t.Log(l)
	}
	m.t.Fatalf(format, args...)
}

func (m *model) at(h Handle) *message {
	return m.messages[h.Place.Queue][h.Place.Offset]
}

// all returns all messages that are not removed, and those that the group still has.
func (m *model) all() (out []*message) {
	for _, queue := range m.messages {
		for _, msg := range queue {
			if msg.undone() {
				out = append(out, msg)
			}
		}
	}
	return out
}

// isHead reports whether no earlier message of its message group is undone.
func (m *model) isHead(msg *message) bool {
	if !m.policy.fifo || msg.group == "" {
		return true
	}
	for _, other := range m.messages[msg.queue][:msg.offset] {
		if other.group == msg.group && other.undone() && !other.missing {
			return false
		}
	}
	return true
}

// deliverable returns the messages that a receive may get. New messages of a queue that another
// receive reads are not among them.
func (m *model) deliverable(queue int, tag string) (out []*message) {
	for _, msg := range m.all() {
		switch {
		case msg.state != Ready || msg.missing || queue >= 0 && msg.queue != queue || !m.isHead(msg):
		case !msg.passed && (m.claimed[msg.queue] || tag != "" && tag != msg.tag):
		default:
			out = append(out, msg)
		}
	}
	return out
}

// finish ends a message, consumed or not.
func (msg *message) finish() {
	*msg = message{queue: msg.queue, offset: msg.offset, body: msg.body, tag: msg.tag, group: msg.group, removed: msg.removed, state: Commit}
}

// forget makes a message as if it had never been delivered.
func (msg *message) forget() {
	missing := msg.missing
	msg.finish()
	msg.state, msg.missing = Ready, missing
}

func (m *model) depart(msg *message) {
	m.departed++
	msg.departs, msg.counted, msg.state = m.departed, msg.attempt, DeadLetter
}

func (m *model) park(msg *message) {
	msg.state, msg.due, msg.blocked, msg.owned = Parked, m.now, false, false
}

// valid reports whether a handle names the current delivery.
func (m *model) valid(h Handle) bool {
	msg := m.at(h)
	if msg.state != Inflight || msg.handle != h {
		return false
	}
	m.renew(msg)
	return m.now.Before(msg.due)
}

// renew postpones the end of a delivery whose owner lives: a minute from its last heartbeat, at
// most 3 hours, or the broker's maximum, from the delivery.
func (m *model) renew(msg *message) {
	if !msg.owned || m.now.Before(msg.due) {
		return
	}
	until := m.heartbeat.Add(time.Minute)
	if limit := msg.since.Add(min(3*time.Hour, m.policy.longest)); limit.Before(until) {
		until = limit
	}
	if until.After(m.now) {
		msg.due = until
	}
}

// expire lets time have its effect.
func (m *model) expire() {
	for _, msg := range m.all() {
		for (msg.state == Inflight || msg.state == WaitingRetry) && !msg.due.After(m.now) {
			inflight := msg.state == Inflight
			if inflight {
				if m.renew(msg); msg.due.After(m.now) {
					break
				}
			}
			after := ""
			if inflight || !msg.negative {
				after = m.policy.exhausted(msg, false)
			}
			switch {
			case after == "dead-letter":
				m.depart(msg)
				continue
			case after == "park":
				m.park(msg)
				continue
			case after == "block":
				msg.blocked = true
			}
			if inflight && msg.push {
				msg.state, msg.due = WaitingRetry, msg.due.Add(m.policy.after(msg.attempt))
			} else {
				msg.state = Ready
			}
		}
	}
}

// summarize counts an undone message.
func (m *model) summarize(msg *message, sum *Summary) {
	switch msg.state {
	case Ready:
		switch {
		case !m.isHead(msg) && m.stands(msg) == Parked:
			sum.Parked++
		case !m.isHead(msg) && m.isBlocked(msg):
			sum.Blocked++
		default:
			sum.Ready++
		}
	case Inflight, DeadLetter:
		sum.Inflight++
	case WaitingRetry:
		sum.WaitingRetry++
	case Parked:
		sum.Parked++
		sum.ParkedGroups++
	}
	if msg.blocked {
		sum.BlockedGroups++
	}
}

// check compares all counts.
func (m *model) check() {
	if held := m.p.Counts()[Held]; m.policy.lite && held > 0 {
		m.failf("%d messages of lite topics are held; they stay on disk until those before them are done", held)
	}
	if err := m.p.Audit(); err != nil {
		m.failf("%v", err)
	}
	var want Summary
	var first time.Time
	leased, done := int64(0), Amount{}
	inflight := map[*Holder]int64{}
	for q, queue := range m.messages {
		for _, msg := range queue {
			switch {
			case msg.missing && msg.offset >= m.p.Cursor(q).Next:
				want.Ready++
				continue
			case msg.missing || !msg.undone():
				if !msg.missing && !msg.removed {
					m.checkFate(msg)
				}
				done.add(1, msg.body)
				continue
			}
			m.summarize(msg, &want)
			m.checkFate(msg)
			if (msg.state == Inflight || msg.state == WaitingRetry) && (first.IsZero() || msg.due.Before(first)) {
				first = msg.due
			}
			if msg.state == Inflight && msg.departs == 0 {
				inflight[msg.holder]++
			}
			if msg.passed {
				leased += msg.body
				msg.stood = msg.stood || msg.state == Parked || m.stands(msg) == Parked || m.isBlocked(msg)
			}
		}
	}
	for _, h := range m.holders[1:] {
		if h.Inflight() != inflight[h] {
			m.failf("holder %s has %d messages in flight, want %d", h.id, h.Inflight(), inflight[h])
		}
	}
	m.checkHeld()
	if got := m.p.Stats().Filtered; got != m.filtered {
		m.failf("%d messages were skipped by filters, want %d", got, m.filtered)
	}
	m.lookAhead()
	if got := m.p.Summary(); got != want {
		m.failf("the summary is %+v, want %+v", got, want)
	}
	if m.done.Messages != done.Messages || !m.lossy && m.done != done {
		m.failf("done is %+v, want %+v", m.done, done)
	}
	if m.leasedBytes != leased {
		m.failf("%d bytes are leased, want %d", m.leasedBytes, leased)
	}
	if due, ok := m.p.NextDue(); ok != !first.IsZero() || ok && !due.Equal(first) {
		m.failf("the next due time is %v, want %v", due, first)
	}
	m.disk.check(m)
}

// lookAhead looks at all new messages that Summary needs, and checks FirstFree and the message
// groups that stand still.
func (m *model) lookAhead() {
	for {
		k, ok := m.p.NextLook(1 + m.rnd.Int64N(4))
		if !ok {
			break
		}
		m.looked(k)
	}
	still := map[string]int64{}
	for q, queue := range m.messages {
		first := int64(-1)
		for _, msg := range queue[min(m.p.Cursor(q).Next, int64(len(queue))):] {
			if msg.missing {
				continue
			}
			if !m.isHead(msg) && (m.stands(msg) == Parked || m.isBlocked(msg)) {
				continue
			}
			first = msg.offset
			break
		}
		if from := m.p.FirstFree(q); first >= 0 && from > first || from < m.p.Cursor(q).Next {
			m.failf("the first new message of queue %d for a receive is at %d; it is said to be from %d on", q, first, from)
		}
	}
	for _, msg := range m.all() {
		behind := !m.isHead(msg) && (m.stands(msg) == Parked || m.isBlocked(msg))
		if name := fmt.Sprint(msg.queue, msg.group); behind && !msg.missing || msg.state == Parked || msg.blocked {
			still[name]++
		}
		if msg.state == DeadLetter { // its message group is not listed
			still[fmt.Sprint(msg.queue, msg.group)] -= 1 << 30
		}
	}
	listed := 0
	for _, g := range m.p.ParkedGroups() {
		if want := still[fmt.Sprint(g.Place.Queue, g.MessageGroup)]; g.Messages != want || (g.State == Parked) == g.Since.IsZero() {
			m.failf("the message group that stands still is %+v; want %d messages", g, want)
		}
		listed++
	}
	for name, n := range still {
		if n > 0 {
			listed--
		} else if n < 0 {
			delete(still, name)
		}
	}
	if listed != 0 {
		m.failf("%d more message groups are listed than stand still: %v", listed, still)
	}
}

// looked passes the messages of a look to the Progress.
func (m *model) looked(k Look) {
	var groups []string
	var offsets []int64
	for _, msg := range m.messages[k.Queue][k.From:k.To] {
		if !msg.missing && !msg.removed {
			groups, offsets = append(groups, msg.group), append(offsets, msg.offset)
		}
	}
	m.p.Looked(k, groups, offsets)
}

// isBlocked reports whether the message, or the head of its message group, is blocked.
func (m *model) isBlocked(msg *message) bool {
	return m.policy.fifo && msg.group != "" && slices.ContainsFunc(m.messages[msg.queue][:msg.offset+1], func(other *message) bool {
		return other.group == msg.group && other.blocked && other.undone()
	})
}

// stands returns the state of the head of a message group if it is parked.
func (m *model) stands(msg *message) State {
	for _, other := range m.messages[msg.queue][:msg.offset] {
		if other.group == msg.group && other.undone() && !other.missing {
			if other.departs != 0 && m.departing[other.departs].From == Parked {
				return Parked
			}
			return other.state
		}
	}
	return 0
}

// A disk has the records that effects have written.
type disk struct {
	cursors map[int]store.Cursor
	leases  map[store.Place]store.Lease
	spilled map[store.Place]store.Lease
	parked  map[store.Place]string
}

func newDisk() disk {
	return disk{map[int]store.Cursor{}, map[store.Place]store.Lease{}, map[store.Place]store.Lease{}, map[store.Place]string{}}
}

func (d *disk) write(m *model, w Write) {
	place := store.Place{Topic: m.p.config.Topic, Queue: w.Queue, Offset: w.Offset}
	switch w.Kind {
	case PutLease:
		d.leases[place] = w.Lease.Lease
	case DeleteLease:
		delete(d.leases, place)
	case PutCursor:
		d.cursors[int(w.Queue)] = m.p.Cursor(int(w.Queue))
	case PutSpilled:
		d.spilled[place] = w.Lease.Lease
	case DeleteSpilled:
		if d.spilled[place].Group != w.Text {
			m.failf("%v of message group %q is not spilled", place, w.Text)
		}
		delete(d.spilled, place)
	case PutParked:
		d.parked[place] = w.Text
	case DeleteParked:
		delete(d.parked, place)
	case DeleteAllSpilled, DeleteProgress:
		for at := range d.spilled {
			if at.Queue == w.Queue {
				delete(d.spilled, at)
			}
		}
		if w.Kind == DeleteAllSpilled {
			return
		}
		delete(d.cursors, int(w.Queue))
		for at := range d.leases {
			if at.Queue == w.Queue {
				delete(d.leases, at)
				delete(d.parked, at)
			}
		}
	}
}

// check compares the records with the messages: each that was passed and is not done has one.
func (d *disk) check(m *model) {
	n, parked := 0, 0
	for _, msg := range m.all() {
		if !msg.passed {
			continue
		}
		n++
		place := store.Place{Topic: m.p.config.Topic, Queue: uint16(msg.queue), Offset: msg.offset}
		l, leased := d.leases[place]
		_, spilled := d.spilled[place]
		if leased == spilled {
			m.failf("%d/%d has a lease: %t, is spilled: %t", msg.queue, msg.offset, leased, spilled)
		}
		if leased && msg.departs == 0 && (l.Attempt != msg.attempt || l.Blocked != msg.blocked || msg.state == Inflight && l.Serial != msg.handle.Serial) {
			m.failf("%d/%d is on disk as %+v; it is %+v", msg.queue, msg.offset, l, msg)
		}
		if _, ok := d.parked[place]; ok != (msg.state == Parked || m.departing[msg.departs].From == Parked) {
			m.failf("%d/%d is %s, and its reason is on disk: %t", msg.queue, msg.offset, msg.state, ok)
		} else if ok {
			parked++
		}
	}
	if n != len(d.leases)+len(d.spilled) || parked != len(d.parked) {
		m.failf("on disk are %d leases, %d spilled messages, %d reasons; want %d and %d", len(d.leases), len(d.spilled), len(d.parked), n, parked)
	}
}

// spilledOf returns the spilled messages of a message group, as the store does.
func (d *disk) spilledOf(f Fetch) (ls []store.Lease, offsets []int64) {
	for at, l := range d.spilled {
		if at.Queue == f.Queue && l.Group == f.MessageGroup && at.Offset >= f.From {
			offsets = append(offsets, at.Offset)
		}
	}
	slices.Sort(offsets)
	offsets = offsets[:min(len(offsets), f.Limit)]
	for _, o := range offsets {
		ls = append(ls, d.spilled[store.Place{Topic: 2, Queue: f.Queue, Offset: o}])
	}
	return ls, offsets
}

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
	case m.end(msg, m.policy.exhausted(msg, false)):
		if msg.state == Parked {
			msg.handle = next // as the response has it
			m.handles = append(m.handles, next)
		}
	default:
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
