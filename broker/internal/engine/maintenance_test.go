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
)

// startMaintenance returns a loop that was started and stops with the test.
func startMaintenance(t *testing.T) *maintenance {
	t.Helper()
	l := newMaintenance(t.Context(), slog.New(slog.DiscardHandler), nil)
	l.Start()
	t.Cleanup(l.Stop)
	return l
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
	if !slices.Equal(r.at, at) {
		t.Errorf("it ran at %v, want %v", r.at, at)
	}
}

func TestLoopLooksAtTheClockAgain(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	for ahead, want := range map[time.Duration]time.Duration{
		-time.Hour: -time.Hour, 0: 0, 1: 1, time.Minute: time.Minute, time.Minute + 1: time.Minute, 24 * time.Hour: time.Minute,
	} {
		l := newMaintenance(t.Context(), slog.New(slog.DiscardHandler), nil)
		l.Add(taskConfig{}).Wake(now.Add(ahead))
		if got, _ := l.firstWait(now); got != want {
			t.Errorf("%v ahead: the clock is looked at after %v, want %v", ahead, got, want)
		}
	}
}

func TestStepRunsAtTheEarliestTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, r := startMaintenance(t), recordRuns()
		task := l.Add(taskConfig{Step: r.step})
		at := r.from.Add(3*time.Hour + time.Second).Round(0)
		task.Wake(at.Add(time.Hour))
		task.Wake(at)
		task.Wake(at.Add(time.Minute))
		if !task.Due().Equal(at) {
			t.Errorf("it is due at %v, want %v", task.Due(), at)
		}
		elapse(5 * time.Hour)
		r.want(t, 3*time.Hour+time.Second)
		if !task.Due().IsZero() {
			t.Errorf("it is due at %v, want never", task.Due())
		}
	})
}

// If the wall clock is set ahead, a step is at most a minute late.
func TestClockSetAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, r := startMaintenance(t), recordRuns()
		task := l.Add(taskConfig{Step: r.step})
		task.Wake(time.Now().Add(3 * time.Hour).Round(0))
		elapse(10 * time.Minute)
		l.mu.Lock()
		task.at = task.at.Add(-3 * time.Hour) // as if the clock were set ahead by that
		l.mu.Unlock()
		elapse(time.Minute)
		if r.runs() != 1 || r.at[0] > 11*time.Minute {
			t.Errorf("it ran at %v, want within a minute after 10m", r.at)
		}
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
		if wait, some := l.firstWait(after); wait != 10*time.Second || !some {
			t.Errorf("clock set by %v: the timer waits %v, %v; a task is due in 10s", step, wait, some)
		}
	}
}

// stepped returns t as the clock reads it after its wall clock was set by d: a time whose monotonic
// reading is the same. Package time has no function for it.
func stepped(t time.Time, d time.Duration) time.Time {
	wall := (*uint64)(unsafe.Pointer(&t)) // its first field; with a monotonic reading, bits 30 to 62 are seconds
	*wall += uint64(d/time.Second) << 30
	return t
}

func TestNextStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, r := startMaintenance(t), recordRuns()
		pauses := []time.Duration{0, 0, time.Second, -time.Hour, time.Minute}
		task := l.Add(taskConfig{Step: func(ctx context.Context, now time.Time) (time.Time, error) {
			_, _ = r.step(ctx, now)
			if r.runs() > len(pauses) {
				return time.Time{}, nil
			}
			return now.Add(pauses[r.runs()-1]), nil
		}})
		task.Wake(r.from)
		elapse(time.Hour)
		r.want(t, 0, 0, 0, time.Second, time.Second, time.Second+time.Minute)
	})
}

// A slow step delays the steps of no other task.
func TestSlowStepDelaysNoOtherTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, r := startMaintenance(t), recordRuns()
		slow := l.Add(taskConfig{Step: func(context.Context, time.Time) (time.Time, error) {
			time.Sleep(time.Hour)
			return time.Now(), nil
		}})
		urgent := l.Add(taskConfig{Step: func(ctx context.Context, now time.Time) (time.Time, error) {
			_, _ = r.step(ctx, now)
			return now.Add(time.Minute), nil
		}})
		slow.Wake(r.from)
		urgent.Wake(r.from)
		elapse(2*time.Minute + 30*time.Second)
		r.want(t, 0, time.Minute, 2*time.Minute)
	})
}

// A Wake during a step is not lost, and no step runs beside another one of its task.
func TestWakeDuringAStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, r := startMaintenance(t), recordRuns()
		var under atomic.Int32
		task := l.Add(taskConfig{Step: func(ctx context.Context, now time.Time) (time.Time, error) {
			if under.Add(1) > 1 {
				t.Error("two steps of a task run at once")
			}
			defer under.Add(-1)
			_, _ = r.step(ctx, now)
			time.Sleep(10 * time.Second)
			return time.Time{}, nil
		}})
		task.Wake(r.from)
		elapse(time.Second)
		task.Wake(r.from.Add(5 * time.Second)) // over when the step ends
		elapse(12 * time.Second)
		task.Wake(r.from.Add(time.Minute))
		elapse(2 * time.Minute)
		r.want(t, 0, 10*time.Second, time.Minute)
	})
}

func TestPauseAfterErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		if n := strings.Count(log.String(), "\n"); n != r.runs() {
			t.Errorf("%d lines are logged for %d errors", n, r.runs())
		}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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

func TestMaintenanceHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, r := startMaintenance(t), recordRuns()
		task := l.Add(taskConfig{Step: func(ctx context.Context, now time.Time) (time.Time, error) {
			_, _ = r.step(ctx, now)
			if r.runs() < 3 {
				time.Sleep(time.Minute)
				return now, nil
			}
			return time.Time{}, nil
		}})
		release, err := task.Hold(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		task.Wake(r.from)
		elapse(time.Second)
		r.want(t)
		release()
		synctest.Wait()
		r.want(t, time.Second)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("too long"))
		defer cancel()
		if _, err := task.Hold(ctx); err == nil || err.Error() != "too long" {
			t.Errorf("Hold returned %v", err)
		}
		if release, err = task.Hold(t.Context()); err != nil { // between two steps that follow at once
			t.Fatal(err)
		}
		elapse(time.Minute)
		r.want(t, time.Second)
		release()
		elapse(time.Hour)
		r.want(t, time.Second, 2*time.Minute+time.Second, 3*time.Minute+time.Second)
	})
}

// The work after a step may wait for a holder, and the next step waits for both.
func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, r := startMaintenance(t), recordRuns()
		var task *task
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		if took := time.Since(r.from); took != time.Minute+time.Second {
			t.Errorf("it stopped after %v, want 1m1s", took)
		}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l, r := newMaintenance(ctx, slog.New(slog.DiscardHandler), nil), recordRuns()
		l.Start()
		task := l.Add(taskConfig{Step: r.step})
		release, err := task.Hold(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		task.Wake(r.from)
		elapse(time.Second)
		cancel()
		l.Stop()
		release()
		synctest.Wait()
		r.want(t)
	})
}

// Tasks with steps of random length are woken and held at random: a step follows each Wake, not
// before its time, and none runs beside another step of its task or a holder.
func TestLoopAtRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			l := startMaintenance(t)
			type model struct {
				task    *task
				busy    atomic.Int32
				pending []time.Time // Wakes that no step followed yet
			}
			tasks := make([]*model, 3)
			for i := range tasks {
				m := &model{}
				lengths := rand.New(rand.NewPCG(seed, uint64(i)))
				m.task = l.Add(taskConfig{Pause: time.Second, MaxPause: 4 * time.Second, Step: func(_ context.Context, now time.Time) (time.Time, error) {
					if m.busy.Add(1) != 1 {
						t.Error("a step runs beside another one, or a holder")
					}
					defer m.busy.Add(-1)
					l.mu.Lock()
					m.pending = slices.DeleteFunc(m.pending, func(at time.Time) bool { return !at.After(now) })
					var next time.Time // of the work known now; only Wake announces the rest
					if len(m.pending) > 0 {
						next = slices.MinFunc(m.pending, time.Time.Compare)
					}
					l.mu.Unlock()
					time.Sleep(time.Duration(lengths.IntN(5)) * time.Second)
					if lengths.IntN(4) == 0 {
						return time.Time{}, errors.New("no luck")
					}
					return next, nil
				}})
				tasks[i] = m
			}
			for range 200 {
				m := tasks[rnd.IntN(len(tasks))]
				if rnd.IntN(4) == 0 {
					release, err := m.task.Hold(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if m.busy.Add(1) != 1 {
						t.Error("a holder beside a step")
					}
					time.Sleep(time.Duration(rnd.IntN(3)) * time.Second)
					m.busy.Add(-1)
					release()
					continue
				}
				at := time.Now().Add(time.Duration(rnd.IntN(20)-5) * time.Second)
				l.mu.Lock()
				m.pending = append(m.pending, at)
				l.mu.Unlock()
				m.task.Wake(at)
				time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond)
			}
			elapse(time.Hour)
			for i, m := range tasks {
				if len(m.pending) > 0 || !m.task.Due().IsZero() {
					t.Errorf("seed %d: task %d was woken for %v and did not run; it is due at %v", seed, i, m.pending, m.task.Due())
				}
			}
		})
	}
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
				if p := recover(); p != "a bug" || !slices.Equal(reported, panics{"a bug"}) {
					t.Errorf("panic %v, reported %v", p, reported)
				}
			}()
			l.Add(c).runOnce() // not in a goroutine of the loop, which would end the process
		})
	}
}
