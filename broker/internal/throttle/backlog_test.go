package throttle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// TestBacklog checks that Update returns the first limit that rejects sends, and that its state has
// the time when it was reached and the value at which it ends.
func TestBacklog(t *testing.T) {
	var b Backlog
	start := time.Now()
	marks := Amount{ByMessages: 100, ByAge: 1000}
	for i, c := range []struct {
		value Amount
		on    bool
		m     Measure
		since int // the step
	}{
		{Amount{99, 1 << 60, 999}, false, 0, 0},
		{Amount{99, 1 << 60, 1000}, true, ByAge, 1},
		{Amount{100, 0, 1000}, true, ByMessages, 2},
		{Amount{81, 0, 801}, true, ByMessages, 2},
		{Amount{80, 0, 801}, true, ByAge, 1},
		{Amount{80, 0, 800}, false, 0, 0},
		{Amount{99, 0, 800}, false, 0, 0},
		{Amount{100, 0, 800}, true, ByMessages, 7},
	} {
		at := func(step int) time.Time { return start.Add(time.Duration(step) * time.Second) }
		m, on := b.Update(c.value, marks, at(i))
		assert.MustThat(t, on == c.on && (!on || m == c.m), "step %d: %v refuses (%v), want %v (%v)", i, m, on, c.m, c.on)
		if !on {
			continue
		}
		want := State{On: true, Value: c.value[m], Mark: marks[m], Resume: marks[m] * 8 / 10, Since: at(c.since)}
		s := b.State(m, c.value, marks)
		assert.That(t, s == want, "step %d: %+v, want %+v", i, s, want)
	}
	s := b.State(ByBytes, Amount{}, marks)
	assert.That(t, !s.On && s.Since.IsZero(), "a measure without a limit is %+v", s)
}

// TestBacklogShares checks that the clients that sent or waited share the room after a limit until
// the backlog has fallen to 64 % of the limit. Then the clients are forgotten.
func TestBacklogShares(t *testing.T) {
	for _, c := range []struct {
		m    Measure
		say  Measure // Measure of the share
		n    int     // messages that a client can send at first
		each int64   // PerSecond of the share
		wait time.Duration
	}{
		{ByMessages, ByMessages, 50, 10, 100 * time.Millisecond}, // a quarter of the room of 200; the room in 10 s
		{ByBytes, ByBytes, 5, 15, 2 * time.Second / 3},           // in bytes; the drain exceeds the room in 10 s
		{ByAge, ByMessages, 4, 8, 125 * time.Millisecond},        // a quarter of the drain of one second
	} {
		var b Backlog
		now := time.Now()
		var marks, value Amount
		marks[c.m] = 1000
		set := func(v int64, on bool) {
			t.Helper()
			value[c.m] = v
			_, is := b.Update(value, marks, now)
			assert.MustThat(t, is == on, "%v at %d: %v", c.m, v, is)
		}
		sends := func(client string) (n int, last Share) {
			for ; n < 2000 && b.Sharing(); n++ {
				var ok bool
				if last, ok = b.Share(client, 10, value, marks, 16, 30, now); !ok { // 16 messages, 30 bytes
					break
				}
			}
			return n, last
		}
		assert.That(t, !b.Sharing(), "a zero value shares")
		if set(999, false); b.Sharing() {
			t.Errorf("%v: before any limit is reached the space is shared", c.m)
		}
		set(1000, true)
		b.Wait("a", now)
		b.Wait("b", now)
		set(800, false)
		n, share := sends("a")
		if want := (Share{c.say, c.each, 2, now, c.wait}); n != c.n || share != want {
			t.Errorf("%v: after %d it has had %+v; want %d, %+v", c.m, n, share, c.n, want)
		}
		m, _ := sends("b")
		assert.That(t, m == n, "%v: one has %d, the other %d", c.m, n, m)
		if set(641, false); len(b.fair.clients) != 2 {
			t.Errorf("%v: %d clients at 641", c.m, len(b.fair.clients))
		}
		if n, _ := sends("a"); n != 0 {
			t.Errorf("%v: at 641 it has %d more", c.m, n)
		}
		if set(640, false); b.Sharing() || b.fair.clients != nil {
			t.Errorf("%v: at 640 the space is shared (%v), and %d clients are known", c.m, b.Sharing(), len(b.fair.clients))
		}
	}
}

