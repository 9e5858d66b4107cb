package consume

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A LeaseState is the state of a message that has a lease.
type LeaseState struct {
	Queue        int
	Offset       int64
	State        State
	Attempt      int
	Due          time.Time // end of the invisible duration or of the retry interval; zero in other states
	Since        time.Time // begin of the last delivery, in state Inflight only
	Owner        string    // the client whose heartbeats keep the lease
	Holder       string    // the client that has the delivery, in state Inflight only; empty if it is not known
	MessageGroup string
	Size         int64 // of the body
}

// Compare orders leases by due time if byDue is set, those without one last, and then by position.
func (s *LeaseState) Compare(o *LeaseState, byDue bool) int {
	if byDue {
		if s.Due.IsZero() != o.Due.IsZero() {
			return cmp.Compare(o.Due.UnixNano(), s.Due.UnixNano())
		}
		if c := s.Due.Compare(o.Due); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(s.Queue, o.Queue), cmp.Compare(s.Offset, o.Offset))
}

// A LeaseQuery selects leases.
type LeaseQuery struct {
	State State       // 0 means all states
	ByDue bool        // in the order of their due times, not of their positions
	After *LeaseState // the lease before the page; nil means the first page
	Limit int
}

// LeasePage returns the first leases that the query selects, and whether there are more. It looks
// at all leases; spilled messages are not in memory, and not among them.
func (p *Progress) LeasePage(q LeaseQuery) (page []LeaseState, more bool) {
	compare := func(x, y LeaseState) int { return x.Compare(&y, q.ByDue) }
	for _, c := range p.cursors {
		for _, l := range c.leases {
			if q.State != 0 && l.State() != q.State {
				continue
			}
			s := l.describe()
			if q.After != nil && s.Compare(q.After, q.ByDue) <= 0 || more && s.Compare(&page[q.Limit-1], q.ByDue) > 0 {
				continue
			}
			if page = append(page, s); len(page) == 2*q.Limit { // the rest cannot be on the page
				slices.SortFunc(page, compare)
				page, more = page[:q.Limit], true
			}
		}
	}
	slices.SortFunc(page, compare)
	if len(page) > q.Limit {
		page, more = page[:q.Limit], true
	}
	return page, more
}

func (l *Lease) describe() LeaseState {
	s := LeaseState{
		Queue: int(l.cursor.number), Offset: l.offset, State: l.State(), Attempt: l.Attempt, Owner: l.Owner, MessageGroup: l.Group, Size: l.Size,
	}
	if l.dueIndex >= 0 {
		s.Due = l.Due
	}
	if s.State == Inflight {
		s.Since, s.Holder = l.Since, l.Receiver()
	}
	return s
}

// Unfinished returns the number of messages before the cursor of a queue that are not finished,
// spilled ones included.
func (p *Progress) Unfinished(queue int) int64 {
	c := p.cursors[queue]
	n := int64(len(c.leases))
	for _, mg := range p.groups {
		if mg.spill == nil {
			continue
		}
		for i := range mg.spill.segments {
			if s := &mg.spill.segments[i]; s.cursor == c {
				n += s.messages
			}
		}
	}
	return n
}

// DueCounts are the numbers of the leases in flight, and of the messages that wait for a retry, by
// the time until they are due.
type DueCounts struct {
	Inflight, WaitingRetry []int64   // by bound, and those after the last bound
	NextLease, NextRetry   time.Time // of the first ones; zero means none
}

// Due counts leases by the time until they are due. The bounds ascend; a lease belongs to the first
// bound that is not less than its time.
func (p *Progress) Due(bounds []time.Duration, now time.Time) DueCounts {
	d := DueCounts{Inflight: make([]int64, len(bounds)+1), WaitingRetry: make([]int64, len(bounds)+1)}
	for _, l := range p.due {
		counts, first := d.Inflight, &d.NextLease
		if l.State() == WaitingRetry {
			counts, first = d.WaitingRetry, &d.NextRetry
		}
		i, _ := slices.BinarySearch(bounds, l.Due.Sub(now))
		counts[i]++
		if first.IsZero() || l.Due.Before(*first) {
			*first = l.Due
		}
	}
	return d
}

