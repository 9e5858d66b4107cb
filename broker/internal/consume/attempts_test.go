package consume

import (
	"math"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

func TestLastAttempt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		most, attempt int
		want          bool
	}{{3, 2, false}, {3, 3, true}, {3, math.MaxInt, true}, {1, 1, true}, {-1, 1, false}, {-1, math.MaxInt, false}, {0, 99, false}} {
		if got := (&Policy{MaxAttempts: c.most}).LastAttempt(c.attempt); got != c.want {
			t.Errorf("of %d, attempt %d is the last one: %t", c.most, c.attempt, got)
		}
	}
}

// The action after the last attempt depends on the policy, the event and the message.
func TestExhaustion(t *testing.T) {
	t.Parallel()
	park, block := Policy{MaxAttempts: 17, OnExhausted: ThenPark}, Policy{MaxAttempts: 17, OnExhausted: ThenBlock}
	dead := Policy{MaxAttempts: 17, OnExhausted: ThenDeadLetter}
	none := Policy{MaxAttempts: -1, OnExhausted: ThenPark}
	limited := Policy{MaxAttempts: 1, MaxRedeliveries: 3, OnExhausted: ThenPark}
	for i, c := range []struct {
		policy   Policy
		event    Event
		attempt  int
		group    string
		negative bool
		want     Exhaustion
	}{
		{dead, EventFail, 16, "", false, AttemptsLeft},
		{dead, EventFail, 17, "", false, ThenDeadLetter},
		{dead, EventFail, 17, "a", false, ThenDeadLetter},
		{park, EventFail, 16, "a", false, AttemptsLeft},
		{park, EventTimeout, 18, "a", false, ThenPark},
		{park, EventFail, 17, "", false, ThenDeadLetter},
		{block, EventDue, 17, "a", false, ThenBlock},
		{block, EventFail, 17, "", false, ThenDeadLetter},
		{none, EventFail, 1000, "a", false, AttemptsLeft},
		{dead, EventNegativeAck, 99, "", false, AttemptsLeft}, // it has no maximum by default
		{limited, EventNegativeAck, 3, "a", false, AttemptsLeft},
		{limited, EventNegativeAck, 4, "a", false, ThenPark},
		{limited, EventDue, 2, "a", true, AttemptsLeft}, // the wait after one has no maximum
		{limited, EventDue, 2, "a", false, ThenPark},
	} {
		l := &Lease{Lease: store.Lease{Attempt: c.attempt, Group: c.group, Negative: c.negative}}
		if got := c.policy.exhaustion(c.event, l); got != c.want {
			t.Errorf("case %d: %d, want %d", i, got, c.want)
		}
	}
}

// Every message has a draw of its own for each failure, which is always the same.
func TestDraw(t *testing.T) {
	t.Parallel()
	p := New(Config{Group: 1, Topic: 2})
	p.AddQueue(store.Mark{})
	seen := map[Draw]bool{}
	for i := range 1000 {
		l := &Lease{cursor: p.cursors[0], offset: int64(i / 4)}
		l.Attempt, l.Serial = i/2%2, uint32(i%2)
		d := p.draw(l)
		if d != p.draw(l) || seen[d] {
			t.Fatalf("draw %d is %+v; seen: %t", i, d, seen[d])
		}
		seen[d] = true
	}
}

func TestRenewedUntil(t *testing.T) {
	t.Parallel()
	start := time.Unix(1e9, 0)
	for _, c := range []struct{ seen, longest, want time.Duration }{
		{0, 12 * time.Hour, time.Minute},
		{30 * time.Second, 12 * time.Hour, 90 * time.Second},
		{5 * time.Hour, 12 * time.Hour, 3 * time.Hour},
		{5 * time.Hour, time.Hour, time.Hour},
	} {
		if got := renewedUntil(start.Add(c.seen), start, c.longest).Sub(start); got != c.want {
			t.Errorf("heartbeat after %v, at most %v: until %v, want %v", c.seen, c.longest, got, c.want)
		}
	}
}
