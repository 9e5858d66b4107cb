package consume

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A due time that is read from the disk is never further ahead than the duration for which it was
// set, and a delivery never begins in the future. Times in the past stay what they are.
func TestRestoredTimes(t *testing.T) {
	t.Parallel()
	set := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		state      State
		since, due time.Duration // after set
		span       time.Duration // 0: a record of an earlier version
		now        time.Duration // after set
		wantDue    time.Duration // after now
		wantSince  time.Duration // after now
	}{
		"the clock runs on":                  {Inflight, 0, 10 * time.Second, 10 * time.Second, 4 * time.Second, 6 * time.Second, -4 * time.Second},
		"an hour behind":                     {Inflight, 0, 10 * time.Second, 10 * time.Second, -time.Hour, 10 * time.Second, 0},
		"a retry, an hour behind":            {WaitingRetry, -time.Minute, 5 * time.Second, 5 * time.Second, -time.Hour, 5 * time.Second, 0},
		"a minute behind, a longer retry":    {WaitingRetry, 0, time.Hour, time.Hour, -time.Minute, time.Hour, 0},
		"in 1970":                            {Inflight, 0, 10 * time.Second, 10 * time.Second, -set.Sub(time.Unix(0, 0)), 10 * time.Second, 0},
		"four days ahead":                    {Inflight, 0, 10 * time.Second, 10 * time.Second, 96 * time.Hour, 10*time.Second - 96*time.Hour, -96 * time.Hour},
		"an extension":                       {Inflight, -time.Hour, time.Minute, time.Minute, -30 * time.Minute, time.Minute, -30 * time.Minute},
		"an old record":                      {Inflight, 0, 10 * time.Second, 0, 4 * time.Second, 6 * time.Second, -4 * time.Second},
		"an old record, an hour behind":      {Inflight, 0, 10 * time.Second, 0, -time.Hour, 10 * time.Second, 0},
		"an old retry, an hour behind":       {WaitingRetry, -20 * time.Second, 10 * time.Second, 0, -time.Hour, 30 * time.Second, 0},
		"parked since then, an hour behind":  {Parked, -time.Minute, 0, 0, -time.Hour, time.Hour, 0},
		"ready again, then an hour behind":   {Ready, -time.Minute, 0, 0, -time.Hour, time.Minute, 0},
		"ready again, and the clock runs on": {Ready, -time.Minute, 0, 0, time.Hour, -time.Hour, -time.Hour - time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := set.Add(c.now)
			due, since := restoredTimes(&store.Lease{State: uint8(c.state), Due: set.Add(c.due), Since: set.Add(c.since), Span: c.span}, now)
			if due.Sub(now) != c.wantDue || since.Sub(now) != c.wantSince {
				t.Errorf("due in %v, want %v; delivered %v, want %v", due.Sub(now), c.wantDue, since.Sub(now), c.wantSince)
			}
		})
	}
	if due, since := restoredTimes(&store.Lease{}, set); !due.IsZero() || !since.IsZero() {
		t.Errorf("a lease without times gets %v and %v", due, since)
	}
}

// Restored times have a monotonic part, so a later step of the wall clock does not change them.
func TestRestoredTimesAreMonotonic(t *testing.T) {
	t.Parallel()
	now := time.Now()
	due, since := restoredTimes(&store.Lease{State: uint8(Inflight), Due: now.Round(0).Add(time.Second), Since: now.Round(0)}, now)
	for _, at := range []time.Time{due, since} {
		if at == at.Round(0) { // Round(0) removes the monotonic part
			t.Errorf("%v has no monotonic part", at)
		}
	}
}
