package overview

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/status"
)

const (
	// topLength is the length of the lists of an overview.
	topLength = 10

	// behindAfter is the wait for a delivery from which on a group is behind.
	behindAfter = time.Minute
)

// A Filler keeps the lists of the last survey. Goroutines may share it. The zero value is ready for
// use.
type Filler struct{ last atomic.Pointer[lists] }

// lists are the lists of a survey.
type lists struct {
	of    *serving.Survey
	top   status.Top
	wrong status.Wrong
}

// Fill sets the parts of an overview that come from a survey. The lists of one survey are selected
// once; the caller must not change them.
func (f *Filler) Fill(o *status.Overview, s *serving.Survey) {
	o.AsOf, o.Clock, o.Storage, o.Totals, o.Counters = s.At, s.Clock, s.Storage, s.Totals, s.Counters
	l := f.last.Load()
	if l == nil || l.of != s {
		l = &lists{s, topOf(s), wrongOf(s)}
		f.last.Store(l)
	}
	o.Top, o.Wrong = l.top, l.wrong
}

func topOf(s *serving.Survey) status.Top {
	return status.Top{
		Topics: map[string][]status.TopicSummary{
			"backlog": Highest(s.Topics, topLength, func(t *status.TopicSummary) int64 { return t.Backlog.Messages }),
			"age":     Highest(s.Topics, topLength, func(t *status.TopicSummary) int64 { return t.OldestMS }),
			"in_rate": Highest(s.Topics, topLength, func(t *status.TopicSummary) float64 { return t.InRate }),
		},
		Groups: map[string][]status.GroupSummary{
			"backlog":       Highest(s.Groups, topLength, func(g *status.GroupSummary) int64 { return g.Backlog.Messages }),
			"age":           Highest(s.Groups, topLength, func(g *status.GroupSummary) int64 { return g.OldestMS }),
			"waiting_retry": Highest(s.Groups, topLength, func(g *status.GroupSummary) int64 { return g.WaitingRetry }),
			"dead_letters":  Highest(s.Groups, topLength, func(g *status.GroupSummary) int64 { return g.DeadLettersStored }),
		},
	}
}

func wrongOf(s *serving.Survey) status.Wrong {
	return status.Wrong{
		Throttles:   status.Found[status.LimitState]{Count: int64(len(s.Throttles)), First: append([]status.LimitState{}, s.Throttles[:min(len(s.Throttles), topLength)]...)},
		Parked:      found(s.Groups, func(g *status.GroupSummary) int64 { return g.Parked }),
		Blocked:     found(s.Groups, func(g *status.GroupSummary) int64 { return g.BlockedGroups }),
		Held:        found(s.Groups, func(g *status.GroupSummary) time.Duration { return heldFor(g, s.At) }),
		DeadLetters: found(s.Groups, func(g *status.GroupSummary) int64 { return g.DeadLettersStored }),
		Behind:      found(s.Groups, behindFor),
	}
}

// behindFor returns how long a message of a group has waited for its first delivery, in
// milliseconds. While no consumer takes the ready messages it is the age of the oldest message. It
// returns 0 if that is not long.
func behindFor(g *status.GroupSummary) int64 {
	waited := g.UndeliveredMS
	if g.Ready > 0 && g.Waiting+g.Inflight == 0 {
		waited = max(waited, g.OldestMS)
	}
	if waited < behindAfter.Milliseconds() {
		return 0
	}
	return waited
}

// heldFor returns how long a client has held its first delivery of a group, and 0 if that is not
// long.
func heldFor(g *status.GroupSummary, now time.Time) time.Duration {
	if !g.Held.Long(now) {
		return 0
	}
	return now.Sub(g.Held.Since)
}

// found returns how many rows have a value above zero, and those with the highest.
func found[T any, V cmp.Ordered](rows []T, value func(*T) V) (f status.Found[T]) {
	var zero V
	for i := range rows {
		if value(&rows[i]) > zero {
			f.Count++
		}
	}
	f.First = Highest(rows, topLength, value)
	return f
}

// Highest returns at most n rows with the highest values above zero, the highest first. Rows with
// the same value keep their order.
func Highest[T any, V cmp.Ordered](rows []T, n int, value func(*T) V) []T {
	var zero V
	type place struct {
		row   int
		value V
	}
	var best []place
	for i := range rows {
		v := value(&rows[i])
		if v <= zero || len(best) == n && v <= best[n-1].value {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, v, func(p place, v V) int {
			if p.value >= v {
				return -1
			}
			return 1
		})
		best = slices.Insert(best[:min(len(best), n-1)], at, place{i, v})
	}
	out := make([]T, len(best))
	for i, p := range best {
		out[i] = rows[p.row]
	}
	return out
}
