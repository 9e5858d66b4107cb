package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/policy"
)

func TestPreview(t *testing.T) {
	for _, tt := range []struct {
		e      policy.Effective
		delays []time.Duration
		text   string
	}{
		{policy.Effective{Retry: backoff.Steps{time.Second, 13 * time.Hour}, MaxAttempts: 3, Exhausted: policy.Discard},
			[]time.Duration{time.Second, 12 * time.Hour}, "2 retries in 12h"},
		{policy.Effective{Retry: backoff.Steps{time.Second}, MaxAttempts: 1, Exhausted: policy.DeadLetter}, nil, "no retries"},
		{policy.Effective{Retry: backoff.Steps{time.Minute}}, []time.Duration{9: time.Minute}, "10 retries in 10m"},
	} {
		p := tt.e.Preview()
		if len(p) != len(tt.delays) || !strings.HasSuffix(p.String(), tt.text) {
			t.Errorf("got %v\n%d retries, want %d ending with %q", p, len(p), len(tt.delays), tt.text)
			continue
		}
		if n := len(tt.delays); n > 0 && p[n-1].Hi != tt.delays[n-1] {
			t.Errorf("the last delay is %v, want %v", p[n-1].Hi, tt.delays[n-1])
		}
	}
}
