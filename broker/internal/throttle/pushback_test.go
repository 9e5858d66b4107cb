package throttle

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
)

func TestPushBack(t *testing.T) {
	for _, c := range []struct {
		excess int64
		rate   float64
		want   time.Duration
	}{
		{100, 0, 0}, {100, -1, 0}, {100, 50, 2 * time.Second}, {1, 1e9, minPushBack}, {1 << 60, 1e-9, maxPushBack}, {0, 5, minPushBack},
	} {
		got := pushBack(c.excess, c.rate)
		assert.That(t, got == c.want, "pushBack(%d, %g) = %v, want %v", c.excess, c.rate, got, c.want)
	}
}

// For any measured values, the estimate is 0 or within the bounds. It is never shorter for a larger
// excess or for a slower drain.
func FuzzPushBack(f *testing.F) {
	f.Add(int64(100), 50.0)
	f.Add(int64(math.MaxInt64), math.SmallestNonzeroFloat64)
	f.Add(int64(-1), math.NaN())
	f.Add(int64(1), math.Inf(1))
	f.Fuzz(func(t *testing.T, excess int64, rate float64) {
		d := pushBack(excess, rate)
		assert.MustThat(t, (d == 0 || d == Bound(d)) && (d != 0 || rate <= 0), "pushBack(%d, %g) = %v", excess, rate, d)
		if excess > 0 && rate > 0 && (pushBack(excess/2, rate) > d || pushBack(excess, rate/2) < d && rate/2 > 0) {
			t.Fatalf("pushBack(%d, %g) = %v; of half as much %v, half as fast %v", excess, rate, d, pushBack(excess/2, rate), pushBack(excess, rate/2))
		}
	})
}

// TestPaceOfSteadyDrains checks that the rate of a steady drain is right within a factor of two at
// any moment, and soon 0 after the drain has stopped. The drains have from one message in 100 s to
// 100 000 messages per second. The consumers acknowledge single messages, whole batches, or the
// messages of a batch one by one.
func TestPaceOfSteadyDrains(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	exp := func(from, to float64) float64 { return from * math.Exp(rnd.Float64()*math.Log(to/from)) }
	for range 1000 {
		rate, batch := exp(0.01, 100_000), int(exp(1, 1001))
		every := float64(batch) / rate // seconds
		spread := 0.0                  // seconds in which the messages of a batch are acknowledged one by one
		if rnd.IntN(2) == 0 {
			spread = min(rnd.Float64()*every, 4)
		}
		what := fmt.Sprintf("%g a second, %d each %g s, in %g s", rate, batch, every, spread)
		var p pace
		start := time.Now()
		at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
		steps := min(4+int(1/every), 200)
		if every < 0.01 {
			steps = 4 + int(0.3/every)
		}
		check := func(i int, seconds float64) {
			t.Helper()
			got, bytes := p.rate(at(seconds))
			assert.MustThat(t, i < 3 || seconds <= 0.25 || got >= rate/2 && got <= rate*2 && math.Abs(bytes/got-7) <= 0.001,
				"%s: after %g s, in step %d, it is %g messages and %g bytes a second", what, seconds, i, got, bytes)
		}
		last := 0.0
		for i := range steps {
			parts := 1
			if spread > 0 {
				parts = batch
			}
			for j := range parts {
				last = float64(i)*every + spread*float64(j)/float64(parts)
				p.add(float64(batch/parts), float64(batch/parts)*7, true, at(last))
				if j < 3 || j%100 == 0 {
					check(i, last)
				}
			}
			for range 3 {
				check(i, last+rnd.Float64()*(float64(i+1)*every-last))
			}
		}
		before, _ := p.rate(at(last))
		for s := last; ; s += max(every, 5) / 4 {
			got, _ := p.rate(at(s))
			if got > before*1.1 { // the steps before were not all alike
				t.Fatalf("%s: the rate grows from %g to %g once it has stopped", what, before, got)
			}
			if before = got; got == 0 {
				break
			}
			assert.MustThat(t, s <= last+5*max(every, 5), "%s: %g s after it stopped the rate is %g", what, s-last, got)
		}
	}
}

