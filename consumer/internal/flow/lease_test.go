package flow

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// However long a receive was parked, and with a response that takes up to six tenths of the
// invisible duration, the lease is over before the server may deliver the message again.
func TestFirstEndsBeforeTheServers(t *testing.T) {
	base := time.Unix(0, 0)
	for range 10_000 {
		invisible := time.Second + time.Duration(rand.Int64N(int64(time.Hour)))
		parked := time.Duration(rand.Int64N(int64(20 * time.Second))) // before the hand-out
		back := time.Duration(rand.Int64N(int64(invisible) * 6 / 10)) // of the response
		sent, handed := base, base.Add(parked)
		now := handed.Add(back)
		l := First(sent, now, invisible, time.Hour)
		if ends := handed.Add(invisible); !l.Until.Before(ends) {
			t.Fatalf("invisible for %v, parked %v, %v back: it ends %v late", invisible, parked, back, l.Until.Sub(ends))
		}
		at := l.Renewal(now, rand.Float64())
		assert.MustThat(t, !at.After(l.Until), "extended at %v, after its end at %v", at, l.Until)
	}
}