// Expire ends the invisible durations and retry intervals that are over.
//
// It writes only parked and blocked messages, and the messages that are spilled behind them. All
// other changes follow again from the same records after a restart.
func (p *Progress) Expire(policy *Policy, now time.Time) {
	for len(p.due) > 0 && !p.due[0].Due.After(now) {
		l := p.due[0]
		e := EventTimeout
		if l.State() == WaitingRetry {
			e = EventDue
		} else if p.renew(l, now) {
			continue
		}
		exhaustion := policy.exhaustion(e, l)
		to, _ := l.State().Next(e, exhaustion, l.Push)
		failed := Failure{Event: e, Attempt: l.Attempt, Client: l.Receiver(), At: now}
		if exhaustion == ThenBlock {
			p.block(l)
		}
		switch to {
		case WaitingRetry:
			l.setDue(l.Due, p.interval(l, policy)) // from the timeout on, even if it is noticed late
			p.set(l, to)
		case Ready:
			if e == EventDue {
				p.effects.Late = append(p.effects.Late, now.Sub(l.Due))
			}
			p.set(l, to)
			p.wake(l)
		case DeadLetter:
			p.depart(l, Departure{Event: e, Reason: lastDelivery(l, e)})
		case Parked:
			p.park(l, lastDelivery(l, e), now)
		}
		if e == EventTimeout {
			p.fail(l, failed)
		}
	}
}

// lastDelivery returns the reason for giving a message up.
func lastDelivery(l *Lease, e Event) string {
	end := "failed"
	if e == EventTimeout {
		end = "timed out"
	}
	return fmt.Sprintf("delivered %d times, the maximum; the last delivery %s", l.Attempt, end)
}

// A Removal is the removal of messages from the beginning of a queue.
type Removal struct {
	Queue int
	To    store.Mark // the first message that stays

	// Again means that an earlier removal has removed the messages before To and kept those of
	// Offsets. Only the leases of Offsets may be over now.
	Again   bool
	Offsets []int64
}

// Needed reports whether retention keeps a message that is too old. It keeps
//   - a message that was parked, blocked or spilled,
//   - a message that is in flight, waits for its retry or becomes a dead letter, and
//   - a message that is ready again, for the grace period.
func (l *Lease) Needed(grace time.Duration, now time.Time) bool {
	switch {
	case l.Retain || l.Blocked:
		return true
	case l.State() == Held:
		return false
	case l.State() == Ready:
		return l.Attempt > 0 && now.Before(l.Due.Add(grace))
	}
	return true
}

// SkipRemoved moves the group over removed messages, and returns the amount that the group loses
// because it has not consumed them. For each lease before the end of a removal, gone decides
// whether its message is removed; the other messages stay. A purge also removes spilled messages.
func (p *Progress) SkipRemoved(removals []Removal, purge bool, gone func(*Lease) bool) (lost Amount) {
	var ended []*Lease
	for _, r := range removals {
		if r.Queue >= len(p.cursors) {
			continue
		}
		c := p.cursors[r.Queue]
		if r.Again {
			for _, o := range r.Offsets {
				if l := c.leases[o]; l != nil && gone(l) {
					ended = append(ended, l)
				}
			}
			continue
		}
		for o, l := range c.leases {
			if o < r.To.Offset && gone(l) {
				ended = append(ended, l)
			}
		}
		if c.next < r.To.Offset {
			lost.add(r.To.Offset-c.next, r.To.Bytes-c.bytes)
			c.next, c.bytes = r.To.Offset, r.To.Bytes
			p.newRound()
			p.putCursor(c)
		}
	}
	if purge {
		p.purgeSpilled(removals, &lost)
	}
	p.effects.Done.add(lost.Messages, lost.Bytes)
	for _, l := range ended {
		lost.add(1, l.Size)
	}
	p.endRemoved(ended)
	if !purge {
		p.stats.Overtaken += lost.Messages
	}
	return lost
}

// purgeSpilled drops the spilled messages of queues that are purged completely. In a queue in which
// the group has passed later messages, the spilled messages stay, and TakeBack notices which of
// them are gone.
func (p *Progress) purgeSpilled(removals []Removal, lost *Amount) {
	if p.spilled.messages == 0 {
		return
	}
	purged := map[*cursor]bool{}
	for _, r := range removals {
		if r.Queue < len(p.cursors) {
			c := p.cursors[r.Queue]
			purged[c] = c.next <= r.To.Offset
		}
	}
	for c, sum := range p.forgetSpilled(func(c *cursor) bool { return purged[c] }) {
		lost.add(sum.Messages, sum.Bytes)
		p.effects.add(Write{Kind: DeleteAllSpilled, Queue: c.number})
	}
	for name, mg := range p.groups {
		if mg.head == nil {
			p.promote(name, mg)
		}
	}
}

