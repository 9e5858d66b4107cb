package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/bench"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A benchmark removes its topic and group, writes a result that compare reads, and e2e accounts for
// each message. On a busy machine a run at a rate may have no valid figures (exit code 7).
func TestBench(t *testing.T) {
	t.Parallel()
	tl := newTool(t)
	file := filepath.Join(tl.home, "result.json")
	short := []string{"--rounds", "2", "--duration", "100ms", "--warmup", "20ms", "--json", file}
	for _, args := range [][]string{
		{"bench", "send", "--callers", "4"},
		{"bench", "send", "--rate", "200", "--arrivals", "poisson"},
		{"bench", "e2e", "--rate", "200", "--groups", "5", "--callers", "100"},
		{"bench", "send", "--async", "--callers", "32", "--verify", "--groups", "3"},
		{"bench", "send", "--batch", "8", "--callers", "2", "--verify"},
		{"bench", "receive", "--messages", "300", "--callers", "3", "--batch", "7"},
	} {
		name := strings.Join(args, " ")
		r := tl.run(append(args, short...)...)
		if r.code != 0 && r.code != 7 {
			t.Errorf("%s: exit code %d\n%s%s", name, r.code, r.stdout, r.stderr)
			continue
		}
		text := assert.Value(os.ReadFile(file))(t)
		var result struct {
			Schema int
			Rounds []struct {
				Done     int64
				Achieved float64
				Service  struct {
					HDR string
				}
			}
			Truth *struct {
				Accepted, Delivered, Lost, Twice int64
				OutOfOrder                       int64 `json:"out_of_order"`
			}
			Broker *struct {
				Version string
				Disk    int64 `json:"disk_bytes"`
				Fsyncs  int64
			}
		}
		if err := json.Unmarshal(text, &result); err != nil || result.Schema != 1 || len(result.Rounds) != 2 || result.Rounds[0].Done == 0 || result.Rounds[0].Service.HDR == "" {
			t.Errorf("%s: %v, %s", name, err, text)
		}
		verified := args[1] != "send" || slices.Contains(args, "--verify")
		if truth := result.Truth; verified != (truth != nil) || verified && (truth.Accepted == 0 || truth.Delivered != truth.Accepted || truth.Lost+truth.Twice+truth.OutOfOrder != 0) {
			t.Errorf("%s: the truth is %+v", name, result.Truth)
		}
		if b := result.Broker; b == nil || b.Version == "" || b.Disk+b.Fsyncs != 0 { // a broker in memory
			t.Errorf("%s: the broker is %+v", name, result.Broker)
		}
	}
	for _, list := range []string{"topic", "group"} {
		tl.must(list, "list", "-o", "name").lacks("bench-")
	}
	hdr := filepath.Join(tl.home, "c.hgrm")
	r := tl.run("bench", "send", "--max-p99", "1m", "--callers", "2", "--rounds", "1", "--duration", "100ms", "--warmup", "0s", "--size", "uniform:16-64", "--hdr", hdr, "--json", file)
	if strings.Contains(r.stderr, "no rate from") {
		t.Log("the busy machine held no rate")
	} else if text, err := os.ReadFile(file); r.code != 0 && r.code != 7 || err != nil || !strings.Contains(string(text), `"searched"`) || !strings.Contains(r.stderr, "a second: ") {
		t.Errorf("a search: exit code %d, %v\n%s%s", r.code, err, r.stdout, r.stderr)
	}
	if r.code == 0 { // otherwise the busy machine had no valid round
		for path, want := range map[string]string{hdr: "#[Mean"} {
			if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), want) {
				t.Errorf("%v, %s", err, text)
			}
		}
	}
	tl.must("context", "add", "prod", "--grpc", tl.grpc, "--http", tl.http, "--protect")
	for _, yes := range []string{"--rounds=1", "--yes=", "--yes=other", "--yes=true"} { // a protected context
		tl.fails(2, "--yes=prod", "bench", "send", "--context", "prod", yes)
	}
	tl.fails(2, "--into-existing", "bench", "send", "--topic", "orders") // a topic of others
}

