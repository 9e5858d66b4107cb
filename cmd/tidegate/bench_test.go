package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A benchmark removes its topic and group, writes a result that compare reads, and e2e accounts for
// each message. On a busy machine a run at a rate may have no valid figures (exit code 7).
func TestBench(t *testing.T) {
	tl := newTool(t)
	file := filepath.Join(tl.home, "result.json")
	short := []string{"--rounds", "2", "--duration", "200ms", "--warmup", "50ms", "--json", file}
	for _, args := range [][]string{
		{"bench", "send", "--callers", "4"},
		{"bench", "send", "--rate", "200", "--arrivals", "poisson"},
		{"bench", "e2e", "--rate", "200", "--groups", "5", "--callers", "100"},
	} {
		name := strings.Join(args, " ")
		r := tl.run(append(args, short...)...)
		if r.code != 0 && r.code != 7 {
			t.Errorf("%s: exit code %d\n%s%s", name, r.code, r.stdout, r.stderr)
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var result struct {
			Schema int
			Rounds []struct {
				Done     int64
				Achieved float64
				Service  struct {
					HDR string
				}
			}
			Truth *struct{ Accepted, Delivered, Lost, Twice, OutOfOrder int64 }
		}
		if err := json.Unmarshal(text, &result); err != nil || result.Schema != 1 || len(result.Rounds) != 2 || result.Rounds[0].Done == 0 || result.Rounds[0].Service.HDR == "" {
			t.Errorf("%s: %v, %s", name, err, text)
		}
		if e2e := args[1] == "e2e"; e2e != (result.Truth != nil) || e2e && (result.Truth.Accepted == 0 || result.Truth.Lost != 0 || result.Truth.OutOfOrder != 0) {
			t.Errorf("%s: the truth is %+v", name, result.Truth)
		}
	}
	for _, list := range []string{"topic", "group"} {
		if out := tl.must(list, "list", "-o", "name").stdout; strings.Contains(out, "bench-") {
			t.Errorf("after the benchmarks there is still the %s %s", list, out)
		}
	}
	if r := tl.must("bench", "compare", file, file, "--max-regression", "5%"); strings.Count(r.stdout, "no difference shown") != 5 {
		t.Errorf("a result compared with itself:\n%s", r.stdout)
	}
	if r := tl.run("bench", "send", "--topic", "orders"); r.code != 2 || !strings.Contains(r.stderr, "--into-existing") {
		t.Errorf("a topic of others: exit code %d, %s", r.code, r.stderr)
	}
}