// endRemoved ends the leases of removed messages. These messages do not count in the drain rate.
func (p *Progress) endRemoved(ls []*Lease) {
	cursors, groups := map[*cursor]bool{}, map[string]bool{}
	for _, l := range ls {
		if l.dueIndex >= 0 {
			heap.Remove(&p.due, l.dueIndex)
		}
		p.uncount(l)
		l.Lease.State = 0
		p.removeLease(l)
		p.effects.Done.add(1, l.Size)
		p.deleteLease(l)
		if l.Group != "" {
			p.write(DeleteParked, l, "")
		}
		cursors[l.cursor] = true
		if p.groups[l.Group] != nil {
			groups[l.Group] = true
		}
	}
	isGone := func(l *Lease) bool { return l.Lease.State == 0 }
	for c := range cursors {
		c.ready = slices.DeleteFunc(c.ready, isGone)
		heap.Init(&c.ready)
	}
	for name := range groups {
		mg := p.groups[name]
		mg.held = slices.DeleteFunc(mg.held, isGone)
		if mg.head != nil && isGone(mg.head) {
			p.promote(name, mg)
		}
	}
	if len(groups) > 0 {
		p.effects.WakeRest = true
	}
}

const (
	// FetchLimit is how many spilled messages are read back at a time. More are read when a message
	// group has less than FewHeld left in memory.
	FetchLimit = 256
	FewHeld    = 64
)

// A spill holds the last messages of a message group with a head that is or was parked or blocked.
// The messages are on disk only, so their number affects neither memory nor other message groups.
// While there is a spill, new messages of the message group are appended to it.
type spill struct {
	standstill bool      // the head is parked or blocked: nothing is read back
	reason     string    // why it is parked; empty if it is not
	segments   []segment // in order
	messages   int64     // of all segments
	ahead      int64     // new messages of the message group, see aheadCounts
	round      uint64    // of ahead
	fetching   bool      // it is in Progress.fetches
}

// A segment is the part of a spill in one queue. A message group has more than one only after its
// topic got more queues.
type segment struct {
	cursor          *cursor
	from            int64 // no message of it is before this offset
	messages, bytes int64
}

// spilledCounts are the spills of a Progress.
type spilledCounts struct {
	messages int64 // of all spills
	parked   int64 // of messages: those behind a parked message
	behind   int64 // of messages: those behind a blocked message
	still    int64 // message groups that are parked or blocked
	blocked  int64 // message groups in which the head is retried without end
}

// extendSpill adds a message to the end of a spill. The caller writes it.
func (p *Progress) extendSpill(s *spill, c *cursor, offset, size int64) {
	if n := len(s.segments); n == 0 || s.segments[n-1].cursor != c {
		s.segments = append(s.segments, segment{cursor: c, from: offset})
	}
	last := &s.segments[len(s.segments)-1]
	last.messages++
	last.bytes += size
	p.effects.LeasedBytes += size // the cursor has passed the message, which is not in memory
	p.countSpilled(s, 1)
}

// countSpilled adds n messages to the counts of a spill.
func (p *Progress) countSpilled(s *spill, n int64) {
	s.messages += n
	p.spilled.messages += n
	switch {
	case s.reason != "":
		p.spilled.parked += n
	case s.standstill:
		p.spilled.behind += n
	}
}

// spillHeld spills all messages behind the head of a message group that is being parked or blocked.
// reason is the reason for parking; empty means that the head is blocked.
func (p *Progress) spillHeld(mg *messageGroup, reason string) {
	if mg.spill != nil {
		p.endStandstill(mg) // blocked before, or not read back completely
	}
	full := p.full()
	s := &spill{standstill: true, reason: reason}
	for _, l := range mg.held {
		p.removeLease(l)
		p.counts[Held]--
		p.extendSpill(s, l.cursor, l.offset, l.Size)
		p.deleteLease(l)
		p.write(PutSpilled, l, "")
	}
	mg.held = nil
	if before := mg.spill; before != nil {
		p.countSpilled(before, -before.messages)
		for _, part := range before.segments {
			if n := len(s.segments); n > 0 && s.segments[n-1].cursor == part.cursor {
				s.segments[n-1].messages += part.messages
				s.segments[n-1].bytes += part.bytes
			} else {
				s.segments = append(s.segments, part)
			}
			p.countSpilled(s, part.messages)
		}
	}
	mg.spill = s // a new one: a Fetch of the one before is not valid any more
	p.spilled.still++
	if reason == "" {
		p.spilled.blocked++
	}
	p.newRound()
	if full {
		p.effects.WakeRest = true
	}
}

// endStandstill marks a message group as neither parked nor blocked.
func (p *Progress) endStandstill(mg *messageGroup) {
	s := mg.spill
	if s.standstill {
		if p.aheadOf(s) > 0 {
			p.newRound() // receives can get these messages now
		}
		p.spilled.still--
		if s.reason != "" {
			p.spilled.parked -= s.messages
		} else {
			p.spilled.behind -= s.messages
			p.spilled.blocked--
		}
	}
	s.standstill, s.reason = false, ""
	if s.messages == 0 {
		mg.spill = nil
	}
}

