package consume

import (
	"math"

	"github.com/tidegate/tidegate/broker/internal/store"
)

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
