package bench

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/assert"
)

func near(t *testing.T, name string, gotMicros float64, want, tolerance time.Duration) {
	t.Helper()
	got := time.Duration(gotMicros * 1e3)
	assert.That(t, (got-want).Abs() <= tolerance, "%s is %v, want %v ± %v", name, got, want, tolerance)
}

// single is an operation of one message that ends before it returns.
func single(op func(context.Context) (failure string)) Operation {
	return func(ctx context.Context, done func(Outcome)) {
		if failure := op(ctx); failure != "" {
			done(Outcome{Failures: []string{failure}})
			return
		}
		done(Outcome{Messages: 1})
	}
}

// A server hangs for one second in ten, at 1 000 operations a second. A tenth of the operations is
// due in the stall. An operation that is due x before the end of the stall waits for x. So the p90
// is 0, the p95 is half a second and the p99 is 900 ms. A generator that waits for its responses
// would have measured one slow operation for each caller.
func TestStallIsMeasuredFromTheDueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		op := func(context.Context) string {
			if now := time.Since(start); now%(10*time.Second) >= 9*time.Second {
				time.Sleep(10*time.Second - now%(10*time.Second))
			}
			return ""
		}
		r, err := Run(t.Context(), Options{Callers: 2000, Rate: 1000, Arrivals: Even, Duration: 60 * time.Second, Outstanding: 1000}, single(op))
		assert.MustThat(t, err == nil && r.Invalid == "" && r.Done == 60000, "%v, invalid %q, %d done", err, r.Invalid, r.Done)
		near(t, "p50", r.Response.P50, 0, time.Millisecond)
		near(t, "p90", r.Response.P90, 0, 5*time.Millisecond)
		near(t, "p99", r.Response.P99, 900*time.Millisecond, 10*time.Millisecond)
		near(t, "max", r.Response.Max, time.Second, 5*time.Millisecond)
		near(t, "the worst second's p99", r.WorstP99, 990*time.Millisecond, 15*time.Millisecond)
	})
}

// With one caller the operations that become due in the stall wait in turn. The response time
// includes this wait, the service time does not.
func TestWaitsForACallerCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := true
		op := func(context.Context) string {
			if first {
				first = false
				time.Sleep(time.Second)
			}
			return ""
		}
		r := assert.Value(Run(t.Context(), Options{Callers: 1, Rate: 100, Arrivals: Even, Duration: 10 * time.Second, Outstanding: 1000}, single(op)))(t)
		near(t, "the response's p99", r.Response.P99, 900*time.Millisecond, 20*time.Millisecond)
		near(t, "the service's p99", r.Service.P99, 0, time.Millisecond)
		assert.Equal(t, "the run is; its figures are those of one caller", r.Invalid, "")
	})
}

// Five milliseconds for one caller are 200 operations a second, and not 250.
func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := func(context.Context) string { time.Sleep(5 * time.Millisecond); return "" }
		r, err := Run(t.Context(), Options{Callers: 1, Rate: 250, Arrivals: Even, Duration: 10 * time.Second, Outstanding: 100}, single(op))
		assert.That(t, err == nil && strings.HasPrefix(r.Invalid, "OVERLOADED"), "%v, invalid %q, want overloaded", err, r.Invalid)
		r, err = Run(t.Context(), Options{Callers: 1, Rate: 0, Arrivals: Even, Duration: 10 * time.Second, Outstanding: 1}, single(op))
		if err != nil || math.Abs(r.Achieved-200) > 1 || r.Response != nil {
			t.Errorf("a closed loop: %v, %v a second, response %v; want 200 and no response", err, r.Achieved, r.Response)
		}
	})
}

// A generator that is late measures itself: the run has no figures.
func TestLateGenerator(t *testing.T) {
	o := Options{Rate: 100, Outstanding: 10}
	for _, c := range []struct {
		name         string
		late, median time.Duration
		valid        bool
	}{
		{"in time", 100 * time.Microsecond, 300 * time.Microsecond, true},
		{"late", 2 * time.Millisecond, 10 * time.Millisecond, false},
		{"late, and the response is long", 2 * time.Millisecond, 100 * time.Millisecond, true},
	} {
		if got := invalid(o, Round{Achieved: 100}, c.late, c.median, false); (got == "") != c.valid {
			t.Errorf("%s: %q, want valid %v", c.name, got, c.valid)
		}
	}
}

