package consume

import (
	"container/heap"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

const (
	// MaxChunk bounds the messages that are read at a time while none of them can be delivered.
	MaxChunk = 256

	// MaxSkipped is about how many messages a receive skips before it checks whether it should end.
	MaxSkipped = 4096
)

// A Filter decides whether a receive wants a message.
type Filter interface {
	Wants(*store.Message) bool
}

// A Receive is a receive under way: the request, and its results so far.
type Receive struct {
	Queue     int  // below zero for any queue
	Set       *Set // the queues of a receive from lite topics, whose Queue is below zero; nil for others
	Max       int  // messages
	MaxBytes  int64
	Push      bool // by a push consumer
	Owner     string
	Holder    *Holder // nil: deliveries are counted for no client
	Invisible time.Duration
	Filter    Filter

	// Grants are the deliveries so far.
	Grants []Grant

	// Skipped is the number of new messages that cursors passed for this receive. Some of them can
	// be among Grants.
	Skipped int

	budget int64   // the rest of MaxBytes
	chunk  int     // messages to read at a time
	turn   *cursor // in a ranked topic: the queue that gives the first message; nil for the highest
}

// A Set is the queues of a consumer of lite topics.
type Set struct{ cursors []*cursor }

// NewSet returns a set of existing queues.
func (p *Progress) NewSet(queues []uint16) *Set {
	s := &Set{cursors: make([]*cursor, len(queues))}
	for i, q := range queues {
		s.cursors[i] = p.cursors[q]
	}
	return s
}

// of returns the cursors among which are those that a receive reads.
func (p *Progress) of(r *Receive) []*cursor {
	if r.Set != nil {
		return r.Set.cursors
	}
	return p.cursors
}

// A Grant is one delivery that a receive is about to return.
type Grant struct {
	Lease   *Lease
	Receipt Handle
	Attempt int
	Due     time.Time
	Message *store.Message // nil: not read yet
}

// A Claim is a range of new messages of a queue that one receive may read, and no other.
type Claim struct {
	Queue    int
	From, To int64 // offsets
	Limit    int   // messages to read
	Wanted   int   // messages that the receive can take
	Bytes    int64 // of bodies that it can take; the first message can have more
}

// Begin delivers ready messages to a receive. If there are also new messages that it can read, it
// leaves a quarter of the receive for them, so that retries do not starve new messages. In a ranked
// topic Claim delivers them.
func (p *Progress) Begin(r *Receive, now time.Time) {
	r.budget = r.MaxBytes
	switch {
	case p.config.Ranked:
		r.turn = p.nextTurn(r)
	case p.counts[Ready] > 0 && slices.ContainsFunc(p.of(r), func(c *cursor) bool { return r.reads(c) && p.claimable(c) }):
		p.deliverReady(r, p.readyShare(r.Max), now)
	default:
		p.deliverReady(r, r.Max, now)
	}
}

// readyShare returns how many of most messages can be ready ones if there are also new ones.
func (p *Progress) readyShare(most int) int {
	p.contested++
	if most < 4 && p.contested%4 == 0 {
		return 0
	}
	return most - most/4
}

// turnAfter is how many messages of a ranked topic are delivered by their priority before a receive
// begins with a message of the next lower priority in turn. Without turns, many messages of high
// priorities would keep those of lower ones waiting without end.
const turnAfter = 16

// nextTurn returns the queue whose turn it is to be the first, and nil if that is the highest one
// with messages. The other queues with messages take turns.
func (p *Progress) nextTurn(r *Receive) *cursor {
	if p.sinceTurn < turnAfter {
		return nil
	}
	highest := len(p.cursors) - 1
	for highest >= 0 && !p.takes(r, p.cursors[highest]) {
		highest--
	}
	for i := 1; i <= highest; i++ {
		q := (p.lastTurn + i) % highest
		if c := p.cursors[q]; p.takes(r, c) {
			p.lastTurn, p.sinceTurn = q, 0
			return c
		}
	}
	return nil
}

// takes reports whether a receive can take a message of a queue.
func (p *Progress) takes(r *Receive, c *cursor) bool {
	return r.reads(c) && (len(c.ready) > 0 || p.claimable(c))
}

func (r *Receive) reads(c *cursor) bool { return r.Queue < 0 || int(c.number) == r.Queue }

// claimable reports whether a receive can read new messages.
func (p *Progress) claimable(c *cursor) bool {
	return !c.claimed && c.next < c.end && !p.full() && (!p.config.Lite || len(c.leases) == 0)
}

// deliverReady delivers ready messages until the receive has limit messages in all.
func (p *Progress) deliverReady(r *Receive, limit int, now time.Time) {
	if p.counts[Ready] == 0 {
		return
	}
	p.firstReady++
	cursors := p.of(r)
	for i := range cursors {
		c := cursors[(p.firstReady+i)%len(cursors)]
		if p.config.Ranked {
			c = cursors[len(cursors)-1-i]
		}
		if r.reads(c) {
			p.deliverReadyOf(c, r, limit, now)
		}
	}
}

// deliverReadyOf is deliverReady for one queue.
func (p *Progress) deliverReadyOf(c *cursor, r *Receive, limit int, now time.Time) {
	for len(c.ready) > 0 && len(r.Grants) < limit && r.spend(c.ready[0].Size) {
		l := heap.Pop(&c.ready).(*Lease)
		r.Grants = append(r.Grants, p.deliver(l, r, now))
		p.putLease(l)
	}
}

// spend takes a message out of the budget. It returns false, and ends the budget, if the message
// does not fit.
func (r *Receive) spend(size int64) bool {
	if r.budget <= 0 || len(r.Grants) > 0 && size > r.budget {
		r.budget = 0
		return false
	}
	r.budget -= size
	return true
}

// Claim chooses a queue from which the receive reads next. It returns false if the receive has
// enough, or no queue has new messages that no other receive reads. The caller applies the effects,
// reads, and calls Unclaim.
//
// In a ranked topic it takes the queues from the last one on, and delivers the ready messages of
// each before the new ones of the next.
func (p *Progress) Claim(r *Receive, now time.Time) (Claim, bool) {
	switch {
	case r.full():
		return Claim{}, false
	case p.config.Ranked:
		return p.claimRanked(r, now)
	}
	cursors, most := p.of(r), r.Max
	if p.config.Lite {
		most = len(r.Grants) + 1 // the next one of the lite topic waits for it
	}
	for i := range cursors {
		c := cursors[(p.firstFresh+i)%len(cursors)]
		if !r.reads(c) || !p.claimable(c) {
			continue
		}
		p.firstFresh = (p.firstFresh + i + 1) % len(cursors)
		return p.claim(c, r, most), true
	}
	return Claim{}, false
}

func (p *Progress) claimRanked(r *Receive, now time.Time) (Claim, bool) {
	if c := r.turn; c != nil { // for one message
		if r.turn = nil; p.claimable(c) && len(c.ready) == 0 {
			return p.claim(c, r, len(r.Grants)+1), true
		}
		p.deliverReadyOf(c, r, len(r.Grants)+1, now)
	}
	for _, c := range slices.Backward(p.cursors) {
		if r.full() {
			break
		}
		if !r.reads(c) {
			continue
		}
		limit, fresh := r.Max, p.claimable(c)
		if fresh && len(c.ready) > 0 {
			limit = len(r.Grants) + p.readyShare(r.Max-len(r.Grants))
		}
		if p.deliverReadyOf(c, r, limit, now); fresh && !r.full() {
			return p.claim(c, r, r.Max), true
		}
	}
	return Claim{}, false
}

// claim claims the new messages of a queue, until the receive has most messages in all.
func (p *Progress) claim(c *cursor, r *Receive, most int) Claim {
	c.claimed = true
	wanted := most - len(r.Grants)
	r.chunk = max(r.chunk, wanted)
	return Claim{Queue: int(c.number), From: c.next, To: c.end, Limit: r.chunk, Wanted: wanted, Bytes: r.budget}
}

// full reports whether the receive has enough.
func (r *Receive) full() bool {
	return len(r.Grants) >= r.Max || r.budget <= 0 || r.Skipped >= MaxSkipped
}

// WantsMore reports whether the receive can take further messages: it found fewer than it may
// bring.
func (r *Receive) WantsMore() bool { return !r.full() }

// Unclaim ends a claim. It returns false if the messages that were read are outdated: then the
// receive counts the attempt to read as skipped.
func (p *Progress) Unclaim(r *Receive, queue int) bool {
	c := p.cursors[queue]
	c.claimed = false
	if !c.outdated {
		return true
	}
	c.outdated = false
	p.effects.Reread = append(p.effects.Reread, queue)
	r.Skipped++
	return false
}

// Outdate marks the messages of a queue that were read ahead, or that a receive reads, as outdated,
// so that they are read again.
func (p *Progress) Outdate(queue int) {
	if c := p.cursors[queue]; c.claimed {
		c.outdated = true // Unclaim returns it
	} else {
		p.effects.Reread = append(p.effects.Reread, queue)
	}
}

// Admit moves a cursor over new messages that a claim has read:
//   - It skips messages that do not match the filter.
//   - It holds or spills messages of message groups that have an unfinished message.
//   - It delivers the other messages.
//
// Admit stops when the receive has as many messages or bytes as it takes.
func (p *Progress) Admit(r *Receive, claim Claim, fifo bool, ms []store.Message, offsets []int64, now time.Time) {
	c := p.cursors[claim.Queue]
	before := len(r.Grants)
	r.Grants = slices.Grow(r.Grants, min(claim.Wanted, len(ms)))
	for i := range ms {
		m := &ms[i]
		size := int64(len(m.Body))
		if len(r.Grants) == before+claim.Wanted {
			break
		}
		if offsets[i] < c.next {
			continue // removed while it was read, see SkipRemoved
		}
		if len(r.Grants) > 0 && size > r.budget {
			r.budget = 0
			break
		}
		if missing, bytes := offsets[i]-c.next, m.Cumulative-size-c.bytes; missing > 0 || bytes > 0 {
			p.drained(missing, bytes) // removed meanwhile, or before the cursor and not counted then, or corrupt, see SkipMissing
			if missing > 0 && c.next < c.looked {
				p.newRound()
			}
		}
		p.reached(c, offsets[i], m.OrderKey())
		c.next, c.bytes = offsets[i]+1, m.Cumulative
		if !r.Filter.Wants(m) {
			p.drained(1, size)
			p.stats.Filtered++
			continue
		}
		l := &Lease{cursor: c, offset: offsets[i], dueIndex: -1}
		l.Size, l.Stored, l.Serial = size, m.StoredAt.UnixNano(), firstSerial(now, c.rewound)
		if order := m.OrderKey(); fifo && order != "" {
			l.Group = order
			if p.joinGroup(l) {
				continue
			}
		}
		p.addLease(l)
		l.Lease.State = uint8(Ready)
		p.counts[Ready]++
		g := p.deliver(l, r, now)
		p.putLease(l)
		g.Message = m
		r.Grants = append(r.Grants, g)
		r.budget -= size
	}
	p.putCursor(c)
	p.effects.WakeRest = true
	r.Skipped += len(ms)
	if r.chunk = min(2*r.chunk, MaxChunk); len(r.Grants) > before {
		r.chunk = 0
	}
}

// End completes a receive. It delivers more ready messages, up to the maximum of the receive. The
// receive waits if it has no grants and skipped no messages. A receive that skipped messages wakes
// others for the rest: its client can leave before it looks again.
func (p *Progress) End(r *Receive, now time.Time) {
	if !p.config.Ranked || !r.full() { // which may have left messages of a higher priority
		p.deliverReady(r, r.Max, now)
	}
	p.sinceTurn += len(r.Grants)
	p.effects.WakeRest = p.effects.WakeRest || len(r.Grants) > 0 || r.Skipped > 0
}

// Fail completes a receive that returns an error. It wakes other receives for the messages that are
// left.
func (p *Progress) Fail() { p.effects.WakeRest = true }

// deliver makes one delivery of a message in state Ready that is not in the ready heap. The caller
// writes the lease.
func (p *Progress) deliver(l *Lease, r *Receive, now time.Time) Grant {
	to, _ := l.State().Next(EventDeliver, AttemptsLeft, r.Push)
	l.Attempt++
	l.renumber()
	l.Push, l.Negative, l.Owner, l.holder = r.Push, false, r.Owner, r.Holder
	l.Since, l.postponed = now, false
	l.setDue(now, r.Invisible)
	p.set(l, to)
	return p.grant(l)
}

func (p *Progress) grant(l *Lease) Grant {
	return Grant{Lease: l, Receipt: p.receipt(l), Attempt: l.Attempt, Due: l.Due}
}

// SkipMissing moves a cursor up to an offset, over messages that were removed or are corrupt.
// Without it the group would receive no later message of the queue. end is the end of the queue. If
// the missing messages are the last ones of the queue, SkipMissing counts their bytes. Otherwise
// Admit counts their bytes with the next message.
func (p *Progress) SkipMissing(r *Receive, claim Claim, to int64, end store.Mark) {
	c := p.cursors[claim.Queue]
	r.Skipped += int(max(1, to-claim.From))
	p.effects.Reread = append(p.effects.Reread, claim.Queue)
	if to <= c.next { // removed while it was read, see SkipRemoved
		return
	}
	bytes := c.bytes
	if end.Offset == to {
		bytes = end.Bytes
	}
	p.drained(to-c.next, bytes-c.bytes)
	c.next, c.bytes = to, bytes
	p.newRound()
	p.putCursor(c)
}

// MaxAhead bounds the new messages of a queue that are looked at for Summary. Those after them
// count as ready.
const MaxAhead = 1 << 16

// A Look is a range of new messages of a queue, whose message groups Looked needs.
type Look struct {
	Queue    int
	From, To int64 // offsets

	round uint64
}

// aheadCounts are the new messages that no receive has reached and that belong to a parked or
// blocked message group. They are counted in rounds: a round begins when the message groups change
// that are parked or blocked, or when a cursor moves over messages that are not known.
type aheadCounts struct {
	round           uint64 // counts of spills and cursors from another round are void
	parked, blocked int64
}

// newRound makes all counts of new messages void.
func (p *Progress) newRound() { p.ahead = aheadCounts{round: p.ahead.round + 1} }

// looked returns the offset after the new messages that were looked at in this round.
func (p *Progress) looked(c *cursor) int64 {
	if c.round != p.ahead.round {
		return c.next
	}
	return max(c.looked, c.next)
}

// NextLook returns the next new messages, at most limit, that the counts of Summary need, and false
// if there are none. Only message groups that are parked or blocked need a look.
func (p *Progress) NextLook(limit int64) (Look, bool) {
	if p.spilled.still == 0 {
		return Look{}, false
	}
	for _, c := range p.cursors {
		from := p.looked(c)
		if to := min(c.end, c.next+MaxAhead, from+limit); from < to {
			return Look{Queue: int(c.number), From: from, To: to, round: p.ahead.round}, true
		}
	}
	return Look{}, false
}

// Looked counts the messages of a Look, by offset. It has no effect if the Look is outdated.
func (p *Progress) Looked(k Look, messageGroups []string, offsets []int64) {
	c := p.cursors[k.Queue]
	if k.round != p.ahead.round || p.looked(c) != k.From {
		return
	}
	if c.round != k.round {
		c.round, c.still = k.round, 0
	}
	if k.From-c.next == c.still {
		c.free = 0
	}
	c.looked = k.To
	for i, o := range offsets {
		if s := p.standstill(messageGroups[i]); s != nil {
			p.countAhead(s, 1)
			c.still++
		} else if c.free == 0 {
			c.free = o + 1
		}
	}
}

// standstill returns the spill of a message group that is parked or blocked, and nil for another
// one.
func (p *Progress) standstill(messageGroup string) *spill {
	if mg := p.groups[messageGroup]; messageGroup != "" && mg != nil && mg.spill != nil && mg.spill.standstill {
		return mg.spill
	}
	return nil
}

// aheadOf returns the new messages of a message group that were counted in this round.
func (p *Progress) aheadOf(s *spill) int64 {
	if s.round != p.ahead.round {
		return 0
	}
	return s.ahead
}

// countAhead adds n new messages to a spill.
func (p *Progress) countAhead(s *spill, n int64) {
	s.ahead, s.round = p.aheadOf(s)+n, p.ahead.round
	if s.reason != "" {
		p.ahead.parked += n
	} else {
		p.ahead.blocked += n
	}
}

// reached takes a message that a cursor passes out of the new messages.
func (p *Progress) reached(c *cursor, offset int64, messageGroup string) {
	if p.spilled.still == 0 || c.round != p.ahead.round || offset >= c.looked {
		return
	}
	if s := p.standstill(messageGroup); s != nil {
		p.countAhead(s, -1)
		c.still--
	}
}

// FirstFree returns an offset from which on the first new message that a receive can get lies: that
// of the message, if looks have found it.
func (p *Progress) FirstFree(queue int) int64 {
	c := p.cursors[queue]
	switch {
	case p.spilled.still == 0 || c.round != p.ahead.round:
		return c.next
	case c.free > c.next:
		return c.free - 1
	case p.looked(c)-c.next == c.still:
		return p.looked(c)
	}
	return c.next // the cursor has passed the one that was found, and there are others
}
