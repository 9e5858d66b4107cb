package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// A benchmark removes its topic and group, writes a result that compare reads, and e2e accounts for
// each message. On a busy machine a run at a rate may have no valid figures (exit code 7).
func TestBench(t *testing.T) {
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
