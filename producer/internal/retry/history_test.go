package retry

import (
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// A throttled attempt counts as a throttle, unless the caller's ctx has ended.
func TestRecordCountsThrottles(t *testing.T) {
	began := time.Unix(1000, 0)
	for _, tt := range []struct {
		name      string
		err       error
		ctxEnded  bool
		throttles int
	}{
		{"throttled", throttled(0), false, 1},
		{"throttled at the end of ctx", throttled(0), true, 0},
		{"another failure", errors.New("connection reset by peer"), false, 0},
	} {
		var h History
		h.Record(tt.err, began, began.Add(time.Second), tt.ctxEnded)
		assert.That(t, h.Attempts == 1 && h.Throttles == tt.throttles && errors.Is(h.Last, tt.err),
			"%s: %+v, want one attempt and %d throttles", tt.name, h, tt.throttles)
	}
}

// The attempts of a send share the time until its deadline. Throttled attempts with a limit of
// their own, attempts without a connection and pauses count as the limits count them.
func TestShareOfTheRemainingTime(t *testing.T) {
	const left = 3 * time.Second
	began := time.Unix(1000, 0)
	together := &Bounds{Attempt: time.Minute, Floor: 100 * time.Millisecond}
	separate := &Bounds{Attempt: time.Minute, Floor: 100 * time.Millisecond, MaxThrottles: 5}
	for _, tt := range []struct {
		name   string
		bounds *Bounds
		h      History
		want   time.Duration
	}{
		{"no attempt of 3", together, History{}, time.Second},
		{"one of 3", together, History{Attempts: 1}, 1500 * time.Millisecond},
		{"one of 3, throttled", together, History{Attempts: 1, Throttles: 1}, 1500 * time.Millisecond},
		{"one of 3, with a limit of its own", separate, History{Attempts: 1, Throttles: 1}, time.Second},
		{"two of 3, one of them with a limit of its own", separate, History{Attempts: 2, Throttles: 1}, 1500 * time.Millisecond},
		{"a pause", together, History{Waited: 1, Throttles: 1}, 1500 * time.Millisecond},
		{"a pause with a limit of its own", separate, History{Waited: 1, Throttles: 1}, time.Second},
		{"an attempt without a connection", together, History{Attempts: 1, Unconnected: 1}, time.Second},
		{"the last of 3", together, History{Attempts: 2}, left - 50*time.Millisecond},
	} {
		l := &Limits{Bounds: tt.bounds, MaxAttempts: 3}
		got := tt.h.Share(l, began, began.Add(left))
		assert.That(t, got == tt.want, "%s: %v of %v, want %v", tt.name, got, left, tt.want)
	}
}

// Pauses do not count for a message that has had no attempt in the first two minutes of pauses.
func TestUntriedForTwoMinutes(t *testing.T) {
	begin := time.Unix(1000, 0)
	for _, tt := range []struct {
		name  string
		h     History
		after time.Duration // of the pause in question, since the first one
		want  bool
	}{
		{"the first pause", History{}, 0, true},
		{"just before two minutes", History{}, 2*time.Minute - 1, true},
		{"after two minutes", History{}, 2 * time.Minute, false},
		{"after an attempt", History{Attempts: 1}, 0, false},
	} {
		assert.That(t, tt.h.Attempts != 0 || tt.h.Untried(begin), "%s: the first pause counts", tt.name)
		got := tt.h.Untried(begin.Add(tt.after))
		assert.That(t, got == tt.want, "%s: %t, want %t", tt.name, got, tt.want)
	}
}
