package maintain

import (
	"context"
	"time"
)

// A TaskConfig describes a task.
type TaskConfig struct {
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
	TaskConfig
	loop  *Loop
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