// TestPaceOfRandomDrains checks drains with steps at random moments: nine of ten rates are right
// within a factor of three.
func TestPaceOfRandomDrains(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, rate := range []float64{0.01, 0.3, 10, 1000} {
		var p pace
		now, wrong := time.Now(), 0
		for range 10_000 {
			now = now.Add(time.Duration(rnd.ExpFloat64() / rate * float64(time.Second)))
			p.add(1, 1, true, now)
			if got, _ := p.rate(now.Add(time.Duration(rnd.Float64() / rate * float64(time.Second)))); got < rate/3 || got > rate*3 {
				wrong++
			}
		}
		assert.That(t, wrong <= 1000, "at %g a second it is wrong %d times of 10 000", rate, wrong)
	}
}

// TestPaceThatChanges checks that earlier rates and pauses soon stop to have an effect.
func TestPaceThatChanges(t *testing.T) {
	for name, c := range map[string]struct {
		before float64 // a second
		idle   bool
		pause  time.Duration
		after  time.Duration // from then on it is right
	}{
		"first of all":           {},
		"idle for a while":       {before: 1000, idle: true, pause: 15 * time.Second},
		"idle for long":          {before: 1000, idle: true, pause: 15 * time.Hour},
		"stopped":                {before: 1000, pause: time.Hour},
		"slower before":          {before: 0.1, after: time.Minute},
		"much slower before":     {before: 0.01, after: 15 * time.Minute},
		"faster before":          {before: 100_000, after: 30 * time.Second},
		"slower, then stopped":   {before: 0.1, pause: time.Hour},
		"stopped for a short":    {before: 10, pause: 10 * time.Second, after: 20 * time.Second},
		"idle while it was slow": {before: 0.1, idle: true, pause: time.Hour, after: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			var p pace
			now := time.Now()
			if c.before > 0 {
				for i := range 100 {
					p.add(1, 1, !c.idle || i < 99, now)
					now = now.Add(time.Duration(float64(time.Second) / c.before))
				}
			}
			now = now.Add(c.pause)
			start := now
			for now.Sub(start) < c.after+time.Minute {
				p.add(1, 1, true, now)
				now = now.Add(100 * time.Millisecond)
				if got, _ := p.rate(now); now.Sub(start) > c.after+500*time.Millisecond && (got < 5 || got > 20) {
					t.Fatalf("%v after it became 10 a second it is %g", now.Sub(start), got)
				}
			}
		})
	}
}

// TestFlow checks that the rate of a steady flow is right from its first second on, and that it is
// almost 0 two minutes after the flow has ended.
func TestFlow(t *testing.T) {
	for _, rate := range []float64{2, 100, 10_000} {
		var f Flow
		start := time.Now()
		messages, bytes := f.Rate(start)
		assert.That(t, messages == 0 && bytes == 0, "before the first message it is %g, %g", messages, bytes)
		now := start
		for i := range int(30 * rate) {
			now = start.Add(time.Duration(float64(i) / rate * float64(time.Second)))
			f.Add(1, 7, now)
			if i%97 > 0 || now.Sub(start) < time.Second {
				continue
			}
			messages, bytes := f.Rate(now)
			if math.Abs(messages/rate-1) > 0.5 || now.Sub(start) > 10*time.Second && math.Abs(messages/rate-1) > 0.15 || math.Abs(bytes/messages-7) > 0.001 {
				t.Fatalf("%g a second is measured as %g messages and %g bytes after %v", rate, messages, bytes, now.Sub(start))
			}
		}
		messages, bytes = f.Rate(now.Add(2 * time.Minute))
		assert.That(t, messages <= 0.1 && bytes <= 1, "two minutes after its end it is %g, %g", messages, bytes)
	}
	var f Flow
	now := time.Now()
	f.Add(50, 5000, now)
	if messages, bytes := f.Rate(now); messages < 49 || messages > 60 || bytes != 100*messages {
		t.Errorf("50 at once are measured as %g a second, %g bytes", messages, bytes)
	}
}

