package plan

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A throttle of a request that began before the last pause can lengthen that pause. It cannot begin
// another one, because the server decided it before the probe.
func TestLateThrottles(t *testing.T) {
	begin := time.Unix(1000, 0)
	for _, tt := range []struct {
		name  string
		late  time.Duration // of the result, since the begin of a pause of 1 s
		pause time.Duration // that it demands
		until time.Duration // end of the pause, since its begin
	}{
		{"a longer pause", 500 * time.Millisecond, time.Second, 1500 * time.Millisecond},
		{"a shorter pause", 500 * time.Millisecond, 100 * time.Millisecond, time.Second},
		{"beside the probe", 1500 * time.Millisecond, time.Minute, time.Second},
	} {
		l := &Lane[numbered, struct{}]{Lane: transport.Lane{MaxMessages: 1}, window: FirstWindow}
		first, late := &Request[numbered, struct{}]{Lane: l}, &Request[numbered, struct{}]{Lane: l}
		l.begin(first, begin)
		l.begin(late, begin)
		assert.MustThat(t, l.Pause(first, begin, time.Second, nil), "%s: the first throttle begins no pause", tt.name)
		if counts := l.Pause(late, begin.Add(tt.late), tt.pause, nil); counts || !l.PausedUntil.Equal(begin.Add(tt.until)) {
			t.Errorf("%s: it counts: %t, and the pause ends after %v, want %v", tt.name, counts, l.PausedUntil.Sub(begin), tt.until)
		}
	}
}
