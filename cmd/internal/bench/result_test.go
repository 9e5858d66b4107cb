package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

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
