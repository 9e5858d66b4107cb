package failover

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

func TestVisitPlan(t *testing.T) {
	for name, tt := range map[string]struct {
		x         visit
		active, n int
		down      []int
		want      []int
	}{
		"first":                       {visit{}, 0, 2, nil, []int{1}},
		"the secondary is active":     {visit{}, 1, 2, nil, []int{0}},
		"three":                       {visit{}, 1, 3, nil, []int{2, 0}},
		"one is down":                 {visit{}, 1, 3, []int{2}, []int{0}},
		"all are down":                {visit{}, 0, 3, []int{1, 2}, nil},
		"after a message of 1":        {visit{from: 2}, 0, 2, nil, []int{0, 1}},
		"after a message of 1 of 3":   {visit{from: 2}, 0, 3, nil, []int{2, 0, 1}},
		"after a message of 2 of 3":   {visit{from: 3}, 0, 3, nil, []int{0, 1, 2}},
		"the active one comes last":   {visit{from: 2}, 0, 3, []int{1}, []int{2}},
		"the active one is alone":     {visit{from: 2}, 0, 2, []int{1}, nil},
		"was empty a moment ago":      {visit{emptyAt: []time.Time{1: ago(4999 * time.Millisecond)}}, 0, 2, nil, nil},
		"was empty 5 s ago":           {visit{emptyAt: []time.Time{1: ago(5 * time.Second)}}, 0, 2, nil, []int{1}},
		"another was empty":           {visit{emptyAt: []time.Time{1: ago(time.Second)}}, 0, 3, nil, []int{2}},
		"the active one was empty":    {visit{from: 2, emptyAt: []time.Time{ago(time.Second)}}, 0, 2, nil, []int{0, 1}},
		"became active after it gave": {visit{from: 2}, 1, 2, nil, []int{0}},
	} {
		down := func(i int) bool { return slices.Contains(tt.down, i) }
		got := tt.x.plan(tt.active, tt.n, epoch, down)
		assert.That(t, slices.Equal(got, tt.want), "%s: %v, want %v", name, got, tt.want)
	}
}

func TestVisitsAreBounded(t *testing.T) {
	var v visits
	now := epoch
	for i := range 100_000 {
		now = now.Add(10 * time.Millisecond) // 500 in 5 s
		v.note(visitKey{group: fmt.Sprint(i)}, 1, false, now)
		assert.MustThat(t, len(v.byKey) <= 2*500+minVisits+1, "%d entries, of which 500 are of the last 5 s", len(v.byKey))
	}
}
