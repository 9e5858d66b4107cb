package engine

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/model"
)

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
	task *task

	mu       sync.Mutex
	work     []time.Time // when each piece of work is due
	slow     []time.Duration
	failing  int
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
	w.mu.Unlock()
	if took > 0 {
		<-time.After(took)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if fails {
		w.retry = time.Now().Add(modelPause)
		return time.Time{}, errors.New("planned")
	}
	slices.SortFunc(w.work, time.Time.Compare)
	for n := 0; n < workBatch && len(w.work) > 0 && !w.work[0].After(now); n++ {
		if late := now.Sub(w.work[0]); late > w.delays {
			w.t.Errorf("work is done %v late, and steps, holders and pauses took %v", late, w.delays)
		}
		w.work = w.work[1:]
		w.done++
	}
	if len(w.work) > 0 {
		next = w.work[0]
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
		if len(w.work) > 0 {
			t.Errorf("task %d has %d pieces of work left, after %v without an event", i, len(w.work), longest)
		}
		if most := w.wakes + w.failures + w.done; w.steps > most {
			t.Errorf("task %d took %d steps for %d wakes, %d failures and %d pieces of work", i, w.steps, w.wakes, w.failures, w.done)
		}
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
		if held > 0 && !running && w.task.Due().IsZero() {
			t.Errorf("task %d has %d pieces of work, and neither a step under way nor a due time", i, held)
		}
	}
}