// A Fetch is spilled messages of one message group that are to be read back.
type Fetch struct {
	MessageGroup string
	Queue        uint16
	From         int64 // offset
	Limit        int   // messages

	group *messageGroup
	spill *spill
}

// fetch requests a read of a message group's first spilled messages.
func (p *Progress) fetch(name string, mg *messageGroup) {
	if mg.spill.fetching {
		return
	}
	mg.spill.fetching = true
	p.fetches = append(p.fetches, Fetch{MessageGroup: name, group: mg, spill: mg.spill})
	p.effects.Fetch = true
}

// NextFetch returns the next spilled messages to read back, and false if there are none.
func (p *Progress) NextFetch() (Fetch, bool) {
	for len(p.fetches) > 0 {
		f := p.fetches[0]
		p.fetches = p.fetches[1:]
		s := f.spill
		s.fetching = false
		if f.group.spill != s || s.standstill || len(s.segments) == 0 {
			continue
		}
		limit := int64(FetchLimit)
		if p.full() {
			limit = 1
		}
		first := &s.segments[0]
		f.Queue, f.From, f.Limit = first.cursor.number, first.from, int(min(limit, first.messages))
		return f, true
	}
	p.fetches = nil
	return Fetch{}, false
}

// Valid reports whether the messages of a Fetch must still be read back. A Fetch becomes invalid
// when its message group is parked, blocked, rewound or purged.
func (p *Progress) Valid(f Fetch) bool {
	return p.groups[f.MessageGroup] == f.group && f.group.spill == f.spill && !f.spill.standstill
}

// FetchAgain requests the read of a failed Fetch again.
func (p *Progress) FetchAgain(f Fetch) {
	if f.group.spill == f.spill {
		p.fetch(f.MessageGroup, f.group)
	}
}

// TakeBack appends the messages of a valid Fetch to the held messages in memory.
func (p *Progress) TakeBack(f Fetch, records []store.Lease, offsets []int64) {
	s := f.spill
	first := &s.segments[0]
	c := first.cursor
	if len(records) == 0 { // the messages of this segment are gone: they are counted as done
		p.drained(first.messages, first.bytes)
		p.effects.LeasedBytes -= first.bytes
		p.countSpilled(s, -first.messages)
		first.messages = 0
	}
	for i := range records {
		l := &Lease{Lease: records[i], cursor: c, offset: offsets[i], dueIndex: -1}
		l.Group, l.Lease.State, l.Retain = f.MessageGroup, 0, true
		p.effects.LeasedBytes -= l.Size
		p.addLease(l)
		p.set(l, Held)
		f.group.held = append(f.group.held, l)
		first.messages--
		first.bytes -= l.Size
		first.from = l.offset + 1
		p.countSpilled(s, -1)
		p.write(DeleteSpilled, l, f.MessageGroup)
		p.putLease(l)
	}
	if first.messages == 0 {
		s.segments = s.segments[1:]
	}
	if s.messages == 0 {
		f.group.spill = nil
	}
	if f.group.head == nil {
		p.promote(f.MessageGroup, f.group)
	}
}

// FirstSpilled returns the offset of the first spilled message of a queue, or one before it; the
// largest number if there is none.
func (p *Progress) FirstSpilled(queue int) int64 {
	first := int64(math.MaxInt64)
	if p.spilled.messages == 0 {
		return first
	}
	for _, mg := range p.groups {
		if mg.spill == nil {
			continue
		}
		for _, part := range mg.spill.segments {
			if int(part.cursor.number) == queue && part.messages > 0 {
				first = min(first, part.from)
			}
		}
	}
	return first
}

// forgetSpilled drops the spilled messages of some queues, and returns the dropped amount for each
// queue. The caller promotes message groups without a head.
func (p *Progress) forgetSpilled(of func(*cursor) bool) (lost map[*cursor]Amount) {
	lost = map[*cursor]Amount{}
	for _, mg := range p.groups {
		if mg.spill == nil {
			continue
		}
		s := *mg.spill
		s.segments, s.fetching = nil, false
		for _, part := range mg.spill.segments {
			if !of(part.cursor) {
				s.segments = append(s.segments, part)
				continue
			}
			p.countSpilled(&s, -part.messages)
			p.effects.LeasedBytes -= part.bytes
			sum := lost[part.cursor]
			sum.add(part.messages, part.bytes)
			lost[part.cursor] = sum
		}
		mg.spill = &s // a new one: a Fetch of the one before is not valid any more
	}
	return lost
}
