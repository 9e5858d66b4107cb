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

// An Operation is what is measured. The text of a failure is its cause, and groups failures; empty
// means success. It ends when ctx does.
type Operation func(ctx context.Context) (failure string)

// Run runs one round. It ends after o.Duration and the end of the operations under way. The error
// is that of ctx, with the result until then.
func Run(ctx context.Context, o Options, op Operation) (Round, error) {
	if err := o.Validate(); err != nil {
		return Round{}, err
	}
	r := newRecorder(time.Now())
	overloaded := false
	if o.Rate == 0 {
		closed(ctx, o, op, r)
	} else {
		overloaded = open(ctx, o, op, r)
	}
	return r.round(o, overloaded), context.Cause(ctx)
}

// closed calls op from each caller without a pause.
func closed(ctx context.Context, o Options, op Operation, r *recorder) {
	var callers sync.WaitGroup
	for range o.Callers {
		callers.Go(func() {
			for time.Since(r.started) < o.Duration && ctx.Err() == nil {
				begun := time.Now()
				failure := op(ctx)
				if ctx.Err() != nil && failure != "" {
					return // it was cut off
				}
				r.record(begun, begun, time.Now(), failure)
			}
		})
	}
	callers.Wait()
}

// open begins operations at their due times. A time that passes while all callers are busy stays
// due: its operation begins late, and its response time has the wait in it.
func open(ctx context.Context, o Options, op Operation, r *recorder) (overloaded bool) {
	due := make(chan time.Time, o.Outstanding)
	var callers sync.WaitGroup
	for range o.Callers {
		callers.Go(func() {
			for at := range due {
				if ctx.Err() != nil {
					continue
				}
				begun := time.Now()
				failure := op(ctx)
				if ctx.Err() != nil && failure != "" {
					continue
				}
				r.record(at, begun, time.Now(), failure)
			}
		})
	}
	err := pace(ctx, o, r, due)
	close(due)
	callers.Wait()
	return errors.Is(err, errOverloaded)
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
		r.lateness(time.Since(at))
		select {
		case due <- at:
		default:
			return errOverloaded
		}
	}
}

// A Verifier checks that each accepted message is delivered, once and in the order of its message
// group. Several goroutines may use it.
type Verifier struct {
	accepted  atomic.Int64
	delivered atomic.Int64
	twice     atomic.Int64
	disorder  atomic.Int64

	mu   sync.Mutex
	seen map[int64]bool
	last map[string]int64 // by message group
}

// NewVerifier returns a Verifier of an empty run.
func NewVerifier() *Verifier { return &Verifier{seen: map[int64]bool{}, last: map[string]int64{}} }

// Accept counts an accepted message.
func (v *Verifier) Accept() { v.accepted.Add(1) }

// Deliver checks a delivery of the message with a number of the run, and reports whether it is the
// first of that message. Messages without a group have no order.
func (v *Verifier) Deliver(number int64, group string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.seen[number] {
		v.twice.Add(1)
		return false
	}
	v.seen[number] = true
	v.delivered.Add(1)
	if group != "" {
		if last, ok := v.last[group]; ok && number < last {
			v.disorder.Add(1)
		}
		v.last[group] = max(v.last[group], number)
	}
	return true
}

// A Truth is the result of a verification.
type Truth struct {
	Accepted   int64 `json:"accepted"`
	Delivered  int64 `json:"delivered"` // different messages
	Lost       int64 `json:"lost"`
	Twice      int64 `json:"twice"`
	OutOfOrder int64 `json:"out_of_order"`
}

// Complete reports whether each accepted message was delivered.
func (v *Verifier) Complete() bool { return v.delivered.Load() >= v.accepted.Load() }

// Truth returns the counts.
func (v *Verifier) Truth() Truth {
	a, d := v.accepted.Load(), v.delivered.Load()
	return Truth{Accepted: a, Delivered: d, Lost: max(0, a-d), Twice: v.twice.Load(), OutOfOrder: v.disorder.Load()}
}
