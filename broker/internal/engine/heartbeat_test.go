package engine

import (
	"cmp"
	"slices"
	"testing"
	"time"
)

func TestOwners(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var o Owners
	o.Touch("stranger", start)
	o.Own("a", OwnerPlace{1, 1}, start)
	o.Own("b", OwnerPlace{1, 1}, start)
	o.Own("c", OwnerPlace{1, 1}, start)
	o.Touch("a", start.Add(memory))
	o.Forget("c")
	o.Own("d", OwnerPlace{1, 1}, start.Add(memory+time.Second)) // removes b, whose last heartbeat is too long ago
	for owner, want := range map[string]time.Time{
		"stranger": {}, "a": start.Add(memory), "b": {}, "c": {}, "d": start.Add(memory + time.Second),
	} {
		if at, ok := o.Last(owner); at != want || ok == want.IsZero() {
			t.Errorf("Last(%q) = %v, %t, want %v", owner, at, ok, want)
		}
	}
	if len(o.seen) != 2 {
		t.Errorf("%d clients are remembered, want 2: %v", len(o.seen), o.seen)
	}
}

// The end of a client concerns the places at which it received, each once.
func TestPlacesOfAClient(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var o Owners
	for range 2 {
		for _, p := range []OwnerPlace{{1, 1}, {1, 2}, {2, 2}} {
			o.Own("a", p, now)
		}
		o.Own("b", OwnerPlace{3, 1}, now)
	}
	for _, c := range []struct {
		client string
		want   []OwnerPlace
	}{{"stranger", nil}, {"b", []OwnerPlace{{3, 1}}}, {"a", []OwnerPlace{{1, 1}, {1, 2}, {2, 2}}}, {"a", nil}} {
		got, many := o.Forget(c.client)
		slices.SortFunc(got, func(a, b OwnerPlace) int { return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic)) })
		if !slices.Equal(got, c.want) || many {
			t.Errorf("Forget(%q) = %v, %t; want %v", c.client, got, many, c.want)
		}
	}
}

// The places of a client are bounded.
func TestPlacesAreBounded(t *testing.T) {
	t.Parallel()
	var o Owners
	for _, n := range []int{mostPlaces, mostPlaces + 1, 3 * mostPlaces} {
		for i := range uint32(n) {
			o.Own("a", OwnerPlace{Group: i, Topic: 1}, time.Time{})
		}
		remembered := len(o.seen["a"].more)
		if got, many := o.Forget("a"); many != (n > mostPlaces) || !many && len(got) != n || many && remembered > 0 {
			t.Errorf("of %d places %d are remembered, and Forget returns %d and %t", n, remembered, len(got), many)
		}
	}
}
