package held_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/held"
)

// taken returns the number of messages of a group that a link has.
func (f *fake) taken(group string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.queues[[2]string{group, "orders"}].entries {
		if e.link != nil && !e.done {
			n++
		}
	}
	return n
}

// After receives that follow each other at once and get their maximum, the Table has the messages
// of one more receive. Slow receives leave them at the system, and unused ones return to it.
func TestQuickReceivesAskAhead(t *testing.T) {
	for pause, ahead := range map[time.Duration]int{0: 4, 4 * time.Millisecond: 4, 20 * time.Millisecond: 0, time.Second: 0} {
		inBubble(t, 100, held.Options{Linger: 10 * time.Millisecond}, func(t *testing.T, f *fake) {
			q := request("billing")
			q.Max = 4
			for n := range 3 {
				time.Sleep(pause)
				ds := receive(t, f, q)
				assert.MustThat(t, len(ds) == 4, "receive %d brought %d messages, want 4", n, len(ds))
			}
			synctest.Wait()
			got := f.taken("billing")
			assert.That(t, got == 12+ahead, "with pauses of %v the Table has %d messages, want 12 and %d ahead", pause, got, ahead)
			time.Sleep(3 * time.Second)
			if got := f.taken("billing"); got != 12 {
				t.Errorf("with pauses of %v the Table has %d messages after Idle, want the 12 delivered ones", pause, got)
			}
			assert.MustEqual(t, "a late receive brought messages", len(receive(t, f, q)), 4)
			synctest.Wait()
			assert.Equal(t, "after a late receive the Table has messages", f.taken("billing"), 16)
		})
	}
}