// A message is accepted after the wait that its rejection has returned.
func TestRateWaitIsRight(t *testing.T) {
	now := time.Now()
	for _, limit := range []RateLimit{{MessagesPerSecond: 3}, {BytesPerSecond: 7}, {MessagesPerSecond: 0.25, BytesPerSecond: 1e6}, {MessagesPerSecond: 1e5, Burst: 1}} {
		var r Rate
		refused := 0
		for range 100 {
			m, wait := r.Take(limit, 5, now)
			if wait == 0 {
				continue
			}
			refused++
			s := r.Refused(m, wait, limit, now)
			assert.MustThat(t, s.On && s.Since == now && s.Mark == int64(math.Ceil(limit.of(m))),
				"%+v: refused at %v with %+v", limit, now, s)
			now = now.Add(s.RetryAfter)
			_, again := r.Take(limit, 5, now)
			assert.MustThat(t, again <= 0, "%+v: the push-back is %v, and then %v more", limit, s.RetryAfter, again)
		}
		assert.That(t, refused != 0, "%+v: nothing was refused", limit)
	}
}

// A limit that rejects only large messages is not on.
func TestRateState(t *testing.T) {
	var r Rate
	now := time.Now()
	limit := RateLimit{BytesPerSecond: 100}
	r.Take(limit, 50, now)
	m, wait := r.Take(limit, 80, now)
	if s := r.Refused(m, wait, limit, now); m != ByBytes || !s.On || s.Since != now || s.RetryAfter != 300*time.Millisecond || s.Mark != 100 {
		t.Errorf("80 bytes more are refused by %v with %+v", m, s)
	}
	if s := r.State(ByBytes, limit, now); s.On || !s.Since.IsZero() || s.RetryAfter != 0 || s.Value < 100 || s.Value > 160 {
		t.Errorf("50 bytes would be accepted, and it is %+v", s)
	}
	r = Rate{}
	r.Take(limit, 150, now) // more bytes than the limit of one second: 50 are owed
	m, wait = r.Take(limit, 0, now)
	if s := r.Refused(m, wait, limit, now); m != ByBytes || wait != 500*time.Millisecond || s.RetryAfter != 510*time.Millisecond {
		t.Errorf("a message without a body waits %v, one with a byte %v", wait, s.RetryAfter)
	}
	s := r.State(ByBytes, limit, now)
	assert.That(t, s.On && s.Since == now && s.RetryAfter == 510*time.Millisecond, "while it owes it is %+v", s)
}

func TestBurst(t *testing.T) {
	for _, c := range []struct {
		perSecond   float64
		burst, want int
	}{{10, 0, 10}, {10, 3, 3}, {0.1, 0, 1}, {10.5, 0, 11}, {1e300, 0, math.MaxInt32}} {
		got := Burst(c.perSecond, c.burst)
		assert.That(t, got == c.want, "Burst(%g, %d) = %d, want %d", c.perSecond, c.burst, got, c.want)
	}
}

// The rate is that of the last seconds if it is read often, and that since the last look if
// it is read at least once a minute.
func TestSampled(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	type look struct {
		at    float64 // seconds after the start
		total int64
		want  float64
	}
	for name, looks := range map[string][]look{
		"first look":             {{0, 1000, 0}},
		"steady":                 {{0, 0, 0}, {1, 10, 10}, {2, 20, 10}, {7, 70, 10}, {13, 130, 10}, {40, 400, 10}, {99, 990, 10}},
		"each minute":            {{0, 0, 0}, {60, 600, 10}, {120, 600, 0}, {180, 1200, 10}},
		"a long pause":           {{0, 0, 0}, {10, 100, 10}, {3600, 36000, 0}, {3601, 36007, 7}},
		"burst is forgotten":     {{0, 0, 0}, {1, 1000, 1000}, {6, 1000, 1000. / 6}, {11, 1000, 1000. / 11}, {12, 1000, 0}},
		"same moment":            {{0, 5, 0}, {0, 5, 0}, {1, 6, 1}},
		"clock goes back":        {{100, 100, 0}, {50, 110, 0}, {51, 112, 2}},
		"counter of a new topic": {{0, 100, 0}, {1, 0, 0}, {2, 10, 0}},
	} {
		var s Sampled
		for i, l := range looks {
			got := s.Rate(l.total, start.Add(time.Duration(l.at*float64(time.Second))))
			assert.That(t, math.Abs(got-l.want) <= 1e-9, "%s, look %d: %g, want %g", name, i, got, l.want)
		}
	}
}

