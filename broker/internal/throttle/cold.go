package throttle

import "time"

// A ColdLimit bounds the reads of groups that are far behind the end of a topic.
type ColdLimit struct {
	PerSecond int64 // bytes; 0 means no limit
	Distance  int64 // in bytes: a group with a larger backlog is far behind
}

// Far reports whether the reads of a group count that is behind bytes behind the end. They count
// while behind exceeds ResumePercent of Distance.
func (l ColdLimit) Far(behind int64) bool { return behind > resumeMark(l.Distance) }

// ColdReads sums the reads of the groups that are far behind in one topic. The zero value is empty.
type ColdReads struct {
	perSecond int64
	behind    int64         // bytes, of the group that is farthest behind
	wait      time.Duration // estimated time until none of them is far behind
}

// Add counts a group that is behind bytes behind the end and reads rate bytes per second.
func (r *ColdReads) Add(limit ColdLimit, behind int64, rate float64) {
	r.perSecond += int64(rate)
	r.behind = max(r.behind, behind)
	if rate > 0 {
		r.wait = max(r.wait, pushBack(behind-resumeMark(limit.Distance), rate))
	}
}

// Cold keeps whether sends to a topic are rejected because groups that are far behind read from it.
// The zero value rejects nothing.
type Cold struct{ gate gate }

// Update compares reads with the limit, and returns the state of the limit. Sends are rejected once
// reads reach limit.PerSecond while a group is more than limit.Distance behind. They are accepted
// again once reads fall to ResumePercent of limit.PerSecond, or once no group is far behind (see
// [ColdLimit.Far]). A group that is behind but does not read adds nothing to the reads.
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
