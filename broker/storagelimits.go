package broker

import (
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

func storageLimits(p *Pressure) throttle.StorageLimits {
	return throttle.StorageLimits{Free: p.MinFreeDisk, Debt: p.MaxCompactionDebt, Stalled: time.Duration(p.MaxWriteStall)}
}

// pressure asks for the state of the storage when something is sent or somebody
// asks whether it would be refused, and not by a timer.
type pressure struct {
	limits   atomic.Pointer[Pressure]
	throttle atomic.Pointer[Throttle] // what refuses all sends; nil for nothing
	states   atomic.Pointer[[]LimitState]

	asking atomic.Bool // one at a time; the others take what is there
	at     atomic.Int64
	bytes  atomic.Int64 // committed when it was asked

	gates throttle.Storage // used by who set asking
}

// look asks the storage if that was not done for a while, if much was
// written since, or if writes are held up.
func (p *pressure) look(b *Broker, now time.Time) {
	if b.opts.Dir == "" {
		return
	}
	th := p.throttle.Load()
	stalled := !b.store.StalledSince().IsZero() || th != nil && th.Limit == limitWriteStall
	if !throttle.Stale(time.Duration(now.UnixNano()-p.at.Load()), b.store.Messages.Committed()-p.bytes.Load(), stalled) {
		return
	}
	p.ask(b, now)
}

func (p *pressure) ask(b *Broker, now time.Time) {
	if !p.asking.CompareAndSwap(false, true) {
		return
	}
	defer p.asking.Store(false)
	p.at.Store(now.UnixNano())
	p.bytes.Store(b.store.Messages.Committed())
	var held time.Duration
	if since := b.store.StalledSince(); !since.IsZero() {
		held = now.Sub(since)
	}
	states := p.decide(b.store.Pressure(), held, now)
	var refuses *Throttle
	for i := range states {
		if states[i].On {
			refuses = &states[i].Throttle
			break
		}
	}
	p.states.Store(&states)
	before := p.throttle.Swap(refuses)
	switch {
	case refuses != nil && (before == nil || before.Limit != refuses.Limit):
		b.logger.Warn("all sends are refused", "limit", refuses.Limit, "value", refuses.Value, "mark", refuses.Mark, "resume", refuses.Resume, "advice", refuses.advice())
	case refuses == nil && before != nil:
		b.logger.Info("sends are taken again", "limit", before.Limit)
	}
}

// decide returns the state of each limit that is set, given what the storage
// says and for how long it has been holding up writes.
func (p *pressure) decide(at store.Pressure, held time.Duration, now time.Time) (states []LimitState) {
	limits := storageLimits(p.limits.Load()).Of(at.Disk, int64(at.Total))
	free, stalled, debt := p.gates.Update(limits, throttle.Condition{Free: int64(at.Free), Debt: int64(at.CompactionDebt), Stalled: held}, now)
	for _, l := range []struct {
		set         bool
		limit, unit string
		is          throttle.State
	}{
		{limits.Free > 0, limitFreeDisk, unitBytes, free},
		{limits.Stalled > 0, limitWriteStall, unitMilliseconds, stalled},
		{limits.Debt > 0, limitCompactionDebt, unitBytes, debt},
	} {
		if l.set {
			states = append(states, LimitState{Throttle{Limit: l.limit, Unit: l.unit}.at(l.is), l.is.On})
		}
	}
	return states
}
