package conn

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

func TestInterleave(t *testing.T) {
	var in []Queue
	for _, q := range []string{"a0", "a1", "a2", "b0", "c0", "c1"} {
		in = append(in, Queue{broker: q[:1], ID: int32(q[1] - '0')})
	}
	var got []string
	for _, q := range interleave(in) {
		got = append(got, fmt.Sprint(q.broker, q.ID))
	}
	want := []string{"a0", "b0", "c0", "a1", "c1", "a2"}
	assert.That(t, slices.Equal(got, want), "%v, want %v", got, want)
}
