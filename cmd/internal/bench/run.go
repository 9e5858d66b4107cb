package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the load of a run.
type Options struct {
	Callers     int // operations under way at the same time
	Rate        float64
	Arrivals    Arrivals
	Duration    time.Duration
	Outstanding int // operations that may be due and not begun
	Seed        uint64

	// Async begins all operations on one goroutine. Otherwise each of Callers goroutines begins one
	// after the other.
	Async bool

	// Precise waits in the kernel for the last part of each wait of an open loop. Virtual time does
	// not pass there.
	Precise bool
}

// fine is the part of a wait that Precise spends in the kernel.
const fine = 2 * time.Millisecond

// Validate returns the first fault of the options.
func (o Options) Validate() error {
	switch {
	case o.Callers < 1:
		return fmt.Errorf("the callers are %d; there is at least 1", o.Callers)
	case o.Rate < 0:
		return fmt.Errorf("the rate is %v; 0 means as fast as the callers can", o.Rate)
	case o.Duration <= 0:
		return fmt.Errorf("the duration is %v; it must be positive", o.Duration)
	case o.Outstanding < 1:
		return fmt.Errorf("the bound of outstanding operations is %d; it is at least 1", o.Outstanding)
	}
	return o.Arrivals.Validate()
}

// An Operation begins one measured operation, and calls done once at its end: before it returns, or
// with Options.Async later. It ends when ctx does.
type Operation func(ctx context.Context, done func(Outcome))

// An Outcome is the end of an operation.
type Outcome struct {
	Messages int64    // that were sent or received
	Failures []string // the cause of each message that failed; causes group failures
	Last     bool     // nothing is left to do: the round ends early
}

// Run runs one round. It ends after o.Duration, or an operation that is the last, and the end of
// the operations under way. The error is that of ctx, with the result until then.
func Run(ctx context.Context, o Options, op Operation) (Round, error) {
	if err := o.Validate(); err != nil {
		return Round{}, err
	}
	before := usage()
	r := &run{Options: o, operation: op, recorder: newRecorder(o.Callers, o.Rate > 0)}
	r.recorder.started = time.Now()
	overloaded := false
	if o.Rate == 0 {
		r.closed(ctx)
	} else {
		overloaded = r.open(ctx)
	}
	round := r.recorder.round(o, overloaded)
	round.Client = usage().since(before)
	return round, context.Cause(ctx)
}

// A run is one round.
type run struct {
	Options
	operation Operation
	recorder  *recorder
	last      atomic.Bool
}

// begin begins an operation of a caller that is due at a time; the zero time means now. ended is
// called at its end.
func (r *run) begin(ctx context.Context, caller int, due time.Time, ended func()) {
	begun := time.Now()
	if due.IsZero() {
		due = begun
	}
	r.operation(ctx, func(out Outcome) {
		if ctx.Err() == nil || len(out.Failures) == 0 { // else it was cut off
			r.recorder.record(caller, due, begun, time.Now(), out)
		}
		if out.Last {
			r.last.Store(true)
		}
		ended()
	})
}

// closed begins an operation whenever fewer than o.Callers are under way.
func (r *run) closed(ctx context.Context) {
	goesOn := func() bool {
		return time.Since(r.recorder.started) < r.Duration && ctx.Err() == nil && !r.last.Load()
	}
	if r.Async {
		r.limited(func(place func() (free func())) {
			for n := 0; goesOn(); n++ {
				r.begin(ctx, n, time.Time{}, place())
			}
		})
		return
	}
	var callers sync.WaitGroup
	for caller := range r.Callers {
		callers.Go(func() {
			for goesOn() {
				r.begin(ctx, caller, time.Time{}, func() {})
			}
		})
	}
	callers.Wait()
}

// open begins operations at their due times. A time that passes while all callers are busy stays
// due: its operation begins late, and its response time has the wait in it.
func (r *run) open(ctx context.Context) (overloaded bool) {
	due := make(chan time.Time, r.Outstanding)
	var callers sync.WaitGroup
	if r.Async {
		callers.Go(func() {
			r.limited(func(place func() (free func())) {
				n := 0
				for at := range due {
					if free := place(); ctx.Err() == nil {
						r.begin(ctx, n, at, free)
						n++
					} else {
						free()
					}
				}
			})
		})
	} else {
		for caller := range r.Callers {
			callers.Go(func() {
				for at := range due {
					if ctx.Err() == nil {
						r.begin(ctx, caller, at, func() {})
					}
				}
			})
		}
	}
	err := pace(ctx, r.Options, r.recorder, due)
	close(due)
	callers.Wait()
	return errors.Is(err, errOverloaded)
}

// limited calls issue, which calls place before each operation: it waits until fewer than r.Callers
// are under way, and returns the function to call at its end. limited waits for all of them.
func (r *run) limited(issue func(place func() (free func()))) {
	places := make(chan struct{}, r.Callers)
	var under sync.WaitGroup
	free := func() {
		<-places
		under.Done()
	}
	issue(func() func() {
		places <- struct{}{}
		under.Add(1)
		return free
	})
	under.Wait()
}

var errOverloaded = errors.New("too many operations are due")

// pace sends each due time when it has come. It never waits for the callers.
func pace(ctx context.Context, o Options, r *recorder, due chan<- time.Time) error {
	s := newSchedule(o.Rate, o.Arrivals, o.Seed)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		after := s.next()
		if after >= o.Duration {
			return nil
		}
		at := r.started.Add(after)
		for wait := time.Until(at); wait > 0; wait = time.Until(at) {
			if o.Precise && wait <= fine {
				pause(wait)
				continue
			}
			if o.Precise {
				wait -= fine
			}
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		add(r.late, time.Since(at))
		select {
		case due <- at:
		default:
			return errOverloaded
		}
	}
}
