package engine

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

// startMaintenance returns a loop that was started and stops with the test.
func startMaintenance(t *testing.T) *maintenance {
	t.Helper()
	l := newMaintenance(t.Context(), slog.New(slog.DiscardHandler), nil)
	l.Start()
	t.Cleanup(l.Stop)
	return l
}

// bubble runs a test in a bubble, beside others.
func bubble(t *testing.T, f func(*testing.T)) {
	t.Parallel()
	synctest.Test(t, f)
}

// recorder is a step that notes when it ran.
type recorder struct {
	mu   sync.Mutex
	at   []time.Duration // since from
	from time.Time
}

func recordRuns() *recorder { return &recorder{from: time.Now()} }

func (r *recorder) step(_ context.Context, now time.Time) (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = append(r.at, now.Sub(r.from))
	return time.Time{}, nil
}

// runs returns how often it ran.
func (r *recorder) runs() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.at)
}

// reset forgets when it ran.
func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at, r.from = nil, time.Now()
}

func (r *recorder) want(t *testing.T, at ...time.Duration) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	assert.Slices(t, "it ran at", r.at, at)
}

func TestLoopLooksAtTheClockAgain(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	for ahead, want := range map[time.Duration]time.Duration{
		-time.Hour: -time.Hour, 0: 0, 1: 1, time.Minute: time.Minute, time.Minute + 1: time.Minute, 24 * time.Hour: time.Minute,
	} {
		l := newMaintenance(t.Context(), slog.New(slog.DiscardHandler), nil)
		l.Add(taskConfig{}).Wake(now.Add(ahead))
		got, _ := l.firstWait(now)
		assert.That(t, got == want, "%v ahead: the clock is looked at after %v, want %v", ahead, got, want)
	}
}

// If the wall clock is set ahead, a step is at most a minute late.
func TestClockSetAhead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, r := startMaintenance(t), recordRuns()
		task := l.Add(taskConfig{Step: r.step})
		task.Wake(time.Now().Add(3 * time.Hour).Round(0))
		elapse(10 * time.Minute)
		l.mu.Lock()
		task.at = task.at.Add(-3 * time.Hour) // as if the clock were set ahead by that
		l.mu.Unlock()
		elapse(time.Minute)
		assert.That(t, r.runs() == 1 && r.at[0] <= 11*time.Minute, "it ran at %v, want within a minute after 10m", r.at)
	})
}

// After a step of the wall clock, due times from before it with a monotonic reading and due times
// of the wall clock still run in the order of their waits.
func TestOrderAfterAStepOfTheClock(t *testing.T) {
	now := time.Now()
	for _, step := range []time.Duration{-time.Hour, -time.Minute, 0, time.Minute, 24 * time.Hour} {
		after := stepped(now, step)
		l := newMaintenance(t.Context(), slog.New(slog.DiscardHandler), nil)
		l.Add(taskConfig{}).Wake(after.Round(0).Add(30 * time.Second)) // a stored time
		l.Add(taskConfig{}).Wake(now.Add(10 * time.Second))
		wait, some := l.firstWait(after)
		assert.That(t, wait == 10*time.Second && some, "clock set by %v: the timer waits %v, %v; a task is due in 10s", step, wait, some)
	}
}

// stepped returns t as the clock reads it after its wall clock was set by d: a time whose monotonic
// reading is the same. Package time has no function for it.
func stepped(t time.Time, d time.Duration) time.Time {
	wall := (*uint64)(unsafe.Pointer(&t)) // its first field; with a monotonic reading, bits 30 to 62 are seconds
	*wall += uint64(d/time.Second) << 30
	return t
}

func TestPauseAfterErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log bytes.Buffer
		l := newMaintenance(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), nil)
		l.Start()
		defer l.Stop()
		var fails atomic.Bool
		fails.Store(true)
		r := recordRuns()
		task := l.Add(taskConfig{
			Failed: "it was not done", Pause: time.Second, MaxPause: 5 * time.Second,
			Step: func(ctx context.Context, now time.Time) (time.Time, error) {
				_, _ = r.step(ctx, now)
				if fails.Load() {
					return time.Time{}, errors.New("no luck")
				}
				return time.Time{}, nil
			},
		})
		task.Wake(r.from)
		elapse(500 * time.Millisecond)
		task.Wake(time.Now()) // a step that failed is not brought forward
		elapse(12 * time.Second)
		r.want(t, 0, time.Second, 3*time.Second, 7*time.Second, 12*time.Second)
		for _, want := range []string{"it was not done", "no luck", "retry_in=1s", "retry_in=2s", "retry_in=4s", "retry_in=5s"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q: %s", want, log.String())
			}
		}
		assert.Equal(t, "lines are logged for errors", strings.Count(log.String(), "\n"), r.runs())
		fails.Store(false)
		elapse(5 * time.Second) // it succeeds, so the next error is a first one
		fails.Store(true)
		r.reset()
		task.Wake(r.from)
		elapse(time.Second)
		r.want(t, 0, time.Second)
	})
}

