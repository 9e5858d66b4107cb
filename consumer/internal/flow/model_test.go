package flow

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

// The next step for a delivery is never in the past, and at the latest at the end of its lease. The
// lease ends before the server's. The extensions are bounded by the time, and none begins after the
// longest time for which a delivery is extended, so that every lease ends.
func TestModel(t *testing.T) { model.Run(t, 100_000, runModel) }

// runModel extends one delivery until its lease ends.
func runModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	between := func(least, most time.Duration) time.Duration {
		return least + time.Duration(r.Int64N(int64(most-least)+1))
	}
	inv := between(10*time.Millisecond, time.Minute)
	longest := between(0, 200*inv)
	failing, slow := r.Float64(), between(0, inv)
	// The receive was parked before the delivery, and its response takes up to six tenths of the
	// invisible duration.
	sent, left := time.Unix(0, 0), between(0, inv)
	server := sent.Add(between(0, 20*time.Second) + left) // the server's end of the lease
	now := server.Add(-left + between(0, left*6/10))
	begin := now
	l := First(sent, now, left, longest)
	var times RenewTime
	attempts := 0
	for at := l.Renewal(now, r.Float64()); ; {
		switch {
		case at.After(l.Until):
			t.Fatalf("the next step is %v after the end of the lease", at.Sub(l.Until))
		case l.Until.After(server):
			t.Fatalf("the lease ends %v after that of the server", l.Until.Sub(server))
		}
		if !at.Before(l.Until) {
			break
		}
		assert.MustThat(t, !at.Before(now),
			"the next step is %v ago, %v before the end of the lease", now.Sub(at), l.Until.Sub(now))
		if now = at; now.After(begin.Add(longest)) {
			t.Fatalf("an extension begins after %v, want none after %v", now.Sub(begin), longest)
		}
		attempts++
		sent, d := now, times.Floor(inv)
		timeout := times.Timeout(d, l.Until.Sub(now))
		there, back := between(0, slow), between(0, slow)
		lost := r.Float64() < failing || there+back > timeout
		if there <= timeout && r.IntN(4) > 0 || !lost {
			server = sent.Add(there + d) // also if the response is lost
		}
		took := min(there+back, timeout)
		now = now.Add(took)
		times.Observe(took)
		if !now.Before(l.Until) {
			break // the handler's context has ended meanwhile
		}
		if lost {
			at = l.Retry(now, d)
			continue
		}
		l = l.Extended(sent, d)
		at = l.Renewal(now, r.Float64())
	}
	// A failed attempt is followed by one after a hundredth of the invisible duration or later, a
	// successful one after more than a quarter of the time that is left.
	most := 1 + int(now.Sub(begin)/(inv/100))
	assert.That(t, attempts <= most, "%d attempts in %v with an invisible duration of %v", attempts, now.Sub(begin), inv)
}
