package deadletter

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// Classes that are removed free their places in the limits of the broker and of the group. The
// class for the rest has none.
func TestRemovedClassesFreeTheirPlaces(t *testing.T) {
	var all atomic.Int64
	one, other := NewClasses(1, &all), NewClasses(2, &all)
	for i, table := range []*Classes{one, one, one, other} {
		c := &store.LetterClass{Group: "billing", Fingerprint: fmt.Sprint(i), Topic: "orders", Count: 1}
		if i == 2 {
			c.Fingerprint = "" // for the rest
		}
		table.Restore(uint32(i+1), c)
	}
	if n := all.Load(); n != 3 || one.groups["billing"] != 2 {
		t.Fatalf("%d classes in the broker and %d in the group, want 3 and 2", n, one.groups["billing"])
	}
	one.drop(one.byNumber[1])
	if n := all.Load(); n != 2 || one.groups["billing"] != 1 {
		t.Errorf("after a removal %d classes in the broker and %d in the group, want 2 and 1", n, one.groups["billing"])
	}
	one.Close()
	if n := all.Load(); n != 1 || len(one.groups) != 0 || !one.Empty() {
		t.Errorf("after the end of a topic %d classes in the broker and %d groups, want 1 and none", n, len(one.groups))
	}
	other.Close()
	assert.Equal(t, "at the end classes in the broker", all.Load(), 0)
}
