package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// lookAgain is the longest wait of a loop before it looks at the clock again.
const lookAgain = time.Minute

// A maintenance is the loop that runs the work that the broker does beside the requests of its
// clients: it moves delayed messages that are due, checks transactions, removes old messages. All
// methods can be called by several goroutines at once.
//
// Each kind of work is a task. It has a due time, which anyone can bring forward, and a step, which
// does a small, bounded piece of work and returns the next due time. The loop has one timer, set to
// the first due time. Idle tasks have no goroutine. A task that is due has one of its own until
// nothing is due for it, so a slow step delays only its own task.
//
// Liveness: a task that waits is woken by Wake, or by the timer, which is set to the first due time
// whenever a due time changes or a step ends. A task has a step only after a Wake, at the due time
// that its last step returned, or after the pause of a failure.
//
// A due time without a monotonic reading, such as a stored time, is a time of the wall clock. When
// the wall clock is set forward, or the machine was suspended, a step is at most a minute late.
type maintenance struct {
	ctx    context.Context //nolint:containedctx // the life of the loop, not of a request
	logger *slog.Logger
	panics panicHandler // nil: nothing more than the panic

	timer   *time.Timer
	running sync.WaitGroup

	mu    sync.Mutex
	tasks []*Task          // guarded by mu
	state maintenanceState // guarded by mu
}

type maintenanceState int

const (
	created maintenanceState = iota
	started
	stopped
)

// panicHandler gets the panics of steps.
type panicHandler interface {
	// Abandon is called with the value of a panic, which then continues.
	Abandon(panicked any)
}

// newMaintenance returns a loop that runs nothing before Start. The steps get ctx; when ctx ends,
// no further step begins. Failed steps are logged to logger. panics may be nil.
func newMaintenance(ctx context.Context, logger *slog.Logger, panics panicHandler) *maintenance {
	l := &maintenance{ctx: ctx, logger: logger, panics: panics}
	l.timer = time.AfterFunc(time.Hour, l.runDue)
	l.timer.Stop()
	return l
}

// Add adds a task. Its step first runs when Wake has been called and the loop was started.
func (l *maintenance) Add(c taskConfig) *Task {
	t := &Task{taskConfig: c, loop: l, token: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tasks = append(l.tasks, t)
	return t
}

// Start lets steps run, including those whose due time is over. After Stop it has no effect.
func (l *maintenance) Start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == created {
		l.state = started
		l.setTimer(time.Now())
	}
}

// Stop ends the loop: no further step begins. It waits for the steps under way. It can be called
// more than once, and before Start.
func (l *maintenance) Stop() {
	l.mu.Lock()
	l.state = stopped
	l.timer.Stop()
	l.mu.Unlock()
	l.running.Wait()
}

// runDue starts the tasks that are due. The timer calls it.
func (l *maintenance) runDue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != started {
		return
	}
	now := time.Now()
	for _, t := range l.tasks {
		if t.isDue(now) {
			t.running = true
			l.running.Go(t.run)
		}
	}
	l.setTimer(now)
}

// setTimer sets the timer to the first due time. mu is held.
func (l *maintenance) setTimer(now time.Time) {
	if l.state != started {
		return
	}
	wait, some := l.firstWait(now)
	if !some {
		l.timer.Stop()
		return
	}
	l.timer.Reset(wait)
}

// firstWait returns how long to wait for the first due time before looking at the clock again,
// because the clock can be set meanwhile. It compares waits: after a step of the wall clock, times
// with and without a monotonic reading have no common order. mu is held.
func (l *maintenance) firstWait(now time.Time) (wait time.Duration, some bool) {
	wait = lookAgain
	for _, t := range l.tasks {
		if due := t.due(); !t.running && !due.IsZero() {
			wait, some = min(wait, due.Sub(now)), true
		}
	}
	return wait, some
}

// A taskConfig describes a task.
type taskConfig struct {
	// Step does a small, bounded piece of work at the time now. It returns when to run again: a
	// time that has passed means at once, the zero time not before the next Wake. It never runs
	// twice at once, and not while Hold holds the task.
	//
	// An error is logged. With an error and a zero time, the step runs again after a pause, and not
	// earlier. With an error and another time, it runs again at that time.
	Step func(ctx context.Context, now time.Time) (next time.Time, err error)

	// Follow runs after each step that returned no error, and before the next step. Hold does not
	// exclude it, so it can wait for callers of Hold. An error counts as an error of the step. Nil
	// means that nothing follows.
	Follow func(ctx context.Context) error

	// Failed is the text that is logged with an error.
	Failed string

	// Pause is the pause after a first error; it doubles with each further one up to MaxPause.
	Pause, MaxPause time.Duration
}

