package broker

import "github.com/tidegate/tidegate/broker/internal/store"

const (
	// aheadMessages and aheadBytes bound what is read ahead in one queue for a
	// group that is behind: one pass over the store serves several receives.
	aheadMessages = 256
	aheadBytes    = 256 << 10

	// maxAheadBytes bounds what all groups have read ahead together, about.
	// Beyond it nothing is read ahead.
	maxAheadBytes = 8 << 20
)

// An ahead is messages of a queue that were read and not asked for yet. Who
// has claimed the cursor owns it. Messages do not change once they are written, so it
// cannot be out of date; what removes the oldest moves the cursor on, so they are skipped, and who
// removes others, or moves the cursor, has them read anew (outdate).
type ahead struct {
	from    int64 // nothing from here on was left out
	ms      []store.Message
	offsets []int64
	bytes   int64 // counted in Broker.ahead
}

// skip passes over what is before from, and reports whether anything is left.
func (a *ahead) skip(from int64) bool {
	if from < a.from {
		return false
	}
	n := 0
	for n < len(a.offsets) && a.offsets[n] < from {
		n++
	}
	a.from, a.ms, a.offsets = from, a.ms[n:], a.offsets[n:]
	return len(a.ms) > 0
}

// first returns how many of the first limit messages have maxBytes of bodies
// together, the last of them being allowed to exceed it.
func (a *ahead) first(limit int, maxBytes int64) int {
	n := 0
	for n < min(limit, len(a.ms)) && (n == 0 || maxBytes > 0) {
		maxBytes -= int64(len(a.ms[n].Body))
		n++
	}
	return n
}

// read is store.Read for the queue of c, which the caller has claimed; mu is not held.
func (s *subscription) read(c *cursor, from, to int64, limit int, maxBytes int64) ([]store.Message, []int64, error) {
	b, a := s.broker, &c.ahead
	if !a.skip(from) {
		s.dropAhead(c)
		if to-from <= int64(limit) || limit >= aheadMessages || b.ahead.Load() >= maxAheadBytes {
			ms, offsets, err := b.store.Read(s.topic.id, c.queue.number, from, to, limit, maxBytes)
			s.countCold(ms)
			return ms, offsets, err
		}
		ms, offsets, err := b.store.Read(s.topic.id, c.queue.number, from, to, aheadMessages, aheadBytes)
		s.countCold(ms)
		if err != nil || len(ms) == 0 {
			return ms, offsets, err
		}
		c.ahead = ahead{from: from, ms: ms, offsets: offsets}
		for i := range ms {
			a.bytes += int64(len(ms[i].Body))
		}
		b.ahead.Add(a.bytes)
	}
	n := a.first(limit, maxBytes)
	ms, offsets := a.ms[:n:n], a.offsets[:n:n]
	if n == len(a.ms) {
		s.dropAhead(c) // the caller has it all; what it does not take is read again
	}
	return ms, offsets, nil
}

// outdate has what a cursor has ahead, or a receive is reading there, read anew. mu is held.
func (s *subscription) outdate(c *cursor) {
	if c.claimed { // the receive does it
		c.outdated = true
	} else {
		s.dropAhead(c)
	}
}

// unclaim ends that a receive reads from a cursor on, and reports whether what it has read still
// counts. mu is held.
func (s *subscription) unclaim(c *cursor) bool {
	c.claimed = false
	if !c.outdated {
		return true
	}
	c.outdated = false
	s.dropAhead(c)
	return false
}

// dropAhead forgets what was read ahead. The caller has claimed c, or holds mu
// while nobody has.
func (s *subscription) dropAhead(c *cursor) {
	s.broker.ahead.Add(-c.ahead.bytes)
	c.ahead = ahead{}
}
