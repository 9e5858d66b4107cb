package maintain

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// lookAgain is the longest wait of a loop before it looks at the clock again.
const lookAgain = time.Minute

// A Loop runs the steps of its tasks when they are due. All methods can be called by several
// goroutines at once.
//
// Liveness: a task that waits is woken by Wake, or by the timer, which is set to the first due time
// whenever a due time changes or a step ends. A task has a step only after a Wake, at the due time
// that its last step returned, or after the pause of a failure.
//
// A due time without a monotonic reading, such as a stored time, is a time of the wall clock. When
// the wall clock is set forward, or the machine was suspended, a step is at most a minute late.
type Loop struct {
	ctx    context.Context //nolint:containedctx // the life of the loop, not of a request
	logger *slog.Logger
	panics Panics // nil: nothing more than the panic

	timer   *time.Timer
	running sync.WaitGroup

	mu    sync.Mutex
	tasks []*Task // guarded by mu
	state state   // guarded by mu
}

type state int

const (
	created state = iota
	started
	stopped
)

// Panics gets the panics of steps.
type Panics interface {
	// Abandon is called with the value of a panic, which then continues.
	Abandon(panicked any)
}

// New returns a loop that runs nothing before Start. The steps get ctx; when ctx ends, no further
// step begins. Failed steps are logged to logger. panics may be nil.
func New(ctx context.Context, logger *slog.Logger, panics Panics) *Loop {
	l := &Loop{ctx: ctx, logger: logger, panics: panics}
	l.timer = time.AfterFunc(time.Hour, l.runDue)
	l.timer.Stop()
	return l
}

// Add adds a task. Its step first runs when Wake has been called and the loop was started.
func (l *Loop) Add(c TaskConfig) *Task {
	t := &Task{TaskConfig: c, loop: l, token: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tasks = append(l.tasks, t)
	return t
}

// Start lets steps run, including those whose due time is over. After Stop it has no effect.
func (l *Loop) Start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == created {
		l.state = started
		l.setTimer(time.Now())
	}
}

// Stop ends the loop: no further step begins. It waits for the steps under way. It can be called
// more than once, and before Start.
func (l *Loop) Stop() {
	l.mu.Lock()
	l.state = stopped
	l.timer.Stop()
	l.mu.Unlock()
	l.running.Wait()
}

// runDue starts the tasks that are due. The timer calls it.
func (l *Loop) runDue() {
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
func (l *Loop) setTimer(now time.Time) {
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
func (l *Loop) firstWait(now time.Time) (wait time.Duration, some bool) {
	wait = lookAgain
	for _, t := range l.tasks {
		if due := t.due(); !t.running && !due.IsZero() {
			wait, some = min(wait, due.Sub(now)), true
		}
	}
	return wait, some
}
