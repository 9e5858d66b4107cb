package consume

import (
	"container/heap"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

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

// Remember keeps the deliveries of an attempt ID, for a client that lost the response. It keeps
// grants, and drops their messages. Whenever the number of attempt IDs has doubled, it removes
// those without a delivery in flight. So the number of attempt IDs grows with the number of
// messages in flight, not with the number of receives.
func (p *Progress) Remember(attemptID string, grants []Grant, now time.Time) {
	for i := range grants {
		grants[i].Message = nil // read again for a repetition
	}
	if len(p.replays) >= max(p.replaysCap, minReplays) {
		for id, before := range p.replays {
			if !p.anyInFlight(before, now) {
				delete(p.replays, id)
			}
		}
		p.replaysCap = 2 * len(p.replays)
	}
	p.replays[attemptID] = grants
}

// Replays returns the number of attempt IDs that are remembered.
func (p *Progress) Replays() int { return len(p.replays) }

// Replay returns the deliveries of an attempt ID that are still in flight. They get new receipt
// handles, so that a release of the lost response has no effect.
func (p *Progress) Replay(attemptID string, now time.Time) (out []Grant) {
	for _, g := range p.replays[attemptID] {
		if p.anyInFlight([]Grant{g}, now) {
			g.Lease.renumber()
			p.putLease(g.Lease)
			out = append(out, p.grant(g.Lease))
		}
	}
	if out == nil {
		delete(p.replays, attemptID)
	}
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
		c.leases, c.ready, c.ages = map[int64]*Lease{}, nil, throttle.Ages{}
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
