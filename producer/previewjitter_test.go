package producer

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

// A preview has every retry that can be within MaxThrottleTime, also if that takes the shortest
// waits.
func TestPreviewCountsTheShortestWaits(t *testing.T) {
	o := Options{MaxThrottleTime: 3 * time.Second, Backoff: backoff.Exponential{Initial: time.Second, Multiplier: 1, Jitter: 0.5}}
	got := o.Preview() // each wait takes 0.5 s to 1.5 s
	if len(got) != 6 || got[5].TotalLo != 3*time.Second || got[5].TotalHi != 9*time.Second {
		t.Errorf("%v, want 6 retries in 3 s to 9 s", got)
	}
}
