package broker

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// Pressure has the limits of the storage's state. While one of the first three is reached, the
// broker rejects all sends; MaxColdReads rejects the sends to one topic. Receives and settlements
// continue, because they reduce the pressure. Without a data directory only MaxColdReads applies.
type Pressure struct {
	// MinFreeDisk is the free space of the disk, in bytes, below which the broker rejects sends and
	// commits, and delayed messages stay where they are. The throttle ends at a quarter more. The
	// consumers' progress and the compaction of tables use the free space. -1 means no limit.
	// Default: 1 GiB, or 5 % of a smaller disk, at least 256 MiB.
	MinFreeDisk int64 `json:"min_free_disk_bytes,omitempty"`

	// MaxCompactionDebt is the number of bytes that wait to be compacted at which the broker
	// rejects sends. The throttle ends at ResumePercent of it. -1 means no limit. Default: 64 GiB;
	// other stores of this kind delay writers from there on, because the disk does not catch up.
	MaxCompactionDebt int64 `json:"max_compaction_debt_bytes,omitempty"`

	// MaxWriteStall is how long the message store can delay writes, because it cannot flush or
	// compact fast enough, before the broker rejects sends. The throttle ends when writes continue.
	// Negative means no limit. Default: 1 s.
	MaxWriteStall Duration `json:"max_write_stall,omitempty"`

	// MaxColdReads is the number of bytes of bodies a second that groups more than ColdDistance
	// behind can read from a topic before the broker rejects sends to that topic. The throttle ends
	// when these groups are at ResumePercent of ColdDistance, or read ResumePercent of this rate
	// (RocketMQ: sending retry and throttling: a group that consumes from an earlier moment makes
	// "the storage pressure on the queue" surge). Zero means no limit.
	MaxColdReads int64 `json:"max_cold_reads_bytes_per_second,omitempty"`

	// ColdDistance is the number of bytes of bodies from which a group counts as far behind. Below
	// it, reads are served from memory of the broker or of the operating system. Default: 64 MiB.
	ColdDistance int64 `json:"cold_distance_bytes,omitempty"`
}

// The defaults of Pressure.
const (
	DefaultMaxCompactionDebt = throttle.DefaultDebt
	DefaultMaxWriteStall     = throttle.DefaultStall
	DefaultColdDistance      = 64 << 20
)

func (p Pressure) validate(field string) error {
	errs := []error{atMost(field+".max_write_stall", p.MaxWriteStall)}
	for _, x := range []struct {
		name         string
		value, least int64
	}{
		{"min_free_disk_bytes", p.MinFreeDisk, -1}, {"max_compaction_debt_bytes", p.MaxCompactionDebt, -1},
		{"max_cold_reads_bytes_per_second", p.MaxColdReads, 0}, {"cold_distance_bytes", p.ColdDistance, 0},
	} {
		if x.value < x.least {
			errs = append(errs, fmt.Errorf("%s.%s is %d: give %d or more", field, x.name, x.value, x.least))
		}
	}
	return errors.Join(errs...)
}

func (p Pressure) storage() throttle.StorageLimits {
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
	limits := p.limits.Load().storage().Of(at.Disk, int64(at.Total))
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
