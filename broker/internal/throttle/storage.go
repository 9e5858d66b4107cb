package throttle

import (
	"cmp"
	"math"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

// short decides whether too little is free: below the mark, and then until
// there is a quarter more, so that the mark is ResumePercent of it. Mark 0 is no limit.
func short(before bool, free, mark int64) bool {
	if before {
		return mark > 0 && free < enough(mark)
	}
	return free < mark
}

func enough(mark int64) int64 { return mark + mark/4 }

// A trend follows a value that is looked at now and then, and tells how fast
// it falls. Its zero value is ready for use.
type trend struct {
	at    time.Time
	value float64
	fall  float64 // a second; below 0 while it grows
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

// A Condition is what a storage says of itself, or limits of that. As a limit, 0 is none.
type Condition struct {
	Free    int64         // bytes of the disk; as a limit, so many must be free
	Debt    int64         // bytes that wait to be compacted
	Stalled time.Duration // for how long it has been holding up writes
}

// The bounds of the default of StorageLimits.Free.
const (
	mostFree  = 1 << 30
	leastFree = 256 << 20
)

// StorageLimits are the limits of a storage as they are set: as a Condition, but 0 stands for the
// default, and what is below 0 for no limit. By default a disk must have 1 GiB free or, if that is
// less, 5 % of it, but at least 256 MiB.
type StorageLimits struct {
	Free, Debt int64
	Stalled    time.Duration
}

// Of returns the limits that hold for a disk of total bytes. disk false: it is none, or its size is
// not known.
func (l StorageLimits) Of(disk bool, total int64) Condition {
	free := int64(0)
	if disk {
		free = cmp.Or(l.Free, max(min(mostFree, total/20), leastFree))
	}
	return Condition{Free: max(0, free), Debt: max(0, cmp.Or(l.Debt, settings.DefaultMaxCompactionDebt)), Stalled: max(0, cmp.Or(l.Stalled, settings.DefaultMaxWriteStall))}
}

const (
	// askEvery is the longest time between two questions to a storage while messages are sent, and
	// stallEvery while it holds up writes.
	askEvery   = 500 * time.Millisecond
	stallEvery = 10 * time.Millisecond

	// askBytes is how much is written before the storage is asked again at the latest.
	askBytes = 16 << 20
)

// Stale reports whether a storage is to be asked again, since it was asked that long ago and so
// many bytes were written. A negative age is that of a clock that was put back.
func Stale(age time.Duration, written int64, stalled bool) bool {
	every := askEvery
	if stalled {
		every = stallEvery
	}
	return age < 0 || age >= every || written >= askBytes
}

// A Storage keeps which limits of a storage refuse sends.
type Storage struct {
	disk, debt, stall gate
	free, owed        trend
}

// Update compares what the storage says with its limits, and returns the state
// of each: free bytes at Value, Mark and Resume, then milliseconds of stalled
// writes, then bytes of debt. Sends are refused while Value is below Mark free
// bytes, and then below Resume, a quarter more; while writes are stalled for as long as
// the limit; and from Mark bytes of debt down to Resume.
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
