package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/status"
)

// Highest returns the first rows of a stable sort.
func TestHighest(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		rows := make([][2]int, r.IntN(40)) // a value and its place
		for i := range rows {
			rows[i] = [2]int{r.IntN(8) - 2, i}
		}
		want := slices.Clone(rows)
		slices.SortStableFunc(want, func(x, y [2]int) int { return y[0] - x[0] })
		want = slices.DeleteFunc(want, func(x [2]int) bool { return x[0] <= 0 })
		n := 1 + r.IntN(12)
		if got := highest(rows, n, func(x *[2]int) int { return x[0] }); !slices.Equal(got, want[:min(n, len(want))]) {
			t.Fatalf("the highest %d of %v are %v, want %v", n, rows, got, want)
		}
	}
}

// Each list of problems has its count, and at most ten rows.
func TestFill(t *testing.T) {
	t.Parallel()
	s := &engine.Survey{At: time.Unix(1, 0)}
	for i := range int64(30) {
		held := &status.Holding{Client: "c", Messages: 1, Since: s.At.Add(-time.Duration(i) * 10 * time.Second)}
		s.Groups = append(s.Groups, status.GroupSummary{Group: string(rune('a' + i)), Parked: i % 3, UndeliveredMS: i * 5000, DeadLettersStored: i / 29, Held: held})
		s.Throttles = append(s.Throttles, status.LimitState{On: true})
	}
	var o status.Overview
	var f listFiller
	f.Fill(&o, &engine.Survey{}) // of another moment
	if o.Wrong.Parked.Count != 0 {
		t.Errorf("without groups: %+v", o.Wrong)
	}
	for range 2 {
		f.Fill(&o, s)
	}
	w := o.Wrong
	if w.Throttles.Count != 30 || len(w.Throttles.First) != 10 {
		t.Errorf("throttles %+v", w.Throttles)
	}
	if w.Parked.Count != 20 || len(w.Parked.First) != 10 || w.Parked.First[0].Parked != 2 {
		t.Errorf("parked %+v", w.Parked)
	}
	if w.Behind.Count != 18 || w.Behind.First[0].UndeliveredMS != 145_000 { // from 60 s on
		t.Errorf("behind %+v", w.Behind)
	}
	retried := status.GroupSummary{Group: "retried", Ready: 1, OldestMS: 200_000} // its message was delivered before
	if f.Fill(&o, &engine.Survey{Groups: []status.GroupSummary{retried}}); o.Wrong.Behind.Count != 1 {
		t.Errorf("without a consumer: behind %+v", o.Wrong.Behind)
	}
	blocked := status.GroupSummary{Group: "blocked", BlockedGroups: 2, Blocked: 7}
	if f.Fill(&o, &engine.Survey{Groups: []status.GroupSummary{retried, blocked}}); o.Wrong.Blocked.Count != 1 || o.Wrong.Blocked.First[0] != blocked {
		t.Errorf("blocked %+v", o.Wrong.Blocked)
	}
	waits, works := retried, retried
	waits.Waiting, works.Inflight = 1, 1
	if f.Fill(&o, &engine.Survey{Groups: []status.GroupSummary{waits, works, {OldestMS: 200_000}}}); o.Wrong.Behind.Count != 0 {
		t.Errorf("with a consumer, or without a ready message: behind %+v", o.Wrong.Behind)
	}
	if w.Held.Count != 24 || w.Held.First[0].Group != string(rune('a'+29)) { // from 60 s on
		t.Errorf("held %+v", w.Held)
	}
	if w.DeadLetters.Count != 1 || len(w.DeadLetters.First) != 1 {
		t.Errorf("dead letters %+v", w.DeadLetters)
	}
	if top := o.Top.Groups["waiting_retry"]; top == nil || len(top) != 0 {
		t.Errorf("the top of counters that are 0 is %v, want an empty list", top)
	}
}

// An fakeOverviewEngine computes surveys.
type fakeOverviewEngine func() *engine.Survey

func (e fakeOverviewEngine) Survey() *engine.Survey { return e() }

// clientCounts have the numbers of clientCounts by group.
type clientCounts map[string]int64

func (c clientCounts) CountGroups() map[string]int64 { return c }

// A survey has the number of clients of each group.
func TestSharedCountsClients(t *testing.T) {
	t.Parallel()
	s := newSharedSurvey(fakeOverviewEngine(func() *engine.Survey {
		return &engine.Survey{Groups: []status.GroupSummary{{Group: "a", Topic: "s"}, {Group: "a", Topic: "t"}, {Group: "b", Topic: "t"}}}
	}), clientCounts{"a": 2, "c": 1})
	v, err := s.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if g := v.Groups; g[0].Clients != 2 || g[1].Clients != 2 || g[2].Clients != 0 {
		t.Errorf("the groups are %+v", g)
	}
}

// All calls within a second share one survey, also the calls during its computation; without
// callers there is none.
func TestSharedOncePerSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		s := newSharedSurvey(fakeOverviewEngine(func() *engine.Survey {
			n++
			at := time.Now()
			time.Sleep(100 * time.Millisecond)
			return &engine.Survey{At: at}
		}), clientCounts{})
		for range 50 {
			go func() {
				for range 10 {
					if v, err := s.Get(t.Context()); err != nil || time.Since(v.At) > maxAge+100*time.Millisecond {
						t.Errorf("a survey of %v, %v", v, err)
					}
					time.Sleep(100 * time.Millisecond)
				}
			}()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n != 2 { // at 0 and at 1 s
			t.Errorf("%d surveys, want 2", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		go func() { _, _ = s.Get(t.Context()) }()
		synctest.Wait()
		if _, err := s.Get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that gave up got %v", err)
		}
		time.Sleep(time.Second)
	})
}

// After a panic of the engine the next caller computes the survey.
func TestSharedAfterPanic(t *testing.T) {
	t.Parallel()
	first := true
	s := newSharedSurvey(fakeOverviewEngine(func() *engine.Survey {
		if first {
			first = false
			panic("test")
		}
		return &engine.Survey{At: time.Now()}
	}), clientCounts{})
	func() {
		defer func() { _ = recover() }()
		_, _ = s.Get(t.Context())
		t.Error("the panic was swallowed")
	}()
	if v, err := s.Get(t.Context()); v == nil || err != nil {
		t.Errorf("after a panic: %v, %v", v, err)
	}
}

// After a change the next caller gets a new survey, also if one is under way that began before it.
func TestSharedExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int64
		s := newSharedSurvey(fakeOverviewEngine(func() *engine.Survey {
			seen := changes.Load()
			time.Sleep(100 * time.Millisecond)
			return &engine.Survey{At: time.Now(), Totals: status.Totals{Topics: seen}}
		}), clientCounts{})
		expect := func(when string, want int) {
			t.Helper()
			if v, err := s.Get(t.Context()); err != nil || v.Totals.Topics != int64(want) {
				t.Errorf("%s: %+v, %v; want %d topics", when, v, err, want)
			}
		}
		expect("at first", 0)
		changes.Add(1)
		expect("within a second", 0)
		s.Expire()
		expect("after a change", 1)
		s.Expire()
		go func() { _, _ = s.Get(t.Context()) }()
		time.Sleep(50 * time.Millisecond)
		changes.Add(1)
		s.Expire()
		expect("after a change during a survey", 2)
		expect("after it", 2)
	})
}
