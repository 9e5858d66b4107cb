package heartbeat

import (
	"testing"
	"time"
)

func TestOwners(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var o Owners
	o.Touch("stranger", start)
	o.Own("a", start)
	o.Own("b", start)
	o.Own("c", start)
	o.Touch("a", start.Add(memory))
	o.Forget("c")
	o.Own("d", start.Add(memory+time.Second)) // removes b, whose last heartbeat is too long ago
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