// A Task is one kind of work. Its methods can be called by several goroutines at once.
type Task struct {
	taskConfig
	loop  *maintenance
	token chan struct{} // held by the step, or by the caller of Hold

	// Guarded by Loop.mu.
	at        time.Time // when to run; zero for never
	notBefore time.Time // end of the pause after an error
	failures  int       // errors in a row
	running   bool
}

// Wake brings the due time of the task forward to at. A later time than the current due time
// changes nothing. During a step it sets the due time of the next one.
func (t *Task) Wake(at time.Time) {
	l := t.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.bringForward(at) && !t.running {
		l.setTimer(time.Now())
	}
}

// Due returns when the task runs next; zero if no step is due.
func (t *Task) Due() time.Time {
	t.loop.mu.Lock()
	defer t.loop.mu.Unlock()
	return t.due()
}

// Hold keeps the step from running until release is called. It waits for the step under way and
// for other holders. The order is first come, first served. When ctx ends first, it returns the
// cause. It also works before Start and after Stop.
func (t *Task) Hold(ctx context.Context) (release func(), err error) {
	select {
	case t.token <- struct{}{}:
		return func() { <-t.token }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// bringForward reports whether the due time has changed. Loop.mu is held.
func (t *Task) bringForward(at time.Time) bool {
	if at.IsZero() || !t.at.IsZero() && !at.Before(t.at) {
		return false
	}
	t.at = at
	return true
}

// due returns the due time, or the end of the pause after an error if that is later. Loop.mu is
// held.
func (t *Task) due() time.Time {
	if !t.at.IsZero() && t.at.Before(t.notBefore) {
		return t.notBefore
	}
	return t.at
}

func (t *Task) isDue(now time.Time) bool {
	due := t.due()
	return !t.running && !due.IsZero() && !due.After(now)
}

// run runs steps until none is due.
func (t *Task) run() {
	for t.runOnce() {
	}
}

// runOnce runs one step and reports whether another one is due.
func (t *Task) runOnce() (again bool) {
	release, err := t.Hold(t.loop.ctx)
	if err != nil { // the loop ends
		return t.ended(time.Time{}, nil)
	}
	return t.ended(t.work(release))
}

// work runs the step and the work that follows it. A panic continues.
func (t *Task) work(release func()) (next time.Time, err error) {
	defer func() {
		if p := recover(); p != nil {
			if t.loop.panics != nil {
				t.loop.panics.Abandon(p)
			}
			panic(p)
		}
	}()
	if next, err = t.step(release); err != nil || t.Follow == nil {
		return next, err
	}
	if err = t.Follow(t.loop.ctx); err != nil {
		return time.Time{}, err
	}
	return next, nil
}

func (t *Task) step(release func()) (next time.Time, err error) {
	defer release()
	if !t.begin() {
		return time.Time{}, nil
	}
	return t.Step(t.loop.ctx, time.Now())
}

// begin clears the due time: a Wake from now on is for the step after this one. It returns false
// if the loop has ended.
func (t *Task) begin() bool {
	t.loop.mu.Lock()
	defer t.loop.mu.Unlock()
	t.at = time.Time{}
	return t.loop.state == started && t.loop.ctx.Err() == nil
}

// ended sets the due time after a step, and reports whether the task is due at once.
func (t *Task) ended(next time.Time, err error) (again bool) {
	l := t.loop
	var pause time.Duration
	l.mu.Lock()
	defer func() {
		l.mu.Unlock()
		if err != nil && l.ctx.Err() == nil {
			l.logger.Error(t.Failed, "error", err, "retry_in", pause)
		}
	}()
	now := time.Now()
	t.notBefore = time.Time{}
	switch {
	case err == nil:
		t.failures = 0
	case next.IsZero():
		pause = t.pause()
		t.failures++
		next, t.notBefore = now.Add(pause), now.Add(pause)
	default:
		pause = max(0, next.Sub(now))
	}
	t.bringForward(next)
	t.running = false
	if l.state == started && l.ctx.Err() == nil && t.isDue(now) {
		t.running = true
		return true
	}
	l.setTimer(now)
	return false
}

// pause returns the pause after the next error.
func (t *Task) pause() time.Duration {
	pause := t.Pause
	for range t.failures {
		if pause >= t.MaxPause/2 {
			return t.MaxPause
		}
		pause *= 2
	}
	return pause
}
