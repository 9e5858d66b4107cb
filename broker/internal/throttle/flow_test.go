package throttle

import (
	"math"
	"testing"
	"time"
)

// TestFlow checks that the rate of a steady flow is right from its first second on, and that it is
// almost 0 two minutes after the flow has ended.
func TestFlow(t *testing.T) {
	for _, rate := range []float64{2, 100, 10_000} {
		var f Flow
		start := time.Now()
		if messages, bytes := f.Rate(start); messages != 0 || bytes != 0 {
			t.Errorf("before the first message it is %g, %g", messages, bytes)
		}
		now := start
		for i := range int(30 * rate) {
			now = start.Add(time.Duration(float64(i) / rate * float64(time.Second)))
			f.Add(1, 7, now)
			if i%97 > 0 || now.Sub(start) < time.Second {
				continue
			}
			messages, bytes := f.Rate(now)
			if math.Abs(messages/rate-1) > 0.5 || now.Sub(start) > 10*time.Second && math.Abs(messages/rate-1) > 0.15 || math.Abs(bytes/messages-7) > 0.001 {
				t.Fatalf("%g a second is measured as %g messages and %g bytes after %v", rate, messages, bytes, now.Sub(start))
			}
		}
		if messages, bytes := f.Rate(now.Add(2 * time.Minute)); messages > 0.1 || bytes > 1 {
			t.Errorf("two minutes after its end it is %g, %g", messages, bytes)
		}
	}
	var f Flow
	now := time.Now()
	f.Add(50, 5000, now)
	if messages, bytes := f.Rate(now); messages < 49 || messages > 60 || bytes != 100*messages {
		t.Errorf("50 at once are measured as %g a second, %g bytes", messages, bytes)
	}
}
