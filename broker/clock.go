package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/wallclock"
)

// distrustPause is the time between two looks at a wall clock that is not trusted: it may be
// corrected. Nothing looks regularly at a clock that is trusted; each send looks, and all work that
// depends on ages.
const distrustPause = 5 * time.Second

// compareClock compares the wall clock with the newest time in the data directory. A directory of
// which the last process did not trust the clock can have messages with wrong times. Then the time
// that the process trusted last counts.
func (b *Broker) compareClock() error {
	last, ok, err := b.store.Clock()
	if err != nil {
		return err
	}
	newest := b.catalog.Newest()
	if ok && (last.Distrusted || last.At.After(newest)) {
		newest = last.At
	}
	v := b.clock.Compare(newest)
	b.compared = true
	if v.Distrusted || last.Distrusted {
		b.clockChanged()
	}
	return nil
}

// clockChanged writes the verdict about the wall clock to the store and the log, and starts the
// work that depends on it. The write comes before those of messages with the new time.
func (b *Broker) clockChanged() {
	b.writeClock()
	switch v := b.clock.At(time.Now()); {
	case !v.Distrusted:
		b.logger.Info("the time of the wall clock is accepted: messages are removed by age again", "time", v.Now)
	case v.AtStart:
		b.logger.Warn("the wall clock differs by more than an hour from the newest time in the data directory: no message is removed by age until its time is accepted; "+
			"synchronise the clock (NTP) if it is wrong", "time", v.Now, "newest", v.Expected, "ahead_by", v.Jump, "until", v.Until)
	default:
		b.logger.Warn("the wall clock was set: no message is removed by age until its time is accepted; synchronise the clock (NTP) if it is wrong",
			"time", v.Now, "expected", v.Expected, "ahead_by", v.Jump, "until", v.Until)
	}
	b.clockStepped.Store(true)
	b.clockTask.Wake(time.Now())
}

// writeClock writes the record of the wall clock.
func (b *Broker) writeClock() {
	b.store.Messages.Add(func(w *store.Batch) {
		v := b.clock.At(time.Now())
		w.PutClock(store.Clock{At: v.Expected, Distrusted: v.Distrusted})
	}, nil)
}

// lookAtClock is the step of clockTask, which begins when the clock is not trusted. It notices a
// correction, and the end of the distrust.
func (b *Broker) lookAtClock(context.Context, time.Time) (next time.Time, err error) {
	v := b.clock.Look()
	if b.clockStepped.Swap(false) {
		b.catalog.ClockChanged(v.Now)
	}
	if !v.Distrusted {
		return time.Time{}, nil
	}
	if next = v.Now.Add(distrustPause); next.After(v.Until) {
		next = v.Until
	}
	return next, nil
}

// clockStatus returns the state of a wall clock that is not trusted, and nil for one that is.
func (b *Broker) clockStatus() *status.Clock {
	v := b.clock.At(time.Now())
	if !v.Distrusted {
		return nil
	}
	s := &status.Clock{AheadMS: v.Jump.Milliseconds(), AtStart: v.AtStart, Expected: v.Expected, AcceptedAt: v.Until}
	topics, subs := b.catalog.All()
	for _, t := range topics {
		s.Kept += t.KeptExpired()
	}
	for _, sub := range subs {
		s.Postponed += sub.Postponed()
	}
	return s
}

// newClock returns the clock of a broker with a data directory. A broker in memory has none:
// nothing in it is older than the process, and its tests run in virtual time.
func (b *Broker) newClock() *wallclock.Clock {
	if b.opts.Dir == "" {
		return nil
	}
	return wallclock.New(b.clockChanged)
}