// Several callers and rates make a table with a row for each pair, and a document with all results.
func TestBenchTable(t *testing.T) {
	t.Parallel()
	tl := newTool(t)
	args := []string{"bench", "send", "--callers", "1,4", "--rate", "max,100", "--rounds", "1", "--duration", "100ms", "--warmup", "0s"}
	r := tl.run(append(args, "--no-headers", "--columns", "callers,offered,latency")...)
	if want := "1 - service\n1 100 response\n4 - service\n4 100 response\n"; r.code != 0 && r.code != 7 || !strings.HasPrefix(squeezed(r.stdout), want) || !strings.Contains(r.stdout, "\nclient ") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	all := document[struct {
		Results []struct {
			Arguments map[string]string
			Rounds    []struct{ Done int64 }
		}
	}](t, tl.run(append(args, "-o", "json")...).stdout).Results
	assert.That(t, len(all) == 4 && all[3].Arguments["callers"] == "4" && all[3].Arguments["rate"] == "100" && len(all[0].Rounds) == 1 && all[0].Rounds[0].Done != 0, "the document has %+v", all)
	for _, flags := range []string{
		"--callers 1,2 --max-p99 1s", "--rate 1,2 --hdr x.hgrm", "--rate fast", "--callers 0", "--batch 33", "--batch 2 --async", "--batch 2 --rate 5", "--group g", "--into-existing", "--rate=-1",
	} {
		tl.fails(2, "", append([]string{"bench", "send"}, strings.Fields(flags)...)...)
	}
	tl.fails(2, "", "bench", "receive", "--messages", "0")
	tl.must("topic", "create", "shared")
	tl.must("send", "shared", "of others")
	r = tl.run("bench", "send", "--topic", "shared", "--into-existing", "--group", "mine", "--verify", "--callers", "2", "--rounds", "1", "--duration", "50ms", "--warmup", "0s")
	assert.That(t, r.code == 0 && strings.Contains(r.stdout, "lost 0, twice 0"), "in a topic of others: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	tl.must("topic", "show", "shared")
}

// compare rejects results without an interval: too few rounds, rounds without valid figures, and
// results of different benchmarks.
func TestBenchCompare(t *testing.T) {
	tl := newTool(t)
	write := func(name, benchmark string, rounds ...string) string {
		path := filepath.Join(tl.home, name)
		text := `{"schema":1,"benchmark":"` + benchmark + `","arguments":{},"rounds":[` + strings.Join(rounds, ",") + `]}`
		assert.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	round := func(rate string) string {
		return `{"achieved":` + rate + `,"service":{"p50_us":100,"p99_us":200}}`
	}
	before := write("before", "send", round("100"), round("101"), round("99"))
	after := write("after", "send", round("80"), round("81"), round("79"))
	if r := tl.must("bench", "compare", before, before); strings.Count(r.stdout, "no difference shown") != 3 {
		t.Errorf("a result compared with itself:\n%s", r.stdout)
	}
	tl.fails(7, "the rate is worse by at least", "bench", "compare", before, after, "--max-regression", "5%") // a fifth less
	tl.must("bench", "compare", after, before, "--max-regression", "5%")
	for name, other := range map[string]string{
		"an interval needs":     write("few", "send", round("100")),
		"without valid figures": write("invalid", "send", `{"achieved":1,"invalid":"NOT VALID"}`, round("100"), round("100")),
		"bench e2e":             write("e2e", "e2e", round("100"), round("100"), round("100")),
	} {
		tl.fails(2, name, "bench", "compare", before, other)
	}
}

// A file that cannot be written is an error, after the figures are printed: they took long.
func TestBenchPrintsBeforeItFails(t *testing.T) {
	tl := newTool(t)
	r := tl.run("bench", "send", "--callers", "2", "--rounds", "1", "--duration", "100ms", "--warmup", "0s", "--json", tl.home, "-o", "json")
	assert.That(t, r.code == 1 && strings.Contains(r.stderr, tl.home), "exit code %d, %s", r.code, r.stderr)
	if result := document[struct{ Rounds []struct{ Done int64 } }](t, r.stdout); len(result.Rounds) != 1 || result.Rounds[0].Done == 0 {
		t.Errorf("the result is %s", r.stdout)
	}
}

// A benchmark that Ctrl-C ends removes its topic and its group.
func TestInterruptedBench(t *testing.T) {
	t.Parallel()
	tl := newTool(t)
	ctx, interrupt := context.WithCancel(limited(t))
	defer interrupt()
	var stdout, stderr lockedBuffer
	wait := tl.start(ctx, &stdout, &stderr, "bench", "send", "--groups", "2", "--callers", "2", "--rounds", "1", "--duration", "1h", "--warmup", "0s")
	for ctx.Err() == nil {
		var list struct {
			Topics []struct {
				Stored struct{ Messages int64 }
			}
		}
		decode(t, tl.must("topic", "list", "-o", "json").stdout, &list)
		if len(list.Topics) == 1 && list.Topics[0].Stored.Messages > 0 { // it sends
			break
		}
	}
	interrupt()
	if code := wait(); code != 130 {
		t.Errorf("exit code %d, want 130\n%s%s", code, stdout.String(), stderr.String())
	}
	for _, list := range []string{"topic", "group"} {
		tl.must(list, "list", "-o", "name").is("")
	}
}

// A benchmark that Ctrl-C ends while it creates its topic and group leaves none of them.
func TestBenchInterruptedAtItsBegin(t *testing.T) {
	tl := newTool(t)
	forward := tl.forward()
	for _, path := range []string{"/v1/topics/bench-", "/v1/groups/bench-"} {
		ctx, interrupt := context.WithCancel(limited(t))
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPut || !strings.HasPrefix(r.URL.Path, path) {
				forward.ServeHTTP(w, r)
				return
			}
			forward.ServeHTTP(httptest.NewRecorder(), r) // the broker has created it, and the response is late
			interrupt()
			<-r.Context().Done()
		}))
		var stdout, stderr lockedBuffer
		code := tl.start(ctx, &stdout, &stderr, "bench", "send", "--groups", "2", "--rounds", "1", "--duration", "1s", "--http", front.URL, "--grpc", tl.grpc)()
		front.Close()
		interrupt()
		assert.That(t, code == 130, "%s: exit code %d, want 130: %s", path, code, stderr.String())
		for _, list := range []string{"topic", "group"} {
			tl.must(list, "list", "-o", "name").is("")
		}
	}
}

