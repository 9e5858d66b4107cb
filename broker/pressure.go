package broker

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// Pressure are limits of the whole broker by the state of its storage: while
// one is reached, all sends are refused. Receiving and settling go on, since
// they are the cure. Without a data directory only MaxColdReads holds.
type Pressure struct {
	// MinFreeDisk is how many bytes the disk must have free; sends are taken
	// again at a quarter more. What is kept free is the reserve that
	// consumers' progress is written to, and that tables are rewritten in. 0: 1 GiB or, if
	// that is less, 5 % of the disk, but at least 256 MiB, which is what the stores' own
	// buffers can take at once. -1: no limit.
	MinFreeDisk int64 `json:"min_free_disk_bytes,omitempty"`

	// MaxCompactionDebt is how many bytes of the message store may wait to be
	// compacted; sends are taken again at ResumePercent of it. 0: 64 GiB, where other
	// stores of this kind begin to hold up writers: a disk that is that far
	// behind does not catch up by itself. -1: no limit.
	MaxCompactionDebt int64 `json:"max_compaction_debt_bytes,omitempty"`

	// MaxWriteStall is how long the message store may hold up writes, because
	// it cannot flush or compact as fast, before sends are refused instead of
	// waiting; they are taken again when it goes on. 0: 1 s. Negative: no limit.
	MaxWriteStall Duration `json:"max_write_stall,omitempty"`

	// MaxColdReads is how many bytes of bodies a second the groups that are
	// more than ColdDistance behind may read from a topic: above it, sends to the topic are refused
	// until they are near the end again (ResumePercent of ColdDistance), or read less (ResumePercent of
	// this). Seed 004: a group that consumes from an earlier moment makes "the
	// storage pressure on the queue" surge. 0: no limit, because what a
	// disk can bear is not known here, and each group that catches up would refuse sends.
	MaxColdReads int64 `json:"max_cold_reads_bytes_per_second,omitempty"`

	// ColdDistance is how many bytes of bodies a group may be behind and still be
	// served from memory, ours or the operating system's. 0: 64 MiB.
	ColdDistance int64 `json:"cold_distance_bytes,omitempty"`
}

// The defaults of Pressure.
const (
	DefaultMaxCompactionDebt = 64 << 30
	DefaultMaxWriteStall     = time.Second
	DefaultColdDistance      = 64 << 20

	mostFreeDisk  = 1 << 30
	leastFreeDisk = 256 << 20
)

func (p Pressure) validate(field string) error {
	var errs []error
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

// minFreeDisk returns the limit for a disk of that size; 0 for none.
func (p Pressure) minFreeDisk(total int64) int64 {
	switch {
	case p.MinFreeDisk < 0:
		return 0
	case p.MinFreeDisk == 0:
		return max(min(mostFreeDisk, total/20), leastFreeDisk)
	}
	return p.MinFreeDisk
}

func (p Pressure) maxDebt() int64 {
	if p.MaxCompactionDebt == 0 {
		return DefaultMaxCompactionDebt
	}
	return max(0, p.MaxCompactionDebt)
}

func (p Pressure) maxStall() time.Duration {
	if p.MaxWriteStall == 0 {
		return DefaultMaxWriteStall
	}
	return max(0, time.Duration(p.MaxWriteStall))
}

func (p Pressure) coldDistance() int64 {
	if p.ColdDistance == 0 {
		return DefaultColdDistance
	}
	return p.ColdDistance
}

// short decides whether too little is free: below the mark, and then until
// there is a quarter more, so that the mark is ResumePercent of it.
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

// pressureGates keep which limits of the storage are reached. Their zero value is ready for use.
type pressureGates struct {
	disk, debt, stall gate
	free, owed        trend
}

// decide returns the state of each limit that is set, given what the storage
// says and for how long it has been holding up writes.
func (g *pressureGates) decide(p Pressure, now time.Time, at store.Pressure, stalled time.Duration) []LimitState {
	var states []LimitState
	add := func(g *gate, th Throttle) {
		if g.on {
			th.Since = g.since
		} else {
			th.RetryAfter = 0
		}
		states = append(states, LimitState{Throttle: th, On: g.on})
	}
	g.free.observe(float64(at.Free), now)
	g.owed.observe(float64(at.CompactionDebt), now)
	mark := p.minFreeDisk(int64(at.Total))
	g.disk.set(at.Disk && short(g.disk.on, int64(at.Free), mark), now)
	if at.Disk && mark > 0 {
		add(&g.disk, Throttle{
			Limit: limitFreeDisk, Unit: unitBytes, Value: int64(at.Free), Mark: mark, Resume: enough(mark),
			RetryAfter: Duration(pushBack(enough(mark)-int64(at.Free), -g.free.fall)),
		})
	}
	longest := p.maxStall()
	g.stall.set(longest > 0 && stalled >= longest, now)
	if longest > 0 {
		add(&g.stall, Throttle{Limit: limitWriteStall, Unit: unitMilliseconds, Value: stalled.Milliseconds(), Mark: longest.Milliseconds()})
	}
	debt, most := int64(at.CompactionDebt), p.maxDebt()
	g.debt.update(debt, most, now)
	if most > 0 {
		add(&g.debt, Throttle{
			Limit: limitCompactionDebt, Unit: unitBytes, Value: debt, Mark: most, Resume: resumeMark(most),
			RetryAfter: Duration(pushBack(debt-resumeMark(most), g.owed.fall)),
		})
	}
	return states
}

const (
	// pressureEvery is how often the storage is asked while messages are sent.
	pressureEvery = 500 * time.Millisecond

	// stallEvery is how often it is asked while it holds up writes.
	stallEvery = 10 * time.Millisecond

	// pressureBytes is how much is written before it is asked at the latest.
	pressureBytes = 16 << 20
)

// pressure asks for the state of the storage when something is sent, and not
// by a timer: without sends nothing is to be refused.
type pressure struct {
	limits   atomic.Pointer[Pressure]
	throttle atomic.Pointer[Throttle] // what refuses all sends; nil for nothing
	states   atomic.Pointer[[]LimitState]

	asking atomic.Bool // one at a time; the others take what is there
	at     atomic.Int64
	bytes  atomic.Int64 // committed when it was asked

	gates pressureGates // used by who set asking
}

// look asks the storage if that was not done for a while, if much was
// written since, or if writes are held up.
func (p *pressure) look(b *Broker, now time.Time) {
	if b.opts.Dir == "" {
		return
	}
	every := pressureEvery
	th := p.throttle.Load()
	if held := !b.store.StalledSince().IsZero(); held || th != nil && th.Limit == limitWriteStall {
		every = stallEvery
	}
	age := now.UnixNano() - p.at.Load()
	if age >= 0 && age < int64(every) && b.store.Messages.Committed()-p.bytes.Load() < pressureBytes {
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
	states := p.gates.decide(*p.limits.Load(), now, b.store.Pressure(), held)
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