// A step that fails and returns a time runs again then.
func TestErrorWithATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, r := startMaintenance(t), recordRuns()
		task := l.Add(taskConfig{Pause: time.Second, MaxPause: time.Second, Step: func(ctx context.Context, now time.Time) (time.Time, error) {
			_, _ = r.step(ctx, now)
			return now.Add(time.Hour), errors.New("no luck")
		}})
		task.Wake(r.from)
		elapse(time.Minute)
		task.Wake(r.from.Add(2 * time.Minute))
		elapse(90 * time.Minute)
		r.want(t, 0, 2*time.Minute, time.Hour+2*time.Minute)
	})
}

// The work after a step may wait for a holder, and the next step waits for both.
func TestFollow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, r := startMaintenance(t), recordRuns()
		var task *Task
		fails := true
		task = l.Add(taskConfig{
			Pause: time.Second, MaxPause: time.Second,
			Step: func(ctx context.Context, now time.Time) (time.Time, error) {
				_, _ = r.step(ctx, now)
				if r.runs() == 3 {
					return time.Time{}, nil
				}
				return now, nil
			},
			Follow: func(ctx context.Context) error {
				release, err := task.Hold(ctx)
				if err != nil {
					return err
				}
				time.Sleep(time.Minute)
				release()
				if fails {
					fails = false
					return errors.New("no luck")
				}
				return nil
			},
		})
		task.Wake(r.from)
		elapse(time.Hour)
		r.want(t, 0, time.Minute+time.Second, 2*time.Minute+time.Second)
	})
}

func TestStartAndStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, r := newMaintenance(t.Context(), slog.New(slog.DiscardHandler), nil), recordRuns()
		task := l.Add(taskConfig{Step: func(ctx context.Context, now time.Time) (time.Time, error) {
			_, _ = r.step(ctx, now)
			time.Sleep(time.Minute)
			return time.Now(), nil
		}})
		task.Wake(r.from)
		elapse(time.Second)
		r.want(t)
		l.Start()
		elapse(time.Second)
		l.Stop() // within the step
		assert.Equal(t, "it stopped after", time.Since(r.from), time.Minute+time.Second)
		task.Wake(time.Now())
		l.Start()
		elapse(time.Hour)
		l.Stop()
		r.want(t, time.Second)

		never := newMaintenance(t.Context(), slog.New(slog.DiscardHandler), nil)
		never.Stop()
		never.Start()
		never.Add(taskConfig{Step: r.step}).Wake(time.Now())
		elapse(time.Hour)
		r.want(t, time.Second)
	})
}

// Stop waits neither for a holder of a task that is due, nor does the end of the context.
func TestStopWhileATaskIsHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l, r := newMaintenance(ctx, slog.New(slog.DiscardHandler), nil), recordRuns()
		l.Start()
		task := l.Add(taskConfig{Step: r.step})
		release := assert.Value(task.Hold(t.Context()))(t)
		task.Wake(r.from)
		elapse(time.Second)
		cancel()
		l.Stop()
		release()
		synctest.Wait()
		r.want(t)
	})
}

// panics has the values of panics.
type panics []any

func (p *panics) Abandon(panicked any) { *p = append(*p, panicked) }

// A panic of a step, or of the work after it, is reported and continues.
func TestPanic(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]taskConfig{
		"step": {Step: func(context.Context, time.Time) (time.Time, error) { panic("a bug") }},
		"follow": {
			Step:   func(context.Context, time.Time) (time.Time, error) { return time.Time{}, nil },
			Follow: func(context.Context) error { panic("a bug") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var reported panics
			l := newMaintenance(t.Context(), slog.New(slog.DiscardHandler), &reported)
			l.Start()
			defer l.Stop()
			defer func() {
				p := recover()
				assert.That(t, p == "a bug" && slices.Equal(reported, panics{"a bug"}), "panic %v, reported %v", p, reported)
			}()
			l.Add(c).runOnce() // not in a goroutine of the loop, which would end the process
		})
	}
}

// Random tasks with work of random due times, steps that take time and fail, and holders. Work is
// done once it is due, later only by the time of steps, holders and pauses. Each step follows a
// Wake, a due time that a step returned, or a failure.
func TestMaintenanceModel(t *testing.T) {
	t.Parallel()
	model.Run(t, 10_000, func(t *testing.T, r *rand.Rand) {
		synctest.Test(t, func(t *testing.T) { runModel(t, r) })
	})
}

// A worker is a task with work.
type worker struct {
	t    *testing.T
	task *Task

	mu       sync.Mutex
	work     []time.Time // when each piece of work is due
	slow     []time.Duration
	failing  int
	under    bool // a step is under way
	steps    int
	failures int
	wakes    int
	done     int
	delays   time.Duration // of steps, holders and pauses so far
	retry    time.Time     // no step begins before; the end of the pause after a failure
}

