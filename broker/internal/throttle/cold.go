package throttle

import "time"

// A ColdLimit bounds how much groups that are far behind may read.
type ColdLimit struct {
	PerSecond int64 // bytes; 0 for no limit
	Distance  int64 // how many bytes behind is far
}

// Far decides whether what a group reads counts, by how many bytes it is behind:
// until it is near the end, well within Distance.
func (l ColdLimit) Far(behind int64) bool { return behind > resumeMark(l.Distance) }

// ColdReads are what groups far behind read from one topic. The zero value is none.
type ColdReads struct {
	perSecond int64
	behind    int64         // the most
	wait      time.Duration // until all are near the end
}

// Add counts a group that is far behind, by how many bytes, and reads so many a second.
func (r *ColdReads) Add(limit ColdLimit, behind int64, rate float64) {
	r.perSecond += int64(rate)
	r.behind = max(r.behind, behind)
	if rate > 0 {
		r.wait = max(r.wait, pushBack(behind-resumeMark(limit.Distance), rate))
	}
}

// Cold keeps whether sends to a topic are refused because groups far behind read from it.
type Cold struct{ gate gate }

// Update compares what is read with the limit. Sends are refused from the limit
// on, until the groups are near the end, or read much less. Who is behind and
// reads nothing costs nothing.
func (c *Cold) Update(limit ColdLimit, reads ColdReads, now time.Time) State {
	c.gate.set(cold(c.gate.on, reads, limit), now)
	return c.gate.state(State{Value: reads.perSecond, Mark: limit.PerSecond, Resume: resumeMark(limit.PerSecond), RetryAfter: reads.wait})
}

func cold(before bool, reads ColdReads, limit ColdLimit) bool {
	switch {
	case limit.PerSecond <= 0:
		return false
	case before:
		return reads.perSecond > resumeMark(limit.PerSecond) && limit.Far(reads.behind)
	}
	return reads.perSecond >= limit.PerSecond && reads.behind > limit.Distance
}
