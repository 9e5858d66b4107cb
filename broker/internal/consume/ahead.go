package consume

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
