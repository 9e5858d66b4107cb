package throttle

import (
	"math/rand/v2"
	"testing"
	"time"
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
		if on != c.on || on && m != c.m {
			t.Fatalf("step %d: %v refuses (%v), want %v (%v)", i, m, on, c.m, c.on)
		}
		if !on {
			continue
		}
		want := State{On: true, Value: c.value[m], Mark: marks[m], Resume: marks[m] * 8 / 10, Since: at(c.since)}
		if s := b.State(m, c.value, marks); s != want {
			t.Errorf("step %d: %+v, want %+v", i, s, want)
		}
	}
	if s := b.State(ByBytes, Amount{}, marks); s.On || !s.Since.IsZero() {
		t.Errorf("a measure without a limit is %+v", s)
	}
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
			if _, is := b.Update(value, marks, now); is != on {
				t.Fatalf("%v at %d: %v", c.m, v, is)
			}
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
		if b.Sharing() {
			t.Error("a zero value shares")
		}
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
		if m, _ := sends("b"); m != n {
			t.Errorf("%v: one has %d, the other %d", c.m, n, m)
		}
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

// TestBacklogSharesOneLimit checks that the room of the first ended limit is shared, and that no
// room is shared while another limit rejects sends.
func TestBacklogSharesOneLimit(t *testing.T) {
	var b Backlog
	now := time.Now()
	marks := Amount{1000, 1000, 1000}
	for i, c := range []struct {
		value   Amount
		sharing bool
		say     Measure
	}{
		{Amount{1000, 1000, 1000}, false, 0},
		{Amount{800, 800, 801}, false, 0},
		{Amount{800, 800, 800}, true, ByMessages},
		{Amount{640, 800, 800}, true, ByBytes},
		{Amount{640, 640, 800}, true, ByMessages}, // by age
		{Amount{640, 640, 640}, false, 0},
	} {
		b.Update(c.value, marks, now)
		if b.Sharing() != c.sharing {
			t.Fatalf("step %d: shared: %v", i, b.Sharing())
		}
		if !c.sharing {
			b.Wait("a", now)
			b.Wait("b", now)
			continue
		}
		ok, share := true, Share{}
		for range 1000 {
			if share, ok = b.Share("a", 1, c.value, marks, 1, 1, now); !ok {
				break
			}
		}
		if ok || share.Measure != c.say {
			t.Errorf("step %d: %+v (%v)", i, share, ok)
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
	if share, ok := b.Share("a", 1, Amount{ByAge: 800}, marks, 0, 0, now); ok || share.RetryAfter != 20*time.Second {
		t.Errorf("the second one: %v, %+v", ok, share)
	}
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
		if got := c.drains.Until(c.m, c.backlog, 100); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestBacklogProperties changes backlogs at random. A limit must turn on at its mark and not below,
// and turn off at ResumePercent and not above. Its state must have a time while it is on.
func TestBacklogProperties(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var b Backlog
		var before [Measures]bool
		var value, marks Amount
		for m := range marks {
			marks[m] = rnd.Int64N(1 << rnd.IntN(62))
		}
		for range 100 {
			m := rnd.IntN(int(Measures))
			value[m] = rnd.Int64N(2*marks[m] + 2)
			first, on := b.Update(value, marks, time.Now())
			for m := range Measures {
				s := b.State(m, value, marks)
				switch {
				case marks[m] == 0 && s.On, value[m] >= marks[m] && marks[m] > 0 && !s.On, s.On && value[m] <= s.Resume,
					s.On && !before[m] && value[m] < marks[m], !s.On && before[m] && value[m] > s.Resume, s.On == s.Since.IsZero(),
					s.On && (!on || first > m):
					t.Fatalf("%v at %d of %d: %+v, before %v; first %v", m, value[m], marks[m], s, before[m], first)
				}
				before[m] = s.On
			}
		}
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
		if got := UntilAll(ByMessages, Amount{ByMessages: c.waiting}, c.groups, 80); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
