package throttle

import (
	"math"
	"testing"
	"time"
)

// A message goes after the time that a refusal told.
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
				t.Fatalf("%+v: told to wait %v, and then %v more", limit, s.RetryAfter, again)
			}
		}
		if refused == 0 {
			t.Errorf("%+v: nothing was refused", limit)
		}
	}
}