const (
	workBatch  = 2
	modelPause = time.Second
	mostPause  = 8 * time.Second
)

func (w *worker) step(_ context.Context, now time.Time) (next time.Time, err error) {
	w.mu.Lock()
	w.steps++
	assert.That(w.t, !w.under, "two steps of a task run at once")
	w.under = true
	if now.Before(w.retry) {
		w.t.Errorf("a step begins %v before the end of the pause", w.retry.Sub(now))
	}
	var took time.Duration
	if len(w.slow) > 0 {
		took, w.slow = w.slow[0], w.slow[1:]
	}
	fails := w.failing > 0
	if fails {
		w.failing--
		w.failures++
		w.delays += mostPause
	}
	w.delays += took
	slices.SortFunc(w.work, time.Time.Compare)
	for n := 0; !fails && n < workBatch && len(w.work) > 0 && !w.work[0].After(now); n++ {
		if late := now.Sub(w.work[0]); late > w.delays {
			w.t.Errorf("work is done %v late, and steps, holders and pauses took %v", late, w.delays)
		}
		w.work = w.work[1:]
		w.done++
	}
	if len(w.work) > 0 {
		next = w.work[0]
	}
	w.mu.Unlock()
	if took > 0 {
		<-time.After(took) // for work that is added meanwhile there is its Wake alone
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.under = false
	if fails {
		w.retry = time.Now().Add(modelPause)
		return time.Time{}, errors.New("planned")
	}
	return next, nil
}

// add adds work, and wakes the task for it.
func (w *worker) add(due time.Time) {
	w.mu.Lock()
	if now := time.Now(); due.Before(now) {
		w.work = append(w.work, now)
	} else {
		w.work = append(w.work, due)
	}
	w.wakes++
	w.mu.Unlock()
	w.task.Wake(due)
}

func runModel(t *testing.T, rnd *rand.Rand) {
	l := newMaintenance(t.Context(), slog.New(slog.DiscardHandler), nil)
	defer l.Stop()
	var workers []*worker
	for range 1 + rnd.IntN(3) {
		w := &worker{t: t}
		w.task = l.Add(taskConfig{Step: w.step, Pause: modelPause, MaxPause: mostPause})
		workers = append(workers, w)
	}
	if rnd.IntN(2) == 0 {
		l.Start()
	}
	var holders sync.WaitGroup
	for range 10 + rnd.IntN(30) {
		w := workers[rnd.IntN(len(workers))]
		some := time.Duration(rnd.Int64N(int64(20 * time.Second)))
		switch rnd.IntN(6) {
		case 0, 1:
			w.add(time.Now().Add(some - 5*time.Second))
		case 2:
			w.mu.Lock()
			w.slow = append(w.slow, some)
			w.mu.Unlock()
		case 3:
			w.mu.Lock()
			w.failing += rnd.IntN(3)
			w.mu.Unlock()
		case 4:
			w.mu.Lock()
			w.delays += some
			w.mu.Unlock()
			holders.Go(func() {
				release, err := w.task.Hold(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				<-time.After(some)
				release()
			})
		case 5:
			l.mu.Lock()
			started := l.state == started
			l.mu.Unlock()
			if !started { // work that is due before Start waits for it
				for _, w := range workers {
					w.mu.Lock()
					w.delays += some + 5*time.Second
					w.mu.Unlock()
				}
			}
			<-time.After(some)
		}
		checkHeldWork(t, l, workers)
	}
	l.Start()
	holders.Wait()
	longest := time.Minute
	for _, w := range workers {
		w.mu.Lock()
		longest += w.delays + time.Duration(w.failing)*mostPause
		for _, slow := range w.slow {
			longest += slow
		}
		w.mu.Unlock()
	}
	elapse(longest)
	for i, w := range workers {
		w.mu.Lock()
		assert.That(t, len(w.work) == 0, "task %d has %d pieces of work left, after %v without an event", i, len(w.work), longest)
		assert.That(t, w.steps <= (w.wakes+w.failures+w.done),
			"task %d took %d steps for %d wakes, %d failures and %d pieces of work", i, w.steps, w.wakes, w.failures, w.done)
		w.mu.Unlock()
	}
}

// checkHeldWork checks that a task with work has a step under way or a due time.
func checkHeldWork(t *testing.T, l *maintenance, workers []*worker) {
	t.Helper()
	synctest.Wait()
	for i, w := range workers {
		l.mu.Lock()
		running := w.task.running
		l.mu.Unlock()
		w.mu.Lock()
		held := len(w.work)
		w.mu.Unlock()
		assert.That(t, held <= 0 || running || !w.task.Due().IsZero(),
			"task %d has %d pieces of work, and neither a step under way nor a due time", i, held)
	}
}
