package limits

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// storage has the limits of the storage's state. It reads the state when a message is sent or a
// client asks for the limits; it has no timer.
type storage struct {
	store  *store.Store
	logger *slog.Logger
	onDisk bool

	limits   atomic.Pointer[settings.Pressure]
	throttle atomic.Pointer[status.Throttle] // rejects all sends; nil for none
	states   atomic.Pointer[[]status.LimitState]

	asking atomic.Bool  // one goroutine reads the state; the others use the last result
	at     atomic.Int64 // of the last read, in nanoseconds since 1970
	bytes  atomic.Int64 // committed at the last read

	gates throttle.Storage // used by the goroutine that set asking
}

// look reads the state of the storage if the last read is long ago, if much was written since, or
// if writes are delayed.
func (s *storage) look(now time.Time) {
	if !s.onDisk {
		return
	}
	th := s.throttle.Load()
	stalled := !s.store.StalledSince().IsZero() || th != nil && th.Limit == WriteStall
	if !throttle.Stale(time.Duration(now.UnixNano()-s.at.Load()), s.store.Messages.Committed()-s.bytes.Load(), stalled) {
		return
	}
	s.ask(now)
}

// ask reads the state of the storage and decides whether it rejects sends.
func (s *storage) ask(now time.Time) {
	if !s.asking.CompareAndSwap(false, true) {
		return
	}
	defer s.asking.Store(false)
	s.at.Store(now.UnixNano())
	s.bytes.Store(s.store.Messages.Committed())
	var held time.Duration
	if since := s.store.StalledSince(); !since.IsZero() {
		held = now.Sub(since)
	}
	states := s.decide(s.store.Pressure(), held, now)
	var rejects *status.Throttle
	for i := range states {
		if states[i].On {
			rejects = &states[i].Throttle
			break
		}
	}
	s.states.Store(&states)
	before := s.throttle.Swap(rejects)
	switch {
	case rejects != nil && (before == nil || before.Limit != rejects.Limit):
		s.logger.Warn("all sends throttled", "limit", rejects.Limit, "value", rejects.Value, "mark", rejects.Mark, "resume", rejects.Resume, "advice", remedies[rejects.Limit])
	case rejects == nil && before != nil:
		s.logger.Info("sends accepted again", "limit", before.Limit)
	}
}

// decide returns the state of each limit that is set, from the state of the storage and the time
// for which it has delayed writes.
func (s *storage) decide(at store.Pressure, held time.Duration, now time.Time) (states []status.LimitState) {
	p := s.limits.Load()
	limits := throttle.StorageLimits{Free: p.MinFreeDisk, Debt: p.MaxCompactionDebt, Stalled: time.Duration(p.MaxWriteStall)}.Of(at.Disk, int64(at.Total))
	free, stalled, debt := s.gates.Update(limits, throttle.Condition{Free: int64(at.Free), Debt: int64(at.CompactionDebt), Stalled: held}, now)
	for _, l := range []struct {
		set         bool
		limit, unit string
		is          throttle.State
	}{
		{limits.Free > 0, FreeDisk, unitBytes, free},
		{limits.Stalled > 0, WriteStall, unitMilliseconds, stalled},
		{limits.Debt > 0, CompactionDebt, unitBytes, debt},
	} {
		if l.set {
			states = append(states, stateOf(status.Throttle{Limit: l.limit, Unit: l.unit}, l.is))
		}
	}
	return states
}

// diskFullRetryAfter is the RetryAfter of a full disk. There is no estimate of when space is free.
const diskFullRetryAfter = 5 * time.Second

func diskFull(full *store.DiskFull) *status.Throttle {
	return &status.Throttle{
		Limit: DiskFull, Unit: unitBytes, Value: full.Missing, Mark: 1, Since: full.Since, RetryAfter: settings.Duration(diskFullRetryAfter),
	}
}