// BenchmarkBenchSend compares the rate that "bench send" prints with that of the loops of
// BenchmarkSendSDK: Send of 1 KiB from as many goroutines, with a client of their own, the same
// warm-up and the same topic. They run in turns on one broker with a disk, and each is the first of
// a pair as often as the other. The ratios are those of "bench send" to the loops: the medians of
// all pairs. That of the rates has its quartiles beside it. That of the CPU time a message, which
// has client and broker, varies less.
func BenchmarkBenchSend(b *testing.B) {
	const pairs = 40
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			tl := newTool(b, "--data", b.TempDir(), "--topic", "orders")
			command := func() pace { return printedPace(b, tl, callers) }
			loops := func() pace { return sdkLoops(b, tl.grpc, callers) }
			var rates, ratios, costs []float64
			for b.Loop() {
				for i := range pairs {
					var ours, theirs pace
					if i%2 == 0 {
						ours, theirs = command(), loops()
					} else {
						theirs, ours = loops(), command()
					}
					rates, ratios, costs = append(rates, ours.rate), append(ratios, ours.rate/theirs.rate), append(costs, ours.cpu/theirs.cpu)
				}
			}
			for _, all := range [][]float64{rates, ratios, costs} {
				slices.Sort(all)
			}
			median := func(all []float64) float64 { return (all[(len(all)-1)/2] + all[len(all)/2]) / 2 }
			b.ReportMetric(median(rates), "msg/s")
			b.ReportMetric(median(ratios), "sdk/ratio")
			b.ReportMetric(ratios[len(ratios)/4], "sdk-low/ratio")
			b.ReportMetric(ratios[3*len(ratios)/4], "sdk-high/ratio")
			if processorTime() > 0 {
				b.ReportMetric(median(costs), "cpu/ratio")
			}
			b.ReportMetric(0, "ns/op") // of all pairs: means nothing
		})
	}
}

// The times of a measurement: short, so that another load of the machine meets both of a pair.
const warmup, measured = 200 * time.Millisecond, 300 * time.Millisecond

// A pace is the messages a second, and the CPU time a message of this process in seconds.
type pace struct{ rate, cpu float64 }

// printedPace is the pace that bench send prints.
func printedPace(b *testing.B, tl *tool, callers int) pace {
	b.Helper()
	r := tl.must("bench", "send", "--topic", "orders", "--into-existing", "--callers", fmt.Sprint(callers), "--duration", measured.String(), "--rounds", "1", "--warmup", warmup.String(), "-o", "json")
	var result bench.Result
	if err := json.Unmarshal([]byte(r.stdout), &result); err != nil || len(result.Rounds) != 1 || len(result.Rounds[0].Failed) > 0 {
		b.Fatalf("%v, %s", err, r.stdout)
	}
	round := result.Rounds[0]
	return pace{round.Achieved, round.Client.CPU / float64(round.Done)}
}

