package flow

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// Entries are returned in the order of their times, after any sequence of settings, changes and
// removals.
func TestOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var s Schedule[int]
	assert.That(t, s.First() == nil && len(s.All()) == 0, "the zero value is not empty")
	entries := make([]Entry[int], 50)
	due := map[int]time.Time{}
	for range 2000 {
		i := rnd.IntN(len(entries))
		entries[i].Value = i
		if rnd.IntN(3) == 0 {
			s.Remove(&entries[i])
			delete(due, i)
		} else {
			due[i] = time.Unix(rnd.Int64N(100), 0)
			s.Set(&entries[i], due[i])
		}
		if got := s.All(); len(got) != len(due) || slices.ContainsFunc(got, func(i int) bool { return due[i] != entries[i].At }) {
			t.Fatalf("%v are scheduled, want %v", got, due)
		}
		first := s.First()
		for i, at := range due {
			assert.MustThat(t, first != nil && !at.Before(first.At), "the first is %+v, but entry %d is due at %v", first, i, at)
		}
	}
	var last time.Time
	for e := s.First(); e != nil; e = s.First() {
		assert.That(t, !e.At.Before(last), "%v comes after %v", e.At, last)
		last = e.At
		s.Remove(e)
		s.Remove(e) // has no effect
	}
}

// Reminders of one queue within a step are one; the latest are dropped if there are too many.
func TestReminders(t *testing.T) {
	var r Reminders[*int]
	a, b := new(int), new(int)
	begin := time.Unix(1000, 0)
	for i := range 2 * remindMax {
		r.add(begin.Add(time.Duration(remindMax*2-i)*time.Second), a)
		r.add(begin.Add(time.Duration(remindMax*2-i)*time.Second), a) // shares it
	}
	r.add(begin, b)
	assert.That(t, len(r) == remindMax, "%d reminders", len(r))
	got := r.Due(begin)
	assert.That(t, got == nil, "%v before the time", got)
	got = r.Due(begin.Add(2 * time.Second))
	assert.That(t, len(got) == 2 && got[0] == b && got[1] == a, "got %v", got)
}
