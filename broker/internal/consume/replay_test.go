package consume

import (
	"strconv"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A busy consumer sends thousands of attempt IDs a second. Attempt IDs without a delivery in flight
// are forgotten soon, because each keeps up to 128 deliveries in memory.
func TestAttemptsThatAreOverAreForgotten(t *testing.T) {
	p := New(Config{})
	p.AddQueue(store.Mark{})
	for i := range 1000 {
		over := Grant{Lease: &Lease{cursor: p.cursors[0], offset: int64(i)}}
		p.Remember(strconv.Itoa(i), []Grant{over}, time.Now())
		if n := p.Replays(); n > 64 {
			t.Fatalf("after %d receives %d attempt IDs are kept, of which no delivery is in flight", i+1, n)
		}
	}
}
