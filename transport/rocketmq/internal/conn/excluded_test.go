package conn

import (
	"slices"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// At most half of the servers are excluded.
func TestExcluded(t *testing.T) {
	for _, tt := range []struct {
		trips []int64
		want  []bool
	}{
		{[]int64{5}, []bool{false}},
		{[]int64{0, 0}, []bool{false, false}},
		{[]int64{0, 7}, []bool{false, true}},
		{[]int64{9, 7}, []bool{false, true}}, // both failed: the first stays out
		{[]int64{9, 7, 8}, []bool{false, true, false}},
		{[]int64{4, 3, 2, 1}, []bool{false, false, true, true}},
		{[]int64{0, 3, 0, 1}, []bool{false, true, false, true}},
		{[]int64{0, 0, 1, 0}, []bool{false, false, true, false}},
	} {
		got := excluded(tt.trips)
		assert.That(t, slices.Equal(got, tt.want), "%v: %v, want %v", tt.trips, got, tt.want)
	}
}