// TestBacklogSharesWithoutDrain checks that, without a drain, all clients together can send one
// message in ten seconds. So each of two clients can send one in twenty seconds.
func TestBacklogSharesWithoutDrain(t *testing.T) {
	var b Backlog
	now := time.Now()
	marks := Amount{ByAge: 1000}
	b.Update(Amount{ByAge: 1000}, marks, now)
	b.Wait("a", now)
	b.Wait("b", now)
	b.Update(Amount{ByAge: 800}, marks, now)
	if _, ok := b.Share("a", 1, Amount{ByAge: 800}, marks, 0, 0, now); !ok {
		t.Error("the first message is refused")
	}
	share, ok := b.Share("a", 1, Amount{ByAge: 800}, marks, 0, 0, now)
	assert.That(t, !ok && share.RetryAfter == 20*time.Second, "the second one: %v, %+v", ok, share)
}

func TestDraining(t *testing.T) {
	for _, c := range []struct {
		drains  Draining
		m       Measure
		backlog Amount
		want    time.Duration
	}{
		{Draining{Messages: 10, Bytes: 1}, ByMessages, Amount{200, 0, 0}, 10 * time.Second},
		{Draining{Messages: 1, Bytes: 10}, ByBytes, Amount{0, 200, 0}, 10 * time.Second},
		{Draining{Messages: 10}, ByBytes, Amount{0, 200, 0}, 0},
		{Draining{Messages: 1, Age: 0.01}, ByAge, Amount{1000, 0, 200}, 10 * time.Second}, // the age falls first
		{Draining{Messages: 100, Age: 0.01}, ByAge, Amount{500, 0, 200}, 5 * time.Second}, // the backlog is empty first
		{Draining{Messages: 100, Age: -1}, ByAge, Amount{500, 0, 200}, 5 * time.Second},
		{Draining{Age: 0.01}, ByAge, Amount{500, 0, 200}, 10 * time.Second},
		{Draining{Age: -1}, ByAge, Amount{500, 0, 200}, 0},
	} {
		got := c.drains.Until(c.m, c.backlog, 100)
		assert.That(t, got == c.want, "%+v: %v", c, got)
	}
}

// TestUntilAll checks that the slowest group above the mark determines the estimate, and that
// delayed messages are not drained.
func TestUntilAll(t *testing.T) {
	group := func(messages int64, rate float64) Consumer {
		return Consumer{Amount{ByMessages: messages}, Draining{Messages: rate}}
	}
	for name, c := range map[string]struct {
		waiting int64
		groups  []Consumer
		want    time.Duration
	}{
		"no group":                   {0, nil, 0},
		"one":                        {0, []Consumer{group(100, 2)}, 10 * time.Second},
		"the slower of two":          {0, []Consumer{group(100, 2), group(90, 0.5)}, 20 * time.Second},
		"one that is below the mark": {0, []Consumer{group(100, 2), group(80, 0)}, 10 * time.Second},
		"one that does not drain":    {0, []Consumer{group(100, 2), group(81, 0)}, 0},
		"delayed ones":               {10, []Consumer{group(100, 2)}, 15 * time.Second},
		"too many delayed ones":      {81, []Consumer{group(100, 2)}, 0},
	} {
		got := UntilAll(ByMessages, Amount{ByMessages: c.waiting}, c.groups, 80)
		assert.That(t, got == c.want, "%s: %v, want %v", name, got, c.want)
	}
}

