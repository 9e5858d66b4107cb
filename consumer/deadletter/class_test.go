package deadletter

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// Each class of errors has a step after a failed send. A new class fails the test until it is
// decided.
func TestEveryClass(t *testing.T) {
	decided := map[tidegate.Class]struct {
		err         error
		first, last afterSend // after the first failed send, and after the last one
	}{
		tidegate.ClassOK:        {nil, letterFailed, letterFailed}, // no failed send
		tidegate.ClassThrottled: {&tidegate.Error{Code: tidegate.CodeTooManyRequests}, sendAgain, sendAgain},
		tidegate.ClassTransient: {tidegate.ErrUnavailable, sendAgain, endRun},
		tidegate.ClassPermanent: {tidegate.ErrInvalid, letterFailed, letterFailed},
		tidegate.ClassCancelled: {context.Canceled, endRun, endRun},
	}
	for c := tidegate.ClassOK; c.String() != "unknown"; c++ {
		d, ok := decided[c]
		if !ok || tidegate.Classify(d.err) != c {
			t.Errorf("%v is not decided", c)
			continue
		}
		if first, last := stepAfter(d.err, 0), stepAfter(d.err, transientAttempts-1); first != d.first || last != d.last {
			t.Errorf("%v: %v, later %v; want %v, %v", c, first, last, d.first, d.last)
		}
	}
}

// The reason of a class is that of its latest letter, for any order of the letters in the lists of
// queues. It keeps 100 reasons, and counts only the letters of these.
func TestReasonsOfAClass(t *testing.T) {
	c := Class{Reasons: map[string]int{}}
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	letter := func(reason int, at time.Duration) {
		c.add(&Letter{Origin: tidegate.DeadLetter{Reason: fmt.Sprint("no order ", reason)}, StoredAt: start.Add(at)})
	}
	for i := range 150 {
		letter(i, time.Duration(i)*time.Second)
	}
	letter(7, 0)
	want := "no order 149"
	assert.That(t, c.Reason == want, "the reason is %q, want %q", c.Reason, want)
	assert.That(t, len(c.Reasons) == 100 && c.Reasons["no order 7"] == 2,
		"it has %d reasons, one of them %d times; want 100 and 2", len(c.Reasons), c.Reasons["no order 7"])
}

// A letter that was sent and whose lease has ended is unresolved: the next run removes it.
func TestEndedLeaseIsUnresolved(t *testing.T) {
	for _, c := range []struct {
		err        error
		ends       bool
		unresolved int
	}{
		{nil, false, 0},
		{tidegate.ErrInvalidHandle, false, 1},
		{tidegate.ErrUnavailable, true, 0},
	} {
		r := &runner{src: unremovable{err: c.err}}
		if err := r.remove(t.Context(), &Letter{}); (err != nil) != c.ends || r.report.Unresolved != c.unresolved {
			t.Errorf("after %v: %v, %d unresolved", c.err, err, r.report.Unresolved)
		}
	}
}

// An unremovable source returns an error for each removal.
type unremovable struct {
	Source
	err error
}

func (u unremovable) remove(context.Context, *Letter, string) error { return u.err }
