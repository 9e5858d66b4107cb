package consume

import (
	"container/heap"
	"iter"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// MaxHeld is the default of [Config].MaxHeld.
const MaxHeld = 1 << 16

// A Config holds the parameters of a Progress: those of its group and topic. It never changes.
type Config struct {
	Group, Topic uint32 // their numbers

	// MaxInvisible bounds the time from a delivery to its end.
	MaxInvisible time.Duration

	Owners interface {
		// Last returns when an owner sent its last heartbeat, and false for an unknown owner.
		Last(owner string) (time.Time, bool)
	}

	// Ranked means that each queue has the messages of one priority, and the last queue those of the
	// highest one: receives take from the last queue first, see [Progress.Claim].
	Ranked bool

	// Lite means that each queue has the messages of one lite topic, and that receives take from a
	// set of queues ([Progress.NewSet]). The group is FIFO. No message of a queue is passed while an
	// earlier one is not done, so none is held.
	Lite bool

	// MaxHeld bounds the held messages in memory. At the bound no receive takes new messages.
	// Spilled messages do not count. Default: the constant MaxHeld.
	MaxHeld int64
}

// A Progress is a group's consumption of one topic: a cursor for each queue, and a lease for each
// unfinished message before a cursor. The caller serializes all calls, and applies
// [Progress.Effects] after each change, before the next call of another goroutine.
type Progress struct {
	config  Config
	effects Effects

	cursors    []*cursor // by queue number
	firstFresh int       // the cursor that is asked first for new messages
	firstReady int       // the cursor that is asked first for ready leases
	contested  int       // receives that could choose between new and ready messages
	lastTurn   int       // of a ranked topic: the queue that had the last turn
	sinceTurn  int       // likewise: the messages that were delivered since
	due        dueHeap   // Inflight and WaitingRetry
	counts     Counts
	groups     map[string]*messageGroup // FIFO groups: message groups with a message that is not done
	spilled    spilledCounts
	ahead      aheadCounts
	fetches    []Fetch           // message groups of which spilled messages are to be read back
	replays    map[string][]part // by attempt ID, in the order of their numbers
	replaysCap int               // the number of replays at which Remember removes those that are over
	stats      Stats
	longest    longest
}

// Counts are the leases by state.
type Counts [Held + 1]int64

// Stats are counts since the process started.
type Stats struct {
	Acked       int64
	DeadLetters int64
	GivenUp     int64 // of DeadLetters: a consumer requested it
	Overtaken   int64 // removed by retention before they were consumed
	Discarded   int64 // removed after the last attempt: there is no topic for their dead letters
	Expired     int64
	Filtered    int64 // skipped because the filter of the receive did not match them
}

// An Amount is a number of messages and the bytes of their bodies.
type Amount struct{ Messages, Bytes int64 }

func (a *Amount) add(messages, bytes int64) {
	a.Messages += messages
	a.Bytes += bytes
}

// A Summary is the unfinished messages by state, in messages.
type Summary struct {
	// Ready includes held messages, and messages that were never delivered, except for those of
	// parked and blocked message groups.
	Ready, Inflight, WaitingRetry int64

	Parked                      int64 // the failed messages of parked message groups, and those behind them
	Blocked                     int64 // behind the failed messages of blocked message groups
	ParkedGroups, BlockedGroups int64 // message groups
}

// New returns a Progress without queues.
func New(c Config) *Progress {
	if c.MaxHeld == 0 {
		c.MaxHeld = MaxHeld
	}
	return &Progress{config: c, groups: map[string]*messageGroup{}, replays: map[string][]part{}, ahead: aheadCounts{round: 1}}
}

// AddQueue adds the next queue. The group begins at first, which is the queue's first offset.
func (p *Progress) AddQueue(first store.Mark) {
	p.cursors = append(p.cursors, &cursor{number: uint16(len(p.cursors)), next: first.Offset, bytes: first.Bytes})
	p.effects.Done.add(first.Offset, first.Bytes)
	p.effects.WakeRest = true
}

// Queues returns the number of queues.
func (p *Progress) Queues() int { return len(p.cursors) }

// Extend notes the offset after the last message of a queue that can be read.
func (p *Progress) Extend(queue int, end int64) { p.cursors[queue].end = end }

// StartAt moves the cursor of a group that never received forward to a position.
func (p *Progress) StartAt(queue int, at store.Mark) {
	c := p.cursors[queue]
	p.effects.Done.add(at.Offset-c.next, at.Bytes-c.bytes)
	c.next, c.bytes = at.Offset, at.Bytes
	p.newRound()
	p.putCursor(c)
}

// Cursor returns how far the group is in a queue, in the form of its record.
func (p *Progress) Cursor(queue int) store.Cursor {
	c := p.cursors[queue]
	return store.Cursor{Next: c.next, Bytes: c.bytes, Rewound: c.rewound}
}

// Lease returns the lease of a message, or nil.
func (p *Progress) Lease(queue int, offset int64) *Lease { return p.cursors[queue].leases[offset] }

// Leases yields the leases of a queue and their offsets, in no order.
func (p *Progress) Leases(queue int) iter.Seq2[int64, *Lease] {
	return func(yield func(int64, *Lease) bool) {
		for o, l := range p.cursors[queue].leases {
			if !yield(o, l) {
				return
			}
		}
	}
}

// Oldest returns when the oldest leased message of a queue was stored, in nanoseconds since 1970;
// 0 for none. Spilled messages do not count.
func (p *Progress) Oldest(queue int) int64 { return p.cursors[queue].ages.Oldest() }

// MessageGroups returns the number of message groups with an unfinished message that was passed.
func (p *Progress) MessageGroups() int { return len(p.groups) }

// Claimed reports whether a receive reads from a queue.
func (p *Progress) Claimed(queue int) bool { return p.cursors[queue].claimed }

// Counts returns the number of leases in each state.
func (p *Progress) Counts() Counts { return p.counts }

// Stats returns the counts since the process started.
func (p *Progress) Stats() Stats { return p.stats }

// Summary counts the unfinished messages, up to the ends that Extend noted. A new message of a
// parked or blocked message group counts as ready until Looked has counted it.
func (p *Progress) Summary() Summary {
	s := Summary{
		Ready:         p.counts[Ready] + p.counts[Held] + p.spilled.messages - p.spilled.parked - p.spilled.behind - p.ahead.parked - p.ahead.blocked,
		Inflight:      p.counts[Inflight] + p.counts[DeadLetter],
		WaitingRetry:  p.counts[WaitingRetry],
		Parked:        p.counts[Parked] + p.spilled.parked + p.ahead.parked,
		Blocked:       p.spilled.behind + p.ahead.blocked,
		ParkedGroups:  p.counts[Parked],
		BlockedGroups: p.spilled.blocked,
	}
	for _, c := range p.cursors {
		s.Ready += max(c.end-c.next, 0)
	}
	return s
}

// WaitingRetry returns the messages that wait for a retry, as in Summary.
func (p *Progress) WaitingRetry() int64 { return p.counts[WaitingRetry] }

// NextDue returns when Expire has something to do, and false if nothing is due at any time.
func (p *Progress) NextDue() (time.Time, bool) {
	if len(p.due) == 0 {
		return time.Time{}, false
	}
	return p.due[0].Due, true
}

// Available returns the number of receives that can take a message from a queue: one for each ready
// message, and one for all new messages.
func (p *Progress) Available(queue int) int64 {
	c := p.cursors[queue]
	n := int64(len(c.ready))
	if p.claimable(c) {
		n++
	}
	return n
}

// A cursor is how far a group is in a queue.
type cursor struct {
	number   uint16
	end      int64  // of the queue
	next     int64  // first offset that was never delivered or passed
	bytes    int64  // of the messages before next
	rewound  int64  // when the group was last rewound here, in nanoseconds since 1970; 0 for never
	claimed  bool   // a receive reads from next on
	outdated bool   // that receive has to read anew; false while there is none
	round    uint64 // of looked, still and free
	looked   int64  // the new messages before it are counted, see aheadCounts
	still    int64  // of the messages from next to looked: those of parked and blocked message groups
	free     int64  // 1 + the first offset of another message that looks have found; 0 for none
	leases   map[int64]*Lease
	ready    offsetHeap    // leases in state Ready
	ages     throttle.Ages // of leases
}

// A Lease is an unfinished message that was delivered, or that a cursor has passed. It has the
// record in the store and the places in memory.
type Lease struct {
	store.Lease
	cursor   *cursor
	offset   int64
	holder   *Holder // of the last delivery; nil if it is not known
	dueIndex int     // in Progress.due, -1 if it is not there

	postponed bool // by Postpone; since the last delivery
}

// Queue returns the number of the message's queue.
func (l *Lease) Queue() uint16 { return l.cursor.number }

// Offset returns the message's offset in its queue.
func (l *Lease) Offset() int64 { return l.offset }

// setDue sets the due time to a duration after from. The duration is in the record, because from is
// a time of the wall clock, which can be set before the record is read.
func (l *Lease) setDue(from time.Time, after time.Duration) {
	l.Due, l.Span = from.Add(after), max(after, 0)
}

// State returns the state of the message.
func (l *Lease) State() State { return State(l.Lease.State) }

// renumber makes all receipt handles of the lease invalid. A change of the invisible duration can
// no longer be repeated.
func (l *Lease) renumber() {
	l.Serial++
	l.Changed = false
}

// Place returns where a message is stored.
func (p *Progress) Place(l *Lease) store.Place {
	return store.Place{Topic: p.config.Topic, Queue: l.cursor.number, Offset: l.offset}
}

func (p *Progress) receipt(l *Lease) Handle {
	return Handle{Group: p.config.Group, Place: p.Place(l), Serial: l.Serial}
}

// addLease adds a lease, which has no state yet.
func (p *Progress) addLease(l *Lease) {
	if l.cursor.leases == nil {
		l.cursor.leases = map[int64]*Lease{}
	}
	l.cursor.leases[l.offset] = l
	l.cursor.ages.Add(l.Stored)
	p.effects.LeasedBytes += l.Size
}

// removeLease takes out a lease. Its state is still counted.
func (p *Progress) removeLease(l *Lease) {
	delete(l.cursor.leases, l.offset)
	l.cursor.ages.Remove(l.Stored)
	p.effects.LeasedBytes -= l.Size
}

// set moves a lease to a state and to the heap of that state. The caller has taken it out of the
// ready heap.
func (p *Progress) set(l *Lease, to State) {
	if l.Lease.State != 0 {
		p.uncount(l)
	}
	l.Lease.State = uint8(to)
	p.counts[to]++
	if to == Inflight {
		l.holder.hold(1)
	}
	timed := to == Inflight || to == WaitingRetry
	switch {
	case timed && l.dueIndex >= 0:
		heap.Fix(&p.due, l.dueIndex)
	case timed:
		heap.Push(&p.due, l)
	case l.dueIndex >= 0:
		heap.Remove(&p.due, l.dueIndex)
	}
	if to == Ready {
		heap.Push(&l.cursor.ready, l)
	}
}

// complete ends a lease that is not in the ready heap: the message is consumed or given up.
func (p *Progress) complete(l *Lease) {
	if l.dueIndex >= 0 {
		heap.Remove(&p.due, l.dueIndex)
	}
	p.uncount(l)
	p.removeLease(l)
	p.drained(1, l.Size)
	p.deleteLease(l)
	if mg := p.groups[l.Group]; mg != nil && mg.head == l {
		p.promote(l.Group, mg)
	}
	if p.config.Lite {
		p.wake(l) // for the next message of the lite topic
	}
}

// drained counts messages that are done. They count in the drain rate of the group.
func (p *Progress) drained(messages, bytes int64) {
	p.effects.Done.add(messages, bytes)
	p.effects.Drained.add(messages, bytes)
}

// full reports whether no more messages can be held in memory.
func (p *Progress) full() bool { return p.counts[Held] >= p.config.MaxHeld }

// RestoreCursor restores a cursor from its record. The record may lie before the first offset of
// the queue, if messages were removed after it was written, or if a power failure undid a later
// record. Then only the time of the rewind is restored.
func (p *Progress) RestoreCursor(queue int, at store.Cursor) {
	c := p.cursors[queue]
	c.rewound = at.Rewound
	if at.Next < c.next {
		return
	}
	p.effects.Done.add(at.Next-c.next, at.Bytes-c.bytes)
	c.next, c.bytes = at.Next, at.Bytes
}

// RestoreLease restores a lease from its record. The caller restores all cursors first. It restores
// leases in the order of their offsets, so the first lease of a message group is its head.
//
// The due time is never further ahead of now than the duration for which it was set, although the
// wall clock may be behind that of the record. The times get the monotonic part of now: a later
// step of the wall clock does not change them.
func (p *Progress) RestoreLease(queue int, offset int64, record store.Lease, fifo bool, now time.Time) {
	record.Due, record.Since = restoredTimes(&record, now)
	l := &Lease{Lease: record, cursor: p.cursors[queue], offset: offset, dueIndex: -1}
	state := l.State()
	l.Lease.State = 0
	p.addLease(l)
	p.effects.Done.add(-1, -record.Size)
	if l.Group != "" && fifo {
		if mg := p.groups[l.Group]; mg != nil {
			mg.held = append(mg.held, l)
			p.set(l, Held)
			return
		}
		p.groups[l.Group] = &messageGroup{head: l}
	}
	switch {
	case state == Inflight, state == WaitingRetry:
		p.set(l, state)
	case state == Parked && p.groups[l.Group] != nil && p.groups[l.Group].head == l:
		p.spillHeld(p.groups[l.Group], "not recorded") // until RestoreReason
		p.set(l, Parked)
	default: // Ready, or held behind messages that are done
		p.set(l, Ready)
	}
}

// restoredTimes returns the times of a record that is read at now. Records of earlier versions have
// no Span; their due time is at most as far from the delivery as it was.
func restoredTimes(r *store.Lease, now time.Time) (due, since time.Time) {
	due, since = r.Due, r.Since
	if !since.IsZero() {
		since = now.Add(min(since.Sub(now), 0))
	}
	if due.IsZero() || State(r.State) == Parked { // when it was parked
		return due, since
	}
	ahead, span := due.Sub(now), r.Span
	if span == 0 && !r.Since.IsZero() {
		span = max(due.Sub(r.Since), 0)
	}
	if span > 0 {
		ahead = min(ahead, span)
	}
	return now.Add(ahead), since
}

// RestoreReason restores the reason of a parked message group. The caller restores all leases
// first.
func (p *Progress) RestoreReason(queue int, offset int64, reason string) {
	l := p.cursors[queue].leases[offset]
	if l == nil || l.State() != Parked || reason == "" {
		return
	}
	p.groups[l.Group].spill.reason = reason
}

// RestoreSpilled restores a spilled message from its record. The caller restores all leases and
// reasons first.
func (p *Progress) RestoreSpilled(queue int, offset int64, name string, size int64) {
	p.effects.Done.add(-1, -size)
	mg := p.groups[name]
	if mg == nil {
		mg = &messageGroup{}
		p.groups[name] = mg
	}
	if mg.spill == nil {
		mg.spill = &spill{}
	}
	p.extendSpill(mg.spill, p.cursors[queue], offset, size)
}

// Resume restarts the work of message groups after everything is restored: it blocks message groups
// again, and requests the read of spilled messages.
func (p *Progress) Resume() {
	for name, mg := range p.groups {
		switch {
		case mg.head == nil:
			p.fetch(name, mg)
		case mg.head.Blocked:
			p.block(mg.head)
		}
	}
}

// minReplays is the number of remembered attempt IDs at which Remember begins to remove those
// without a delivery in flight. The deliveries of one receive take up to 32 KiB.
const minReplays = 64

// A Response is a part of the response to a receive; the first one is 0.
type Response struct {
	AttemptID string
	Part      int
}

// A part has the deliveries of a part of a response.
type part struct {
	number int
	grants []Grant
}

// Remember keeps the deliveries of a response, for a client that lost it, instead of those of the
// same part and later ones. It keeps grants, and drops their messages. Whenever the number of
// attempt IDs has doubled, it removes those without a delivery in flight. So their number grows
// with the number of messages in flight, not with the number of receives.
func (p *Progress) Remember(to Response, grants []Grant, now time.Time) {
	for i := range grants {
		grants[i].Message = nil // read again for a repetition
	}
	if len(p.replays) >= max(p.replaysCap, minReplays) {
		for id, parts := range p.replays {
			if !slices.ContainsFunc(parts, func(before part) bool { return p.anyInFlight(before.grants, now) }) {
				delete(p.replays, id)
			}
		}
		p.replaysCap = 2 * len(p.replays)
	}
	parts := p.replays[to.AttemptID]
	for len(parts) > 0 && parts[len(parts)-1].number >= to.Part {
		parts = parts[:len(parts)-1]
	}
	p.replays[to.AttemptID] = append(parts, part{to.Part, grants})
}

// Replays returns the number of attempt IDs that are remembered.
func (p *Progress) Replays() int { return len(p.replays) }

// Replay returns the deliveries of a part of a response and the later parts that are still in
// flight, and forgets the response. They get new receipt handles, so that a release of the lost
// response has no effect.
func (p *Progress) Replay(from Response, now time.Time) (out []Grant) {
	for _, r := range p.replays[from.AttemptID] {
		if r.number < from.Part {
			continue
		}
		for i := range r.grants {
			if g := r.grants[i : i+1]; p.anyInFlight(g, now) {
				g[0].Lease.renumber()
				p.putLease(g[0].Lease)
				out = append(out, p.grant(g[0].Lease))
			}
		}
	}
	delete(p.replays, from.AttemptID)
	return out
}

// anyInFlight reports whether one of the grants is still the current delivery of its message.
func (p *Progress) anyInFlight(grants []Grant, now time.Time) bool {
	for i := range grants {
		g := &grants[i]
		l := g.Lease
		if l.cursor.leases[l.offset] == l && l.State() == Inflight && l.Serial == g.Receipt.Serial && now.Before(l.Due) {
			return true
		}
	}
	return false
}

// A Target is the position at which a group continues in a queue.
type Target struct {
	Queue int
	At    store.Mark
}

// A Rewound is the result of Rewind for one target.
type Rewound struct {
	From    int64 // the offset of the cursor before
	Dropped int64 // unfinished messages
}

// Rewind moves cursors, and drops all unfinished messages of their queues. All handles of these
// queues become invalid.
func (p *Progress) Rewind(targets []Target, now time.Time) []Rewound {
	moved := make(map[*cursor]bool, len(targets))
	for _, t := range targets {
		moved[p.cursors[t.Queue]] = true
	}
	dropped := p.dropUnfinished(moved)
	done := make([]Rewound, len(targets))
	for i, t := range targets {
		c := p.cursors[t.Queue]
		done[i] = Rewound{From: c.next, Dropped: dropped[c].Messages}
		p.effects.Done.add(t.At.Offset-c.next+dropped[c].Messages, t.At.Bytes-c.bytes+dropped[c].Bytes)
		c.next, c.bytes = t.At.Offset, t.At.Bytes
		c.rewound = max(now.UnixNano(), c.rewound+1)
		p.Outdate(t.Queue)
	}
	p.newRound()
	p.effects.Durable, p.effects.WakeRest = true, true
	return done
}

// dropUnfinished drops all unfinished messages of some queues, and returns the dropped amount for
// each queue.
func (p *Progress) dropUnfinished(moved map[*cursor]bool) map[*cursor]Amount {
	dropped := map[*cursor]Amount{}
	for c := range moved {
		var sum Amount
		for _, l := range c.leases {
			p.uncount(l)
			if l.dueIndex >= 0 {
				heap.Remove(&p.due, l.dueIndex)
			}
			sum.add(1, l.Size)
		}
		dropped[c] = sum
		p.effects.LeasedBytes -= sum.Bytes
		c.leases, c.ready, c.ages = nil, nil, throttle.Ages{}
		p.effects.add(Write{Kind: DeleteProgress, Queue: c.number}) // before the writes of promote
		p.putCursor(c)
	}
	for c, spilled := range p.forgetSpilled(func(c *cursor) bool { return moved[c] }) {
		sum := dropped[c]
		sum.add(spilled.Messages, spilled.Bytes)
		dropped[c] = sum
	}
	for name, mg := range p.groups {
		mg.held = slices.DeleteFunc(mg.held, func(l *Lease) bool { return moved[l.cursor] })
		if mg.head == nil || moved[mg.head.cursor] {
			p.promote(name, mg)
		}
	}
	return dropped
}

// A ParkedGroup is a message group that is parked or blocked.
type ParkedGroup struct {
	MessageGroup string
	Place        store.Place // of the failed message
	State        State       // of the failed message: Parked, or another one if it blocks its message group
	Attempts     int         // of the failed message
	Since        time.Time   // parked: when it was parked
	Due          time.Time   // blocked: end of the lease or of the retry interval; zero if it is ready
	Reason       string      // parked: the reason
	Messages     int64       // the failed one, and the later ones that a cursor has passed or Looked has counted
}

// park parks the message group whose head is l. The head is not in the ready heap.
func (p *Progress) park(l *Lease, reason string, now time.Time) {
	if reason = shortReason(reason); reason == "" {
		reason = "no reason given"
	}
	l.setDue(now, 0) // parked since
	l.Owner, l.Blocked = "", false
	p.set(l, Parked)
	p.putLease(l)
	p.write(PutParked, l, reason)
	p.spillHeld(p.groups[l.Group], reason)
	p.effects.Durable = true
	p.effects.Parked = append(p.effects.Parked, p.parkedGroup(l.Group, l))
}

func (p *Progress) parkedGroup(name string, l *Lease) ParkedGroup {
	s := p.groups[name].spill
	g := ParkedGroup{MessageGroup: name, Place: p.Place(l), State: l.State(), Attempts: l.Attempt, Reason: s.reason, Messages: 1 + s.messages + p.aheadOf(s)}
	switch {
	case g.State == Parked:
		g.Since = l.Due
	case l.dueIndex >= 0:
		g.Due = l.Due
	}
	return g
}

// ParkedGroups returns the message groups that are parked or blocked, in no order. Those whose
// failed message is becoming a dead letter are not among them.
func (p *Progress) ParkedGroups() (out []ParkedGroup) {
	if p.spilled.still == 0 {
		return nil
	}
	for name, mg := range p.groups {
		if l := mg.head; l != nil && mg.spill != nil && mg.spill.standstill && l.State() != DeadLetter {
			out = append(out, p.parkedGroup(name, l))
		}
	}
	return out
}

// block marks the lease of a message that is retried after its last attempt, and spills the
// messages behind it. Retention keeps the marked message until it is done.
func (p *Progress) block(l *Lease) {
	if !l.Blocked {
		l.Blocked = true
		p.putLease(l)
	}
	if mg := p.groups[l.Group]; mg.spill == nil || !mg.spill.standstill {
		p.spillHeld(mg, "")
	}
}

// Redrive makes the failed messages of parked message groups ready, with new attempts. With
// deadLetter the failed messages depart as dead letters instead, and their message groups stay
// parked until Departed. messageGroup selects one message group; empty selects all. Redrive returns
// the number of message groups, the number of their messages and, for each departure, the number of
// messages behind it.
func (p *Progress) Redrive(messageGroup string, deadLetter bool, now time.Time) (groups, messages int64, behind []int64) {
	p.effects.Durable = true
	for name, mg := range p.groups {
		l := mg.head
		if l == nil || l.State() != Parked || messageGroup != "" && name != messageGroup {
			continue
		}
		groups++
		later := mg.spill.messages + p.aheadOf(mg.spill)
		messages += 1 + later
		if deadLetter {
			behind = append(behind, later)
			p.depart(l, Departure{Event: EventRedrive, Early: true, Reason: mg.spill.reason})
			continue
		}
		p.endStandstill(mg)
		to, _ := l.State().Next(EventRedrive, AttemptsLeft, false)
		l.Attempt, l.Push, l.Due, l.Retain = 0, false, now, true
		l.renumber()
		p.set(l, to)
		p.wake(l)
		p.putLease(l)
		p.write(DeleteParked, l, "")
	}
	return groups, messages, behind
}
