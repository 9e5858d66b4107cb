package throttle

import (
	"math"
	"testing"
	"time"
)

// A message is accepted after the wait that its rejection has returned.
func TestRateWaitIsRight(t *testing.T) {
	now := time.Now()
	for _, limit := range []RateLimit{{MessagesPerSecond: 3}, {BytesPerSecond: 7}, {MessagesPerSecond: 0.25, BytesPerSecond: 1e6}, {MessagesPerSecond: 1e5, Burst: 1}} {
		var r Rate
		refused := 0
		for range 100 {
			m, wait := r.Take(limit, 5, now)
			if wait == 0 {
				continue
			}
			refused++
			s := r.Refused(m, wait, limit, now)
			if !s.On || s.Since != now || s.Mark != int64(math.Ceil(limit.of(m))) {
				t.Fatalf("%+v: refused at %v with %+v", limit, now, s)
			}
			now = now.Add(s.RetryAfter)
			if _, again := r.Take(limit, 5, now); again > 0 {
				t.Fatalf("%+v: the push-back is %v, and then %v more", limit, s.RetryAfter, again)
			}
		}
		if refused == 0 {
			t.Errorf("%+v: nothing was refused", limit)
		}
	}
}

// When a limit is removed and set again, the tokens of the earlier limit do not count, and neither
// do owed ones.
func TestRateFill(t *testing.T) {
	now := time.Now()
	bound := RateLimit{MessagesPerSecond: 1, BytesPerSecond: 10}
	for name, meanwhile := range map[string]RateLimit{"by messages": {MessagesPerSecond: 1e9}, "by bytes": {BytesPerSecond: 1e9}, "not at all": {}} {
		for _, way := range []string{"told", "taken"} {
			var r Rate
			if _, wait := r.Take(bound, 100, now); wait > 0 {
				t.Fatalf("the first message waits %v", wait)
			}
			now := now.Add(time.Second)
			if way == "told" {
				r.Fill(meanwhile)
			} else if _, wait := r.Take(meanwhile, 100, now); wait > 0 {
				t.Fatalf("limited %s a message waits %v", name, wait)
			}
			again := RateLimit{}
			if meanwhile.MessagesPerSecond == 0 {
				again.MessagesPerSecond = bound.MessagesPerSecond
			}
			if meanwhile.BytesPerSecond == 0 {
				again.BytesPerSecond = bound.BytesPerSecond
			}
			if m, wait := r.Take(again, 100, now); wait > 0 {
				t.Errorf("limited %s, as %s: then a message waits %v (%v)", name, way, wait, m)
			}
			if _, wait := r.Take(again, 100, now); wait == 0 {
				t.Errorf("limited %s, as %s: then two messages are accepted", name, way)
			}
		}
	}
}

// A limit that rejects only large messages is not on.
func TestRateState(t *testing.T) {
	var r Rate
	now := time.Now()
	limit := RateLimit{BytesPerSecond: 100}
	r.Take(limit, 50, now)
	m, wait := r.Take(limit, 80, now)
	if s := r.Refused(m, wait, limit, now); m != ByBytes || !s.On || s.Since != now || s.RetryAfter != 300*time.Millisecond || s.Mark != 100 {
		t.Errorf("80 bytes more are refused by %v with %+v", m, s)
	}
	if s := r.State(ByBytes, limit, now); s.On || !s.Since.IsZero() || s.RetryAfter != 0 || s.Value < 100 || s.Value > 160 {
		t.Errorf("50 bytes would be accepted, and it is %+v", s)
	}
	r = Rate{}
	r.Take(limit, 150, now) // more bytes than the limit of one second: 50 are owed
	m, wait = r.Take(limit, 0, now)
	if s := r.Refused(m, wait, limit, now); m != ByBytes || wait != 500*time.Millisecond || s.RetryAfter != 510*time.Millisecond {
		t.Errorf("a message without a body waits %v, one with a byte %v", wait, s.RetryAfter)
	}
	if s := r.State(ByBytes, limit, now); !s.On || s.Since != now || s.RetryAfter != 510*time.Millisecond {
		t.Errorf("while it owes it is %+v", s)
	}
}

func TestBurst(t *testing.T) {
	for _, c := range []struct {
		perSecond   float64
		burst, want int
	}{{10, 0, 10}, {10, 3, 3}, {0.1, 0, 1}, {10.5, 0, 11}, {1e300, 0, math.MaxInt32}} {
		if got := Burst(c.perSecond, c.burst); got != c.want {
			t.Errorf("Burst(%g, %d) = %d, want %d", c.perSecond, c.burst, got, c.want)
		}
	}
}
