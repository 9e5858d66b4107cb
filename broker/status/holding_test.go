package status

import (
	"testing"
	"time"
)

func TestLongHolding(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		held *Holding
		want bool
	}{
		{nil, false}, {&Holding{Since: now}, false}, {&Holding{Since: now.Add(-time.Minute + 1)}, false},
		{&Holding{Since: now.Add(-time.Minute)}, true}, {&Holding{Since: now.Add(-time.Hour)}, true},
	} {
		if got := c.held.Long(now); got != c.want {
			t.Errorf("%+v: %t, want %t", c.held, got, c.want)
		}
	}
}