// TestExpect compares the estimates of simulated drains with arithmetic: the wanted time is the
// rest of the backlog above 80 % of the limit, divided by the rate of the simulation.
func TestExpect(t *testing.T) {
	type part struct {
		seconds float64 // length
		every   float64 // seconds between steps; 0 means that nothing drains
		batch   int64   // messages of a step
		random  bool    // the times between steps are exponential
	}
	for name, c := range map[string]struct {
		mark  int64
		parts []part
		want  time.Duration // 0: no estimate
		off   float64       // the tolerated factor
	}{
		// (50 000 - 60×20 - 40 000) / 20
		"steady, above the longest wait of producers": {50_000, []part{{60, 0.05, 1, false}}, 440 * time.Second, 1.1},
		// (50 000 - 6×200 - 40 000) / 20, less the time since the last step
		"batches": {50_000, []part{{65, 10, 200, false}}, 435 * time.Second, 1.2},
		// (100 - 10 - 80) / 0.1
		"slow": {100, []part{{100, 10, 1, false}}, 100 * time.Second, 1.2},
		// (50 000 - 100×5 - 40 000) / 5
		"random": {50_000, []part{{100, 0.2, 1, true}}, 1900 * time.Second, 1.5},
		// (50 000 - 100×20 - 40 000) / 20: the pause before counts not
		"after a pause": {50_000, []part{{600, 0, 0, false}, {100, 0.05, 1, false}}, 400 * time.Second, 1.1},
		// (50 000 - 100×40 - 50×20 - 40 000) / 20
		"twice as fast before":     {50_000, []part{{100, 0.025, 1, false}, {50, 0.05, 1, false}}, 250 * time.Second, 1.1},
		"ten times as fast before": {50_000, []part{{100, 0.025, 1, false}, {50, 0.25, 1, false}}, 0, 0},
		"just begun":               {50_000, []part{{9, 0.05, 1, false}}, 0, 0},
		"stopped":                  {50_000, []part{{60, 0.05, 1, false}, {60, 0, 0, false}}, 0, 0},
		"nothing drains":           {50_000, []part{{60, 0, 0, false}}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(7, 0))
			var b Backlog
			var drain Drain
			now, value, marks := time.Now(), Amount{ByMessages: c.mark}, Amount{ByMessages: c.mark}
			b.Update(value, marks, now)
			for _, p := range c.parts {
				end := now.Add(time.Duration(p.seconds * float64(time.Second)))
				for p.every > 0 {
					gap := p.every
					if p.random {
						gap *= rnd.ExpFloat64()
					}
					at := now.Add(time.Duration(gap * float64(time.Second)))
					if at.After(end) {
						break
					}
					now = at
					value[ByMessages] -= p.batch
					drain.Add(p.batch, 0, true, now)
					b.Update(value, marks, now)
				}
				for ; now.Before(end.Add(-time.Second)); now = now.Add(time.Second) {
					b.Update(value, marks, now)
				}
				now = end
			}
			resume := resumeMark(c.mark)
			messages, _ := drain.Rate(now)
			got := b.Expect(ByMessages, value, marks, Draining{Messages: messages}.Until(ByMessages, value, resume), now)
			if c.want == 0 {
				assert.That(t, got == (Range{}), "the estimate is %v to %v, want none", got.Least, got.Most)
				return
			}
			if got.Least == 0 || got.Least.Seconds() > c.want.Seconds()*c.off || got.Most.Seconds() < c.want.Seconds()/c.off || got.Most > steady*got.Least {
				t.Errorf("the estimate is %v to %v, the simulated drain takes %v", got.Least, got.Most, c.want)
			}
		})
	}
}

func TestFairnessTake(t *testing.T) {
	now := time.Now()
	t.Run("alone", func(t *testing.T) {
		var f fairness
		for range 1000 {
			if _, ok := f.take("a", 1, 0, 0, now); !ok {
				t.Fatal("a single client has to share")
			}
		}
	})
	t.Run("space, then rate", func(t *testing.T) {
		var f fairness
		f.see("a", now)
		f.see("b", now)
		n := 0
		for ; n < 100; n++ {
			wait, ok := f.take("a", 1, 40, 4, now)
			if !ok {
				assert.Equal(t, "the wait for the next token is", wait, 500*time.Millisecond)
				break
			}
		}
		if n != 10 { // a quarter of the room
			t.Errorf("%d at once, want 10", n)
		}
		if _, ok := f.take("b", 1, 40, 4, now); !ok {
			t.Error("the share of another client was used")
		}
		if _, ok := f.take("a", 1, 40, 4, now.Add(500*time.Millisecond)); !ok {
			t.Error("no token after the returned wait")
		}
	})
	t.Run("a client that left does not count", func(t *testing.T) {
		var f fairness
		f.see("a", now)
		f.take("b", 1, 2, 1, now)
		later := now.Add(fairWindow + 2*time.Second)
		f.take("b", 1, 2, 1, later)
		assert.Equal(t, "clients", len(f.clients), 1)
	})
	t.Run("bounded", func(t *testing.T) {
		var f fairness
		for i := range 3 * maxSharers {
			f.see(fmt.Sprint(i), now)
		}
		assert.That(t, len(f.clients) <= maxSharers+1, "%d clients have entries of their own", len(f.clients))
	})
}