func TestStorage(t *testing.T) {
	const gib = 1 << 30
	type step struct {
		is Condition
		on string // the limits that reject sends
	}
	free := func(n int64, on string) step { return step{Condition{Free: n}, on} }
	debt := func(n int64, on string) step { return step{Condition{Debt: n}, on} }
	stall := func(d time.Duration, on string) step { return step{Condition{Stalled: d}, on} }
	for name, c := range map[string]struct {
		limits Condition
		steps  []step
	}{
		"free disk":     {Condition{Free: gib}, []step{free(gib, ""), free(gib-1, "free"), free(gib+gib/4-1, "free"), free(gib+gib/4, ""), free(gib, "")}},
		"free disk off": {Condition{}, []step{free(0, "")}},
		"debt":          {Condition{Debt: 1000}, []step{debt(999, ""), debt(1000, "debt"), debt(801, "debt"), debt(800, ""), debt(999, "")}},
		"debt off":      {Condition{}, []step{debt(1<<62, "")}},
		"stall":         {Condition{Stalled: 3 * time.Second}, []step{stall(3*time.Second-1, ""), stall(3*time.Second, "stall"), stall(0, "")}},
		"stall off":     {Condition{}, []step{stall(time.Hour, "")}},
		"all": {Condition{Free: 1000, Debt: 1000, Stalled: time.Second}, []step{
			{Condition{Free: 1000}, ""}, {Condition{Free: 999, Debt: 1000, Stalled: time.Second}, "free stall debt"}, {Condition{Free: 1249, Debt: 801}, "free debt"}, free(1250, ""),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var s Storage
			now := time.Now()
			for i, step := range c.steps {
				now = now.Add(time.Second)
				free, stalled, debt := s.Update(c.limits, step.is, now)
				var on []string
				for _, l := range []struct {
					name string
					is   State
				}{{"free", free}, {"stall", stalled}, {"debt", debt}} {
					if l.is.On {
						on = append(on, l.name)
					}
					assert.That(t, l.is.On != l.is.Since.IsZero() && (l.is.On || l.is.RetryAfter == 0),
						"step %d: %s is %+v", i, l.name, l.is)
				}
				got := strings.Join(on, " ")
				assert.That(t, got == step.on, "step %d: %q refuse sends, want %q", i, got, step.on)
			}
		})
	}
}

// A limit that is removed while it rejects sends ends at once.
func TestStorageWithoutLimits(t *testing.T) {
	var s Storage
	now := time.Now()
	is := Condition{Debt: 1, Stalled: 1}
	for _, on := range []bool{true, false, true} {
		limits := Condition{}
		if on {
			limits = Condition{Free: 1, Debt: 1, Stalled: 1}
		}
		free, stalled, debt := s.Update(limits, is, now)
		assert.That(t, free.On == on && stalled.On == on && debt.On == on, "with limits %+v: %+v, %+v, %+v", limits, free, stalled, debt)
	}
}

// If the debt shrinks steadily, or the free disk space grows steadily, RetryAfter is the time until
// the limit ends.
func TestStoragePushBack(t *testing.T) {
	var s Storage
	now := time.Now()
	for debt, free := int64(1000), int64(799); ; debt, free = debt-10, free+1 {
		now = now.Add(time.Second)
		f, _, d := s.Update(Condition{Free: 800, Debt: 1000}, Condition{Free: free, Debt: debt}, now)
		if !d.On {
			break
		}
		if want := time.Duration(debt-800) * time.Second / 10; debt < 1000 && (d.RetryAfter-want).Abs() > time.Millisecond {
			t.Fatalf("at a debt of %d the push-back is %v, want %v", debt, d.RetryAfter, want)
		}
		if want := min(time.Duration(1000-free)*time.Second, maxPushBack); debt < 1000 && (f.RetryAfter-want).Abs() > time.Millisecond {
			t.Fatalf("with %d free the push-back is %v, want %v", free, f.RetryAfter, want)
		}
	}
}

