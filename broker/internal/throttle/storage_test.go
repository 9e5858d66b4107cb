package throttle

import (
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

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
					if l.is.On == l.is.Since.IsZero() || !l.is.On && l.is.RetryAfter != 0 {
						t.Errorf("step %d: %s is %+v", i, l.name, l.is)
					}
				}
				if got := strings.Join(on, " "); got != step.on {
					t.Errorf("step %d: %q refuse sends, want %q", i, got, step.on)
				}
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
		if free, stalled, debt := s.Update(limits, is, now); free.On != on || stalled.On != on || debt.On != on {
			t.Errorf("with limits %+v: %+v, %+v, %+v", limits, free, stalled, debt)
		}
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

func TestTrend(t *testing.T) {
	var tr trend
	start := time.Now()
	if tr.observe(100, start); tr.fall != 0 {
		t.Errorf("one sample shows a fall of %g", tr.fall)
	}
	for i := 1; i <= 40; i++ {
		tr.observe(100-2*float64(i), start.Add(time.Duration(i)*time.Second))
		if tr.fall < 1.99 || tr.fall > 2.01 {
			t.Fatalf("after %d s the fall is %g, want 2", i, tr.fall)
		}
	}
	tr.observe(1e9, tr.at) // the same moment again
	if tr.value != 20 {
		t.Errorf("the value is %g", tr.value)
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
		if got := ConditionOf(c.limits, c.disk > 0, c.disk); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
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
		if got := Stale(c.age, c.written, c.stalled); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}