// TestAgeLook checks that Look calls oldest as often as the limit needs, and not more often.
func TestAgeLook(t *testing.T) {
	for _, c := range []struct{ limit, every time.Duration }{
		{time.Second, 20 * time.Millisecond}, {time.Hour, 100 * time.Millisecond}, {time.Millisecond, time.Millisecond},
	} {
		var a Age
		start := time.Now()
		looks := 0
		stored := start.Add(-time.Hour).UnixNano()
		look := func(now time.Time) { a.Look(now, c.limit, func() int64 { looks++; return stored }) }
		assert.Equal(t, "one that was never looked at is", a.At(start), 0)
		look(start)
		look(start.Add(c.every - 1))
		if looks != 1 || a.At(start.Add(time.Second)) != time.Hour+time.Second {
			t.Errorf("limit %v: looked at %d times within %v, it is %v", c.limit, looks, c.every, a.At(start.Add(time.Second)))
		}
		look(start.Add(c.every))
		assert.That(t, looks == 2, "limit %v: looked at %d times in %v", c.limit, looks, c.every)
		if stored = 0; a.At(start) == 0 {
			t.Error("the age changes between two calls")
		}
		if look(start.Add(time.Minute)); a.At(start.Add(time.Minute)) != 0 {
			t.Errorf("of nothing it is %v", a.At(start.Add(time.Minute)))
		}
	}
}

// TestAgeLookWithinLook checks that oldest may call Look.
func TestAgeLookWithinLook(t *testing.T) {
	var a Age
	now := time.Now()
	a.Look(now, time.Second, func() int64 {
		a.Look(now, time.Second, func() int64 { t.Error("two look at once"); return 0 })
		return 1
	})
}

// TestAgeFall checks that the fall is the progress of the consumers per second, less one second.
func TestAgeFall(t *testing.T) {
	for _, speed := range []float64{0, 0.5, 1, 3, 100} { // seconds of stored time a second
		var a Age
		start := time.Now()
		now := start
		for step := range 600 { // a minute
			now = start.Add(time.Duration(step) * 100 * time.Millisecond)
			stored := start.Add(-time.Hour).Add(time.Duration(speed * float64(now.Sub(start))))
			a.Look(now, time.Hour, stored.UnixNano)
			if got := a.Fall(); step > 10 && (got < speed-1-speed*0.01 || got > speed-1+speed*0.01) {
				t.Fatalf("at a speed of %g the age falls by %g after %v", speed, got, now.Sub(start))
			}
		}
		a.Look(now.Add(time.Second), time.Hour, func() int64 { return 0 })
		assert.Equal(t, "with nothing there the age falls by", a.Fall(), -1)
	}
}

// TestAges adds and removes messages at random. Ages must return the oldest message, exact to a
// tick, and must have few entries without messages.
func TestAges(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var a Ages
		var there []int64
		clock := int64(1_700_000_000) * int64(time.Second)
		for step := range 500 {
			switch {
			case len(there) == 0 || rnd.IntN(5) < 2+int(seed%2):
				clock += rnd.Int64N(2 * AgeTick)
				stored := clock
				if rnd.IntN(20) == 0 {
					stored -= rnd.Int64N(50 * AgeTick) // the clock was set back
				}
				a.Add(stored)
				there = append(there, stored)
			default:
				i := rnd.IntN(len(there))
				if rnd.IntN(3) > 0 {
					i = 0
				}
				a.Remove(there[i])
				there = slices.Delete(there, i, i+1)
			}
			empty := 0
			for _, e := range a.entries {
				if e.n == 0 {
					empty++
				}
			}
			if a.empty != empty { // otherwise each removal would copy all entries
				t.Fatalf("seed %d, step %d: %d entries without messages are counted, there are %d", seed, step, a.empty, empty)
			}
			if len(there) == 0 {
				assert.MustThat(t, a.Oldest() == 0 && len(a.entries) == 0, "seed %d, step %d: %+v, want nothing", seed, step, a)
				continue
			}
			if got, want := a.Oldest()/AgeTick, slices.Min(there)/AgeTick; got != want {
				t.Fatalf("seed %d, step %d: the oldest is of tick %d, want %d", seed, step, got, want)
			}
			assert.MustThat(t, len(a.entries) <= 2*len(there)+1,
				"seed %d, step %d: %d entries for %d messages", seed, step, len(a.entries), len(there))
		}
	}
}
