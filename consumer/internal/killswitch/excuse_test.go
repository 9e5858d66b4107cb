package killswitch

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// A message has five excuses, each with twice the delay of the one before, and they are forgotten
// with its end.
func TestExcuses(t *testing.T) {
	var e Excuses
	k := Key{"orders", "m"}
	for n, want := range []time.Duration{20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 320 * time.Second} {
		d, ok := e.Excuse(k, 5*time.Second)
		assert.That(t, ok && d == want, "excuse %d: %v, %v; want %v", n, d, ok, want)
	}
	for _, other := range []Key{{"returns", "m"}, {"orders", "n"}} {
		d, ok := e.Excuse(other, 5*time.Second)
		assert.That(t, ok && d == 20*time.Second, "another message: %v, %v", d, ok)
	}
	if _, ok := e.Excuse(k, 5*time.Second); ok || e.Count(k) != MaxExcuses || e.Len() != 3 {
		t.Errorf("a sixth excuse of %d messages", e.Len())
	}
	e.Forget(k)
	d, ok := e.Excuse(k, time.Second)
	assert.That(t, ok && d == 4*time.Second, "after its end: %v, %v", d, ok)
}

// Many excuses take bounded memory, and their delay grows with their number: the probes of that
// time can receive all of them, and as many other messages.
func TestManyExcuses(t *testing.T) {
	var e Excuses
	first := Key{"orders", "first"}
	for range MaxExcuses {
		e.Excuse(first, time.Second)
	}
	for i := range 100_000 {
		d, _ := e.Excuse(Key{"orders", fmt.Sprint(i)}, time.Second)
		received := int(d/time.Second) * Choice
		assert.MustThat(t, received >= 2*(e.Len()-Choice), "with %d excuses the delay is %v", e.Len(), d)
		_, ok := e.Excuse(first, time.Second)
		assert.MustThat(t, !ok || i >= 4000, "the excuses of the first message are forgotten after %d others", i)
	}
	assert.That(t, e.Len() <= 10_000, "%d excuses are kept", e.Len())
}
