package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/cmd/internal/output"
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

// Columns are the columns of a table with one result a row, for several callers and rates.
var Columns = []output.Column[Result]{
	{Name: "CALLERS", Cell: func(r Result) any { return r.Arguments["callers"] }},
	{Name: "OFFERED", Cell: offered},
	{Name: "RATE", Cell: func(r Result) any { return output.Rate(Median(r.Rounds, achieved)) }},
	{Name: "FROM", Wide: true, Cell: func(r Result) any { low, _ := span(r.Rounds, achieved); return output.Rate(low) }},
	{Name: "TO", Wide: true, Cell: func(r Result) any { _, high := span(r.Rounds, achieved); return output.Rate(high) }},
	{Name: "LATENCY", Cell: func(r Result) any {
		return map[bool]string{true: "response", false: "service"}[r.Rounds[0].Response != nil]
	}},
	{Name: "P50", Cell: func(r Result) any { return median(r, func(l Latency) float64 { return l.P50 }) }},
	{Name: "P90", Wide: true, Cell: func(r Result) any { return median(r, func(l Latency) float64 { return l.P90 }) }},
	{Name: "P99", Cell: func(r Result) any { return median(r, func(l Latency) float64 { return l.P99 }) }},
	{Name: "P99.9", Cell: func(r Result) any { return median(r, func(l Latency) float64 { return l.P999 }) }},
	{Name: "MAX", Cell: func(r Result) any { return median(r, func(l Latency) float64 { return l.Max }) }},
	{Name: "CLIENT-CPU", Wide: true, Cell: func(r Result) any {
		return output.Rate(Median(r.Rounds, func(r Round) float64 { return r.Client.CPU / max(r.Client.Took, 1e-6) }))
	}},
	{Name: "NOTE", Least: 12, Cell: note},
}

func achieved(r Round) float64 { return r.Achieved }

// offered is the rate of an open loop; nil for a closed one.
func offered(r Result) any {
	if r.Rounds[0].Offered == 0 {
		return nil
	}
	return output.Rate(r.Rounds[0].Offered)
}

// median is the median over the rounds of a latency: of the response times of an open loop, or of
// the service times.
func median(r Result, of func(Latency) float64) string {
	return Micros(Median(r.Rounds, func(r Round) float64 {
		if r.Response != nil {
			return of(*r.Response)
		}
		return of(r.Service)
	}))
}

// note is why a row has no figures that one could quote, and how many messages failed.
func note(r Result) any {
	var parts []string
	failed := int64(0)
	for _, round := range r.Rounds {
		kind, _, _ := strings.Cut(round.Invalid, ":")
		if kind != "" && (len(parts) == 0 || parts[0] != kind) {
			parts = append([]string{kind}, parts...)
		}
		for _, n := range round.Failed {
			failed += n
		}
	}
	if failed > 0 {
		return output.Textf("%s%s failed", strings.Join(append(parts, ""), ", "), output.Number(failed))
	}
	return strings.Join(parts, ", ")
}

// A Search finds the highest rate that still holds by halving an interval.
type Search struct {
	Low, High float64 // the highest rate that held, and the lowest one that did not
	tries     int
}

// The end of a search.
const (
	closeEnough = 0.05 // of High
	maxTries    = 10
)

// Next returns the rate to try. It returns false at the end of the search.
func (s *Search) Next() (rate float64, ok bool) {
	if s.tries == maxTries || s.High-s.Low <= closeEnough*s.High {
		return 0, false
	}
	return (s.Low + s.High) / 2, true
}

// Tried narrows the interval by the result of a rate.
func (s *Search) Tried(rate float64, holds bool) {
	s.tries++
	if holds {
		s.Low = rate
	} else {
		s.High = rate
	}
}

// Holds reports whether a round of an open loop is valid, without failures, and has a p99 of at
// most some microseconds. With too few operations for a p99 the largest latency counts.
func Holds(r Round, micros float64) bool {
	if r.Invalid != "" || r.Response == nil || len(r.Failed) > 0 {
		return false
	}
	p99 := r.Response.P99
	if p99 < 0 {
		p99 = r.Response.Max
	}
	return p99 <= micros
}

// A Client is the usage of the benchmark's process in a round.
type Client struct {
	CPU     float64 `json:"cpu_s"`       // processor time in seconds; 0 where the platform does not show it
	GCs     uint32  `json:"gcs"`         // garbage collections
	GCPause float64 `json:"gc_pause_us"` // in which all goroutines stood
	Took    float64 `json:"took_s"`
}

// A used is the usage of the process since its start.
type used struct {
	at    time.Time
	cpu   time.Duration
	gcs   uint32
	pause uint64
}

func usage() used {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return used{time.Now(), processorTime(), m.NumGC, m.PauseTotalNs}
}

func (u used) since(before used) Client {
	return Client{
		CPU: (u.cpu - before.cpu).Seconds(), GCs: u.gcs - before.gcs,
		GCPause: float64(u.pause-before.pause) / 1e3, Took: u.at.Sub(before.at).Seconds(),
	}
}

// System describes the machine of the client. Facts that the platform does not show are left out.
func System() map[string]string {
	s := map[string]string{
		"go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
		"cpus": fmt.Sprint(runtime.NumCPU()), "gomaxprocs": fmt.Sprint(runtime.GOMAXPROCS(0)),
	}
	for name, fact := range map[string]struct{ file, line string }{
		"cpu": {"/proc/cpuinfo", "model name"}, "kernel": {"/proc/sys/kernel/osrelease", ""}, "load": {"/proc/loadavg", ""},
	} {
		text, err := os.ReadFile(fact.file)
		if err != nil {
			continue // not Linux
		}
		if value := factOf(string(text), fact.line); value != "" {
			s[name] = value
		}
	}
	return s
}

// factOf returns the value of "name: value" in a text, or without a name its first line.
func factOf(text, name string) string {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch {
		case name == "":
			return strings.TrimSpace(line)
		case strings.TrimSpace(key) == name:
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Busy returns a warning if the machine had more work at the start than it has processors; empty
// otherwise.
func Busy(system map[string]string) string {
	first, _, _ := strings.Cut(system["load"], " ")
	load, err := strconv.ParseFloat(first, 64)
	cpus, cerr := strconv.Atoi(system["cpus"])
	if err != nil || cerr != nil || load <= float64(cpus) {
		return ""
	}
	return fmt.Sprintf("the machine was busy at the start: load %s on %d processors", first, cpus)
}