// Failures are counted by cause and are no latency.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		n := 0
		op := func(context.Context) string {
			time.Sleep(time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if n++; n%10 == 0 {
				return "throttled"
			}
			return ""
		}
		r, err := Run(t.Context(), Options{Callers: 10, Rate: 100, Arrivals: Poisson, Duration: 10 * time.Second, Outstanding: 10, Seed: 1}, single(op))
		if total := r.Done + r.Failed["throttled"]; err != nil || r.Failed["throttled"] != total/10 || total < 900 || total > 1100 {
			t.Errorf("%v, %d done, failed %v", err, r.Done, r.Failed)
		}
	})
}

// The end of ctx ends a round, and the error is its cause.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, rate := range []float64{0, 1000} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			op := func(ctx context.Context) string { time.Sleep(time.Millisecond); return "" }
			start := time.Now()
			r, err := Run(ctx, Options{Callers: 2, Rate: rate, Arrivals: Even, Duration: time.Hour, Outstanding: 10}, single(op))
			if err == nil || time.Since(start) > 1100*time.Millisecond || r.Done == 0 {
				t.Errorf("rate %v: %v after %v, %d done", rate, err, time.Since(start), r.Done)
			}
			cancel()
		}
	})
}

// The intervals of Poisson arrivals have the mean of the rate and, as exponential times have, a
// standard deviation equal to the mean.
func TestPoisson(t *testing.T) {
	s := newSchedule(1000, Poisson, 7)
	var sum, squares float64
	last := time.Duration(0)
	const n = 200_000
	for range n {
		at := s.next()
		gap := (at - last).Seconds()
		sum, squares, last = sum+gap, squares+gap*gap, at
	}
	mean := sum / n
	deviation := math.Sqrt(squares/n - mean*mean)
	if math.Abs(mean-0.001) > 0.00001 || math.Abs(deviation-0.001) > 0.00002 {
		t.Errorf("mean %v, standard deviation %v, want 1 ms each", mean, deviation)
	}
}

// A delivery before the acceptance of its send is not a loss. A delivery whose acceptance was never
// reported does not hide a loss.
func TestVerifier(t *testing.T) {
	v := NewVerifier()
	for n := range int64(5) {
		v.Accept(n)
	}
	for _, d := range []struct {
		number int64
		group  string
	}{{1, "a"}, {3, "a"}, {2, "a"}, {1, "a"}, {0, ""}, {700, ""}} {
		v.Deliver(d.number, d.group)
	}
	if got, want := v.Truth(), (Truth{Accepted: 5, Delivered: 5, Lost: 1, Twice: 1, OutOfOrder: 1}); got != want || v.Complete() {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// An asynchronous generator has one goroutine and at most as many operations under way as callers.
func TestAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, rate := range []float64{0, 150} {
			begins, under, most := 0, atomic.Int64{}, atomic.Int64{}
			op := func(_ context.Context, done func(Outcome)) {
				begins++ // no other goroutine begins one
				most.Store(max(most.Load(), under.Add(1)))
				time.AfterFunc(100*time.Millisecond, func() {
					under.Add(-1)
					done(Outcome{Messages: 1})
				})
			}
			r, err := Run(t.Context(), Options{Callers: 20, Rate: rate, Arrivals: Even, Duration: 10 * time.Second, Outstanding: 10, Async: true}, op)
			want := cmp.Or(rate, 200) // 20 callers with 100 ms each
			if err != nil || math.Abs(r.Achieved-want) > 2.5 || most.Load() > 20 || r.Done != int64(begins) || r.Invalid != "" {
				t.Errorf("rate %v: %v, %v a second, %d begun, %d done, %d at once, %q", rate, err, r.Achieved, begins, r.Done, most.Load(), r.Invalid)
			}
		}
	})
}

