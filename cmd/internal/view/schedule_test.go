package view

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// The retries of RocketMQ's documents: 10s 30s 1m … 2h, 16 retries in 4h 45m 40s without handlers.
func TestScheduleOfTheLadder(t *testing.T) {
	m := time.Minute
	ladder := []time.Duration{10 * time.Second, 30 * time.Second, m, 2 * m, 3 * m, 4 * m, 5 * m, 6 * m, 7 * m, 8 * m, 9 * m, 10 * m, 20 * m, 30 * m, 60 * m, 120 * m}
	r := Redelivery{
		MaxAttempts: 17, Steps: 16, Exhausted: "the message becomes a dead letter",
		Wait: func(attempt int) time.Duration { return ladder[min(attempt, len(ladder))-1] },
	}
	s := ScheduleOf(r)
	if last := s.Attempts[16]; len(s.Attempts) != 17 || last.After != "4h45m40s" || last.Wait != "2h0m0s" || len(s.Findings) != 0 {
		t.Errorf("%d attempts, the last one %+v, findings %q", len(s.Attempts), last, s.Findings)
	}
	r.Handler = time.Second
	if s := ScheduleOf(r); s.Attempts[16].After != "4h45m56s" || !strings.Contains(s.End, "4h 45m after the begin of the first one") {
		t.Errorf("with a handler of 1s: %+v, %q", s.Attempts[16], s.End)
	}
}

func TestScheduleFindings(t *testing.T) {
	second := func(int) time.Duration { return time.Second }
	for _, c := range []struct {
		name string
		r    Redelivery
		want string // a part of the only finding; empty for none
	}{
		{"nothing", Redelivery{MaxAttempts: 3, Steps: 2, Handler: time.Second, Lease: 2 * time.Second, Retention: time.Minute}, ""},
		{"one attempt", Redelivery{MaxAttempts: 1}, "is not retried"},
		{"unused waits", Redelivery{MaxAttempts: 3, Steps: 16}, "16 waits, and 3 attempts use 2"},
		{"retention", Redelivery{MaxAttempts: 5, Steps: 1, Handler: time.Second, Retention: 5 * time.Second}, "attempt 4 comes 6s after the first"},
		{"lease", Redelivery{MaxAttempts: 2, Handler: 3 * time.Second, Lease: 2 * time.Second}, "receives the message twice"},
		{"order", Redelivery{MaxAttempts: 3, FIFO: true, Handler: time.Second}, "wait for up to 5s"},
	} {
		c.r.Wait = second
		got := ScheduleOf(c.r).Findings
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	s := ScheduleOf(Redelivery{MaxAttempts: -1, FIFO: true, Wait: second})
	if len(s.Attempts) != 20 || !strings.HasPrefix(s.End, "no maximum") || !slices.ContainsFunc(s.Findings, func(f string) bool { return strings.Contains(f, "without end") }) {
		t.Errorf("without a maximum: %d attempts, %q, %q", len(s.Attempts), s.End, s.Findings)
	}
}