// sdkLoops sends from so many goroutines, with a new client.
func sdkLoops(b *testing.B, grpc string, callers int) pace {
	b.Helper()
	t := assert.Value(rocketmq.New(grpc, rocketmq.Options{}))(b)
	defer t.Close()
	p := assert.Value(producer.New(t, producer.Options{}))(b)
	defer p.Close()
	body := make([]byte, 1024)
	loops := func(length time.Duration) pace {
		var sent atomic.Int64
		var under sync.WaitGroup
		before, began := processorTime(), time.Now()
		for range callers {
			under.Go(func() {
				for time.Since(began) < length {
					if _, err := p.Send(b.Context(), &tidegate.Message{Topic: "orders", Body: body}); err != nil {
						b.Error(err)
						return
					}
					sent.Add(1)
				}
			})
		}
		under.Wait()
		took, cpu := time.Since(began), processorTime()-before
		return pace{float64(sent.Load()) / took.Seconds(), cpu.Seconds() / float64(sent.Load())}
	}
	loops(warmup)
	return loops(measured)
}

var (
	benchLines  = flag.Int("lines", 200_000, "lines of BenchmarkSendLines")
	benchRounds = flag.Int("lines.rounds", 5, "rounds of BenchmarkSendLines")
)

// BenchmarkSendLines compares "send --lines" of a file with SendAsync of the same bodies in turns,
// each in a process of its own or in this one, on one broker. It fails if the command has less than
// half of the rate of SendAsync, or if its memory grows with the file.
func BenchmarkSendLines(b *testing.B) {
	rounds, lines := *benchRounds, *benchLines
	tl := newTool(b, "--topic", "orders")
	long, short := lineFile(b, lines), lineFile(b, lines/10)
	var ratios, rates []float64
	var large, small int64 // KiB
	for b.Loop() {
		for range rounds {
			command, rss := sendLines(b, tl, long)
			direct := sendDirect(b, tl.grpc, lines)
			large = max(large, rss)
			_, rss = sendLines(b, tl, short)
			small = max(small, rss)
			ratios, rates = append(ratios, direct.Seconds()/command.Seconds()), append(rates, float64(lines)/command.Seconds())
		}
	}
	slices.Sort(ratios)
	slices.Sort(rates)
	b.ReportMetric(rates[len(rates)/2], "msg/s")
	b.ReportMetric(ratios[len(ratios)/2], "async/ratio")
	b.ReportMetric(float64(large)/1024, "rss-MiB")
	b.ReportMetric(float64(small)/1024, "rss-tenth-MiB")
	if ratio := ratios[len(ratios)/2]; ratio < 0.5 {
		b.Errorf("send --lines has %.2f of the rate of SendAsync, want 0.5 (%.2f)", ratio, ratios)
	}
	assert.That(b, large <= small+small/2, "send --lines takes %d KiB for %d lines, and %d KiB for a tenth of them", large, lines, small)
}

func lineFile(b *testing.B, n int) string {
	b.Helper()
	var text strings.Builder
	for i := range n {
		text.WriteString(strconv.Itoa(i) + strings.Repeat(" message", 12) + "\n")
	}
	path := filepath.Join(b.TempDir(), "lines")
	assert.Must(b, os.WriteFile(path, []byte(text.String()), 0o600))
	return path
}

// sendLines returns the time of the command, and its largest memory in KiB before the end of the
// input.
func sendLines(b *testing.B, tl *tool, path string) (time.Duration, int64) {
	b.Helper()
	text := assert.Value(os.ReadFile(path))(b)
	c := exec.CommandContext(b.Context(), os.Args[0], "send", "orders", "--lines")
	c.Env = append(os.Environ(), asProgram+"=1", "XDG_CONFIG_HOME="+tl.home, "TIDEGATE_SERVER_GRPC="+tl.grpc)
	var stderr lockedBuffer
	c.Stderr = &stderr
	in := assert.Value(c.StdinPipe())(b)
	began := time.Now()
	assert.Must(b, c.Start())
	assert.Must(b, assert.Err(in.Write(text)))
	memory := maxMemory(c.Process.Pid)
	assert.Must(b, in.Close())
	if err := c.Wait(); err != nil {
		b.Fatalf("%v\n%s", err, stderr.String())
	}
	return time.Since(began), memory
}

func sendDirect(b *testing.B, grpc string, n int) time.Duration {
	b.Helper()
	t := assert.Value(rocketmq.New(grpc, rocketmq.Options{}))(b)
	defer t.Close()
	p := assert.Value(producer.New(t, producer.Options{}))(b)
	defer p.Close()
	began := time.Now()
	var sent sync.WaitGroup
	for i := range n {
		m := &tidegate.Message{Topic: "orders", Body: fmt.Appendf(nil, "%d%s", i, strings.Repeat(" message", 12))}
		sent.Add(1)
		assert.Must(b, p.SendAsync(context.Background(), m, func(_ tidegate.Receipt, err error) {
			assert.NoError(b, err)
			sent.Done()
		}))
	}
	sent.Wait()
	return time.Since(began)
}