// An operation of several messages counts each, with its failures, and the last one ends the round.
func TestManyMessagesAndLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		op := func(_ context.Context, done func(Outcome)) {
			time.Sleep(time.Millisecond)
			done(Outcome{Messages: 9, Failures: []string{"throttled"}, Last: n.Add(1) >= 50})
		}
		r, err := Run(t.Context(), Options{Callers: 1, Duration: time.Hour, Outstanding: 1, Arrivals: Even}, op)
		if err != nil || r.Done != 450 || r.Failed["throttled"] != 50 || math.Abs(r.Achieved-9000) > 1 {
			t.Errorf("%v, %d done, %v failed, %v a second", err, r.Done, r.Failed, r.Achieved)
		}
	})
}

// A body has its number for its own run alone, and a changed byte is seen.
func TestNumberOfABody(t *testing.T) {
	b := assert.Value(ParseBodies("uniform:16-200"))(t)
	b.Run = 7
	for n := range int64(300) {
		body := b.Body(n)
		if got, ok := b.Number(body); !ok || got != n {
			t.Fatalf("the body of %d has %d, %v", n, got, ok)
		}
		other := b
		other.Run = 8
		if _, ok := other.Number(body); ok {
			t.Fatalf("a body of another run is accepted")
		}
		body[n%int64(len(body))] ^= 1
		if _, ok := b.Number(body); ok {
			t.Fatalf("byte %d of body %d changed, and it is accepted", n%int64(len(body)), n)
		}
	}
	if _, ok := b.Number([]byte("short")); ok {
		t.Error("a short body is accepted")
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a text with the file testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		assert.Must(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want := assert.Value(os.ReadFile(path))(t)
	assert.That(t, got == string(want), "%s is (-update writes it)\n%s\nwant\n%s", name, got, want)
}

// stalled is the result of two rounds of 20 s, on a server that responds in 2 ms and hangs for one
// second in ten.
func stalled(t *testing.T, callers int, rate float64) (r Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		op := func(context.Context) string {
			if now := time.Since(start); now%(10*time.Second) >= 9*time.Second {
				time.Sleep(10*time.Second - now%(10*time.Second))
			}
			time.Sleep(2 * time.Millisecond)
			return ""
		}
		r = Result{
			Schema: 1, Benchmark: "send", Truth: &Truth{Accepted: 40_000, Delivered: 39_999, Lost: 1},
			Arguments: map[string]string{"callers": fmt.Sprint(callers), "size": "1KiB", "arrivals": "even", "duration": "20s"},
		}
		for range 2 {
			round := assert.Value(Run(t.Context(), Options{Callers: callers, Rate: rate, Arrivals: Even, Duration: 20 * time.Second, Outstanding: 1000}, single(op)))(t)
			round.Floor = 310
			round.Client = Client{CPU: 5, Took: 20, GCs: 7, GCPause: 1530}
			r.Rounds = append(r.Rounds, round)
		}
	})
	return r
}

func TestScreens(t *testing.T) {
	r := stalled(t, 2000, 1000)
	r.Broker = &Broker{Version: "v1.2.3", Disk: 5 << 30, Fsyncs: 3200, FsyncP50: 900, FsyncP99: 12_000}
	r.System = map[string]string{"cpus": "2"}
	r.Rounds[1].Failed = map[string]int64{"TOO_MANY_REQUESTS": 3}
	var b strings.Builder
	assert.Must(t, r.Screen(&b, output.Options{}))
	golden(t, "open.txt", b.String())
	b.Reset()
	closed := stalled(t, 2, 0)
	closed.Truth = nil
	assert.Must(t, closed.Screen(&b, output.Options{}))
	golden(t, "closed.txt", b.String())
	b.Reset()
	r.Rounds[0].Invalid = "OVERLOADED: too many"
	table := output.List[Result]{Rows: []Result{closed, r}, Columns: Columns}
	assert.Must(t, table.Print(&b, &b, output.Options{Format: output.Wide}))
	golden(t, "sweep.txt", b.String())
}

