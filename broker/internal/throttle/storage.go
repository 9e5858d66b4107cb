package throttle

import (
	"cmp"
	"math"
	"sync"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

// short reports whether too little disk space is free. The result becomes true once free is below
// mark, and stays true until free reaches enough(mark). A mark of 0 means no limit. before is the
// last result.
func short(before bool, free, mark int64) bool {
	if before {
		return mark > 0 && free < enough(mark)
	}
	return free < mark
}

func enough(mark int64) int64 { return mark + mark/4 }

// A trend measures how fast a value falls that is observed from time to time. The zero value is
// ready for use.
type trend struct {
	at    time.Time
	value float64
	fall  float64 // per second; negative while the value grows
	known bool
}

func (t *trend) observe(value float64, now time.Time) {
	dt := now.Sub(t.at).Seconds()
	switch {
	case t.at.IsZero():
	case dt <= 0:
		return
	default:
		w := math.Exp(-dt / drainWindow.Seconds())
		if !t.known {
			w, t.known = 0, true
		}
		t.fall = w*t.fall + (1-w)*(t.value-value)/dt
	}
	t.at, t.value = now, value
}

// A Condition is the state of a storage, or a set of limits for it. As a limit, 0 means no limit.
type Condition struct {
	Free    int64         // free bytes on the disk; as a limit, the least number
	Debt    int64         // compaction debt in bytes
	Stalled time.Duration // how long writes have been stalled
}

// The bounds of the default of settings.Pressure.MinFreeDisk. On a disk of less than 2 GiB, 256 MiB
// would leave little or no space for messages, so there the limit is an eighth of the disk.
const (
	mostFree  = 1 << 30
	leastFree = 256 << 20
	smallDisk = 8 // the part of a small disk
)

// defaultFree returns the default of settings.Pressure.MinFreeDisk for a disk of total bytes.
func defaultFree(total int64) int64 {
	return max(min(mostFree, total/20), min(leastFree, total/smallDisk))
}

// ConditionOf returns the limits for a disk of total bytes. The default of MinFreeDisk is 5 % of
// the disk, but at most 1 GiB, and at least 256 MiB or an eighth of a disk of less than 2 GiB. If
// the storage is not on a disk, or if the size of the disk is unknown, disk is false and Free has
// no limit.
func ConditionOf(p settings.Pressure, disk bool, total int64) Condition {
	free := int64(0)
	if disk {
		free = cmp.Or(p.MinFreeDisk, defaultFree(total))
	}
	p = p.WithDefaults()
	return Condition{Free: max(0, free), Debt: max(0, p.MaxCompactionDebt), Stalled: max(0, time.Duration(p.MaxWriteStall))}
}

const (
	// While messages are sent, the state of a storage is read at least every askEvery, and at least
	// every stallEvery while writes are stalled.
	askEvery   = 500 * time.Millisecond
	stallEvery = 10 * time.Millisecond

	// askBytes is the number of written bytes after which the state is read again.
	askBytes = 16 << 20
)

// Stale reports whether the state of a storage must be read again. age is the time since it was
// read; written is the number of bytes written since then. A negative age means that the clock was
// set back; then the state is stale.
func Stale(age time.Duration, written int64, stalled bool) bool {
	every := askEvery
	if stalled {
		every = stallEvery
	}
	return age < 0 || age >= every || written >= askBytes
}

// A Storage keeps which limits of a storage reject sends. The zero value rejects nothing.
type Storage struct {
	disk, debt, stall gate
	free, owed        trend
}

// Update compares the state of the storage with its limits, and returns the state of each limit:
//   - free, in free bytes. It rejects sends once Value is below Mark, and then until Value reaches
//     Resume, a quarter above Mark.
//   - stalled, in milliseconds. It rejects sends while writes have been stalled for Mark or longer.
//   - debt, in bytes of compaction debt. It rejects sends once Value reaches Mark, and then until
//     Value has fallen to Resume.
func (s *Storage) Update(limits, is Condition, now time.Time) (free, stalled, debt State) {
	s.free.observe(float64(is.Free), now)
	s.owed.observe(float64(is.Debt), now)
	s.disk.set(short(s.disk.on, is.Free, limits.Free), now)
	s.stall.set(limits.Stalled > 0 && is.Stalled >= limits.Stalled, now)
	s.debt.update(is.Debt, limits.Debt, now)
	free = State{Value: is.Free, Mark: limits.Free, Resume: enough(limits.Free)}
	free.RetryAfter = pushBack(free.Resume-free.Value, -s.free.fall)
	stalled = State{Value: is.Stalled.Milliseconds(), Mark: limits.Stalled.Milliseconds()}
	debt = State{Value: is.Debt, Mark: limits.Debt, Resume: resumeMark(limits.Debt)}
	debt.RetryAfter = pushBack(debt.Value-debt.Resume, s.owed.fall)
	return s.disk.state(free), s.stall.state(stalled), s.debt.state(debt)
}

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

const (
	// sampleEvery is the least age of the sample that a later one replaces.
	sampleEvery = 5 * time.Second

	// maxSampleAge is the age from which a sample does not describe the present rate.
	maxSampleAge = time.Minute
)

// A Sampled computes the rate of a counter from its values at the moments of the calls. So a
// counter without readers costs nothing. Goroutines may share a Sampled. The zero value is ready
// for use.
type Sampled struct {
	mu           sync.Mutex
	older, newer sample // guarded by mu
}

// A sample is a value of a counter.
type sample struct {
	at    time.Time
	total int64
}

// Rate returns the increase per second: over the last 5 to 10 s with frequent calls, at most over
// the last minute. It is 0 if no call was within the last minute.
func (s *Sampled) Rate(total int64, now time.Time) (perSecond float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.older.at) > maxSampleAge {
		s.older, s.newer = s.newer, sample{}
	}
	if d := now.Sub(s.older.at); d > 0 && d <= maxSampleAge {
		perSecond = float64(max(0, total-s.older.total)) / d.Seconds()
	} else {
		s.older, s.newer = sample{now, total}, sample{}
	}
	switch {
	case s.newer.at.IsZero() && now.Sub(s.older.at) >= sampleEvery:
		s.newer = sample{now, total}
	case !s.newer.at.IsZero() && now.Sub(s.newer.at) >= sampleEvery:
		s.older, s.newer = s.newer, sample{now, total}
	}
	return perSecond
}
