package brokertest

import (
	"math/rand/v2"
	"testing"

	"github.com/tidegate/tidegate"
)

// Chaos changes the order of messages, except within a message group.
func TestReorderKeepsMessageGroups(t *testing.T) {
	moved := false
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		var ds []*tidegate.Delivery
		for i := range 12 {
			ds = append(ds, &tidegate.Delivery{Offset: int64(i), Message: tidegate.Message{MessageGroup: []string{"", "a", "b"}[r.IntN(3)]}})
		}
		last, seen := map[string]int64{"a": -1, "b": -1}, map[int64]bool{}
		for i, d := range reorder(ds, r) {
			moved = moved || d.Offset != int64(i)
			if seen[d.Offset] {
				t.Fatalf("seed %d: offset %d comes twice", seed, d.Offset)
			}
			seen[d.Offset] = true
			if d.MessageGroup == "" {
				continue
			}
			if d.Offset < last[d.MessageGroup] {
				t.Errorf("seed %d: in message group %s, offset %d comes after %d", seed, d.MessageGroup, d.Offset, last[d.MessageGroup])
			}
			last[d.MessageGroup] = d.Offset
		}
		if len(seen) != len(ds) {
			t.Errorf("seed %d: %d of %d messages are left", seed, len(seen), len(ds))
		}
	}
	if !moved {
		t.Error("nothing was moved")
	}
}