// The 95th percentile of a stall of one second in ten is half a second, in the file of percentiles
// too, and the worst second of the series is the stall.
func TestFilesOfAResult(t *testing.T) {
	r := stalled(t, 2000, 1000)
	h := assert.Value(r.Latencies())(t)
	near(t, "p95", micros(h.ValueAtQuantile(95)), 502*time.Millisecond, 5*time.Millisecond)
	assert.Equal(t, "the rounds together have operations", h.TotalCount(), 40_000)
	for _, s := range r.Rounds[0].Series {
		if stall := s.Second%10 == 9; stall != (s.P99 > 100_000) || s.Done != 1000 {
			t.Errorf("second %+v", s)
		}
	}
	var text strings.Builder
	if err := r.WriteHDR(&text); err != nil || !strings.Contains(text.String(), "#[Max     =     1002.") {
		t.Errorf("%v: the file of percentiles has\n%s", err, text.String()[max(0, len(text.String())-300):])
	}
}

// A server that needs 1 ms for each operation, one at a time, serves at most 1 000 a second within
// the bound.
func TestSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := make(chan struct{}, 1)
		op := func(context.Context) string {
			server <- struct{}{}
			time.Sleep(time.Millisecond)
			<-server
			return ""
		}
		s := Search{High: 5000}
		tries := 0
		for {
			rate, ok := s.Next()
			if !ok {
				break
			}
			tries++
			r := assert.Value(Run(t.Context(), Options{Callers: 1000, Rate: rate, Arrivals: Even, Duration: 2 * time.Second, Outstanding: 10_000}, single(op)))(t)
			s.Tried(rate, Holds(r, 5000))
		}
		if s.Low < 950 || s.Low > 1000 || tries > 10 {
			t.Errorf("after %d tries the highest rate is %.0f, want 950 to 1 000", tries, s.Low)
		}
	})
}