// The default of Free depends on the size of the disk. A storage that is not on a disk has no limit
// for it.
func TestStorageLimits(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		limits settings.Pressure
		disk   int64 // size of the disk; 0 means no disk
		want   Condition
	}{
		"1 GiB free":             {settings.Pressure{}, 100 * gib, Condition{Free: gib, Debt: 64 * gib, Stalled: time.Second}},
		"a small disk: 5 %":      {settings.Pressure{}, 10 * gib, Condition{Free: gib / 2, Debt: 64 * gib, Stalled: time.Second}},
		"a smaller one: 256 MiB": {settings.Pressure{}, 2 * gib, Condition{Free: gib / 4, Debt: 64 * gib, Stalled: time.Second}},
		"200 MB: an eighth":      {settings.Pressure{}, 200e6, Condition{Free: 25e6, Debt: 64 * gib, Stalled: time.Second}},
		"no disk":                {settings.Pressure{MinFreeDisk: 1}, 0, Condition{Debt: 64 * gib, Stalled: time.Second}},
		"all set":                {settings.Pressure{MinFreeDisk: 1, MaxCompactionDebt: 2, MaxWriteStall: 3}, gib, Condition{Free: 1, Debt: 2, Stalled: 3}},
		"all off":                {settings.Pressure{MinFreeDisk: -1, MaxCompactionDebt: -1, MaxWriteStall: -1}, gib, Condition{}},
	} {
		got := ConditionOf(c.limits, c.disk > 0, c.disk)
		assert.That(t, got == c.want, "%s: %+v, want %+v", name, got, c.want)
	}
}

// The state is read often while writes are stalled. Otherwise it is read from time to time, and
// after many written bytes.
func TestStale(t *testing.T) {
	for _, c := range []struct {
		age     time.Duration
		written int64
		stalled bool
		want    bool
	}{
		{0, 0, false, false},
		{askEvery - 1, askBytes - 1, false, false},
		{askEvery, 0, false, true},
		{0, askBytes, false, true},
		{stallEvery - 1, 0, true, false},
		{stallEvery, 0, true, true},
		{-1, 0, false, true},
	} {
		got := Stale(c.age, c.written, c.stalled)
		assert.That(t, got == c.want, "%+v: %t", c, got)
	}
}

func TestCold(t *testing.T) {
	for _, c := range []struct {
		before                        bool
		rate, limit, behind, distance int64
		want                          bool
	}{
		{false, 1000, 1000, 101, 100, true},
		{false, 999, 1000, 101, 100, false},  // slow enough
		{false, 1000, 1000, 100, 100, false}, // near the end
		{true, 801, 1000, 81, 100, true},
		{true, 800, 1000, 81, 100, false},
		{true, 5000, 1000, 80, 100, false},
		{false, 1 << 60, 0, 1 << 60, 100, false}, // no limit
		{true, 1 << 60, 0, 1 << 60, 100, false},
	} {
		got := cold(c.before, ColdReads{perSecond: c.rate, behind: c.behind}, ColdLimit{c.limit, c.distance})
		assert.That(t, got == c.want, "%+v: %v", c, got)
	}
}

// TestColdReads checks that all groups that are far behind count, and that the estimate is that of
// the slowest group.
func TestColdReads(t *testing.T) {
	limit := ColdLimit{PerSecond: 100, Distance: 1000}
	assert.That(t, !limit.Far(800) && limit.Far(801), "near the end is where a throttle ends: at 800 of 1000")
	var reads ColdReads
	reads.Add(limit, 5000, 40)
	reads.Add(limit, 1800, 70)
	reads.Add(limit, 900, 0)
	var c Cold
	now := time.Now()
	want := State{On: true, Value: 110, Mark: 100, Resume: 80, Since: now, RetryAfter: 105 * time.Second}
	assert.Equal(t, "c.Update(limit, reads, now)", c.Update(limit, reads, now), want)
	reads = ColdReads{}
	reads.Add(limit, 4900, 80)
	want = State{Value: 80, Mark: 100, Resume: 80}
	s := c.Update(limit, reads, now.Add(time.Second))
	assert.That(t, s == want, "%+v, want %+v", s, want)
}
