package topic

import (
	"testing"

	"github.com/tidegate/tidegate/broker/internal/allocated"
	"github.com/tidegate/tidegate/broker/settings"
)

// A number is a subscription that only has an identity.
type number struct {
	Subscription
	n int
}

// A list of subscriptions does not change for its reader when others are added or removed.
func TestSubscriptionsOfReaderRemain(t *testing.T) {
	tp := New(Config{}, settings.Topic{})
	var lists [][]Subscription
	for n := range 100 {
		tp.AddSubscription(&number{n: n})
		lists = append(lists, tp.Subscriptions())
		if n%7 == 6 {
			tp.RemoveSubscription(tp.Subscriptions()[n/7])
			lists = append(lists, tp.Subscriptions())
		}
		_ = append(lists[n/2], &number{n: -1}) // in no other list
	}
	for i, list := range lists {
		last := -1
		for _, s := range list {
			got := s.(*number).n
			if got <= last {
				t.Fatalf("list %d has %d after %d", i, got, last)
			}
			last = got
		}
	}
	if got := len(tp.Subscriptions()); got != 100-14 {
		t.Errorf("%d subscriptions are left, want 86", got)
	}
}

// To add n subscriptions takes memory for n of them, not for n². The bytes are those of the whole
// process, so the limit leaves room for others.
func TestAddSubscriptionDoesNotCopy(t *testing.T) {
	const (
		n     = 10_000
		limit = 16 << 20 // copies of the list would take 800 MB
	)
	tp := New(Config{}, settings.Topic{})
	s := &number{}
	if got := allocated.Bytes(func() {
		for range n {
			tp.AddSubscription(s)
		}
	}); got > limit {
		t.Errorf("%d subscriptions took %d bytes, want at most %d", n, got, limit)
	}
}
