package producer

import (
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

func TestLint(t *testing.T) {
	steps := backoff.Steps{time.Second, 10 * time.Second}
	for _, tt := range []struct {
		name  string
		opts  Options
		use   Use
		wants []string // the beginnings of the findings
	}{
		{"the defaults", Options{}, Use{Timeout: 30 * time.Second, Clients: 1000}, nil},
		{"no deadline", Options{MaxAttempts: 50}, Use{}, nil},
		{"longer than the context", Options{MaxAttempts: 3, Backoff: steps}, Use{Timeout: 5 * time.Second}, []string{"Backoff: throttled retry 2 comes after at least 11.1s"}},
		{"as long as the context", Options{MaxAttempts: 3, Backoff: steps}, Use{Timeout: 11100 * time.Millisecond}, nil},
		{"more attempts than time", Options{MaxAttempts: 20, Backoff: backoff.Steps{0}}, Use{Timeout: time.Second}, []string{"MaxAttempts: 20 attempts need at least 100ms"}},
		{"throttle time without effect", Options{MaxThrottleTime: time.Minute}, Use{Timeout: 30 * time.Second}, []string{"Backoff: ", "MaxThrottleTime: 1m0s"}},
		{"for ever", Options{MaxThrottles: UntilContextEnds}, Use{}, []string{"MaxThrottles: "}},
		{"no jitter", Options{Backoff: steps, Pacing: steps}, Use{Clients: 1000}, []string{"Backoff: without jitter, 1000 clients", "Pacing: without jitter, 1000"}},
		{"no jitter, one client", Options{Backoff: steps}, Use{Clients: 1}, nil},
		{"small buffer", Options{MaxPendingBytes: 1 << 20}, Use{}, []string{"MaxPendingBytes: "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.opts.Lint(tt.use)
			if len(got) != len(tt.wants) {
				t.Fatalf("got %q, want %d findings", got, len(tt.wants))
			}
			for _, want := range tt.wants {
				found := false
				for _, f := range got {
					found = found || strings.HasPrefix(f, want)
				}
				if !found {
					t.Errorf("got %q, want one that begins with %q", got, want)
				}
			}
		})
	}
}

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
