package auth

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/access"
)

// With one rejection each second, the log has the first five and then one every two seconds, by
// reason.
func TestRejectionLog(t *testing.T) {
	now := time.Unix(1000, 0)
	var l refusalLog
	for _, reason := range []access.Reason{access.NoCredentials, "other"} {
		logged, told := 0, 0
		for i := range 100 {
			if unlogged, log := l.take(reason, now.Add(time.Duration(i)*time.Second)); log {
				logged++
				told += unlogged
			}
		}
		if other := l.reasons[reason].other; logged != 54 || logged+told+other != 100 {
			t.Errorf("reason %v: %d logged, %d counted in these lines, %d not yet; want 54 of 100", reason, logged, told, other)
		}
	}
}
