package producer

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

func TestPreview(t *testing.T) {
	steps := backoff.Steps{time.Second, 2 * time.Second}
	for name, tt := range map[string]struct {
		opts    Options
		retries int
		total   time.Duration
	}{
		"default attempts": {Options{Backoff: steps}, 2, 3 * time.Second},
		"attempts":         {Options{Backoff: steps, MaxAttempts: 5}, 4, 7 * time.Second},
		"throttles":        {Options{Backoff: steps, MaxThrottles: 3}, 3, 5 * time.Second},
		"throttle time":    {Options{Backoff: steps, MaxThrottleTime: 6 * time.Second}, 3, 5 * time.Second},
		"until ctx ends":   {Options{Backoff: steps, MaxThrottles: UntilContextEnds}, 10, 19 * time.Second},
		"one attempt":      {Options{Backoff: steps, MaxAttempts: 1}, 0, 0},
		"no bounds known":  {Options{Backoff: constant(time.Second)}, 2, 2 * time.Second},
	} {
		got := tt.opts.Preview()
		if len(got) != tt.retries || len(got) > 0 && got[len(got)-1].TotalHi != tt.total {
			t.Errorf("%s: %v, want %d retries in %v", name, got, tt.retries, tt.total)
		}
	}
}
