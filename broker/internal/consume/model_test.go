package consume

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
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
	fifo              bool
	attempts          int // at most; 0 for no maximum
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
	replays   map[string][]*message
	replayed  map[string][]Handle
	heartbeat time.Time // of the only owner
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
