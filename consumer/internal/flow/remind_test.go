package flow

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

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
