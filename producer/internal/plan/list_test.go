package plan

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// A list has the elements of a slice after the same random operations.
func TestListIsASlice(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	var l List[int]
	var model []int
	links := make([]Link[int], 20)
	for step := range 2000 {
		n := rnd.IntN(len(links))
		e := &links[n]
		e.Value = n
		switch at := slices.Index(model, n); {
		case at >= 0:
			e.Leave()
			model = slices.Delete(model, at, at+1)
		case rnd.IntN(2) == 0:
			l.PushBack(e)
			model = append(model, n)
		default:
			l.PushFront(e)
			model = slices.Insert(model, 0, n)
		}
		if got := slices.Collect(l.All); !slices.Equal(got, model) || l.Len() != len(model) {
			t.Fatalf("step %d: the list has %d elements %v, want %v", step, l.Len(), got, model)
		}
		assert.MustThat(t, e.Joined() == slices.Contains(model, n) && e.Joined() == e.In(&l),
			"step %d: element %d: Joined returned %v", step, n, e.Joined())
		if len(model) > 0 && l.First() != model[0] {
			t.Fatalf("step %d: the first element is %d, want %d", step, l.First(), model[0])
		}
	}
}
