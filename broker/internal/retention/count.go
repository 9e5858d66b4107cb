package retention

// Counts are the results of a round in one queue.
type Counts struct {
	Removed [Causes]int64 // messages, by cause

	// Advanced and AdvancedBytes are how far the beginning has moved, in messages and bytes of
	// bodies. Leftovers and LeftoversBytes are the change of the leftovers; they can be negative.
	Advanced, AdvancedBytes   int64
	Leftovers, LeftoversBytes int64

	// From and To bound the offsets of the removed messages, if there are any. Bytes is the size of
	// their bodies.
	From, To, Bytes int64
}

// Commit records that the round was carried out in a queue, and returns its results.
func (p *Plan) Commit(q *QueuePlan) (c Counts) {
	at := q.Removed.Offset
	upTo := func(to int64, cause Cause) {
		if to > at {
			c.Removed[cause] += to - at
			at = to
		}
	}
	if p.Purge {
		upTo(q.To.Offset, Purged)
	}
	upTo(q.Begin.Offset, q.unfinished)
	upTo(q.consumed, Consumed)
	upTo(q.old, TooOld)
	upTo(q.To.Offset, TooMany)
	for i, left := 0, q.Gaps.Messages; i < len(c.Removed); i++ {
		n := min(left, c.Removed[i])
		c.Removed[i], left = c.Removed[i]-n, left-n
	}
	c.Bytes = q.To.Bytes - q.Removed.Bytes - q.Gaps.Bytes
	for o, l := range q.retained {
		if q.Leftovers[o] == nil {
			c.Removed[p.causeOf(q, o)]--
			c.Bytes -= l.Size
			c.Leftovers++
			c.LeftoversBytes += l.Size
		}
	}
	c.From, c.To = q.Removed.Offset, q.To.Offset
	for _, o := range q.Finished() {
		size := q.Leftovers[o].Size
		c.From = min(c.From, o)
		c.Removed[p.causeOfFinished()]++
		c.Bytes += size
		c.Leftovers--
		c.LeftoversBytes -= size
	}
	c.Advanced, c.AdvancedBytes = q.To.Offset-q.Removed.Offset, q.To.Bytes-q.Removed.Bytes
	q.Leftovers, q.Removed = q.retained, q.To
	return c
}

// causeOf returns the cause for which a message is removed.
func (p *Plan) causeOf(q *QueuePlan, offset int64) Cause {
	switch {
	case p.Purge:
		return Purged
	case offset < q.Begin.Offset:
		return q.unfinished
	case offset < q.consumed:
		return Consumed
	case offset < q.old:
		return TooOld
	}
	return TooMany
}

func (p *Plan) causeOfFinished() Cause {
	if p.Purge {
		return Purged
	}
	return Consumed
}