func TestHolds(t *testing.T) {
	round := func(p99, most float64) Round { return Round{Response: &Latency{P99: p99, Max: most}} }
	failed, invalid := round(1, 1), round(1, 1)
	failed.Failed, invalid.Invalid = map[string]int64{"x": 1}, "NOT VALID"
	for name, c := range map[string]struct {
		r    Round
		want bool
	}{
		"fast": {round(5000, 9000), true}, "slow": {round(5001, 9000), false}, "few, fast": {round(-1, 4000), true},
		"few, slow": {round(-1, 6000), false}, "failed": {failed, false}, "invalid": {invalid, false}, "closed loop": {Round{}, false},
	} {
		if got := Holds(c.r, 5000); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestBodies(t *testing.T) {
	file := filepath.Join(t.TempDir(), "body")
	assert.Must(t, os.WriteFile(file, []byte("01234567the rest of it"), 0o600))
	for text, want := range map[string][2]int{"1KiB": {1024, 1024}, "100": {100, 100}, "uniform:20-40": {20, 40}, "file:" + file: {22, 22}} {
		b := assert.Value(ParseBodies(text))(t)
		sizes := map[int]bool{}
		for number := range int64(500) {
			plain := string(b.Plain(number))
			body := b.Body(number)
			if string(b.Plain(number)) != plain || len(plain) != len(body) || &b.Plain(number)[0] != &b.Plain(0)[0] {
				t.Fatalf("%s: the plain body of message %d has %d of %d bytes, was changed, or is not shared", text, number, len(plain), len(body))
			}
			if got, ok := b.Number(body); !ok || got != number || len(body) < want[0] || len(body) > want[1] || len(b.Body(number)) != len(body) {
				t.Fatalf("%s: message %d has %d bytes and the number %d", text, number, len(body), got)
			}
			sizes[len(body)] = true
		}
		assert.That(t, len(sizes) == want[1]-want[0]+1, "%s has %d different sizes", text, len(sizes))
	}
	if b, _ := ParseBodies("file:" + file); !strings.HasSuffix(string(b.Body(7)), " of it") {
		t.Errorf("the body of a file is %q", b.Body(7))
	}
	for _, text := range []string{"15", "much", "uniform:100", "uniform:40-20", "file:/nowhere", "-1", "8GiB"} {
		if _, err := ParseBodies(text); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestFacts(t *testing.T) {
	if got := factOf("vendor_id : x\nmodel name\t: Some CPU: fast\n", "model name"); got != "Some CPU: fast" {
		t.Errorf("the model is %q", got)
	}
	for load, busy := range map[string]bool{"1.9 0 0": false, "2.1 0 0": true, "": false} {
		if got := Busy(map[string]string{"load": load, "cpus": "2"}); (got != "") != busy {
			t.Errorf("load %q: %q", load, got)
		}
	}
}

// The printed result of a run without valid figures begins with the verdict, its cause and the
// remedy.
func TestScreenNamesTheCause(t *testing.T) {
	r := Result{
		Benchmark: "send", Arguments: map[string]string{"arrivals": "even"}, System: map[string]string{"load": "8.11 9.14 14.04", "cpus": "2"},
		Rounds: []Round{{Offered: 10, Response: &Latency{}, Late: &Latency{}}},
	}
	var valid, not strings.Builder
	assert.Must(t, r.Screen(&valid, output.Options{}))
	r.Rounds[0].Invalid = invalid(Options{Rate: 10}, Round{Achieved: 10}, 95_271_110*time.Nanosecond, time.Millisecond, false)
	assert.Must(t, r.Screen(&not, output.Options{}))
	want := "NOT VALID    1 of 1 rounds: the generator, not the server, was the limit: it began 95 ms late (p99)\n" +
		"likely cause the machine was busy at the start: load 8.11 on 2 processors\n" +
		"remedy       end other programs"
	if at := strings.Index(not.String(), want); at < 0 || at > strings.Index(not.String(), "\nrate ") || strings.Contains(valid.String(), "NOT VALID") {
		t.Errorf("the result is\n%s\nwant it with\n%s\nbefore the rate; a valid one is\n%s", not.String(), want, valid.String())
	}
}

func rounds(values ...float64) []Round {
	var out []Round
	for _, v := range values {
		out = append(out, Round{Achieved: v})
	}
	return out
}

// Equal results show no difference, results apart show one, and noise as large as the difference
// hides it.
func TestCompare(t *testing.T) {
	achieved := func(r Round) float64 { return r.Achieved }
	for _, c := range []struct {
		name          string
		before, after []Round
		ratio         float64
		different     bool
	}{
		{"equal", rounds(100, 101, 99, 100, 102), rounds(100, 101, 99, 100, 102), 1, false},
		{"a tenth more", rounds(100, 101, 99, 100, 102), rounds(110, 111, 109, 110, 112), 1.1, true},
		{"noise", rounds(100, 140, 70, 120, 90), rounds(110, 70, 150, 95, 130), 1.1, false},
		{"less", rounds(100, 100, 100), rounds(50, 50, 50), 0.5, true},
	} {
		got := Compare(c.before, c.after, achieved)
		if math.Abs(got.Ratio-c.ratio) > 1e-9 || got.Different() != c.different || got.Low > got.Ratio || got.High < got.Ratio {
			t.Errorf("%s: %+v, want ratio %v, different %v", c.name, got, c.ratio, c.different)
		}
	}
}

// A message that is never delivered fails some time after the last delivery of another one, so that
// the benchmark ends and reports the loss.
func TestLostMessageEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bodies := assert.Value(ParseBodies("64"))(t)
		l := &endToEnd{LoadOptions: LoadOptions{Bodies: bodies}, verifier: NewVerifier(), waiting: map[int64]chan struct{}{}}
		started := time.Now()
		go func() {
			for i := range int64(5) { // others arrive until 40 s
				time.Sleep(8 * time.Second)
				assert.NoError(t, l.handle(t.Context(), &tidegate.Delivery{Message: tidegate.Message{Body: l.Bodies.Body(i)}}))
			}
		}()
		if out := l.await(t.Context(), 2); out.Messages != 1 || time.Since(started) != 24*time.Second {
			t.Errorf("the third message: %+v after %v", out, time.Since(started))
		}
		out := l.await(t.Context(), 99)
		if len(out.Failures) != 1 || !strings.HasPrefix(out.Failures[0], "not delivered within 10s") || time.Since(started) != 50*time.Second {
			t.Errorf("the lost message: %+v after %v, want a failure after 50s", out, time.Since(started))
		}
	})
}
