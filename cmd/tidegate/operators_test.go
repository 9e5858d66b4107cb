package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/cmd/tidegate/internal/client"
)

// The page for operators has each alert once, and its commands exist with the flags that it names.
func TestOperatorsPage(t *testing.T) {
	page, err := os.ReadFile("OPERATORS.md")
	if err != nil {
		t.Fatal(err)
	}
	alerts, err := os.ReadFile("../../broker/server/monitoring/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	names := func(pattern string, text []byte) (out []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			out = append(out, string(m[1]))
		}
		slices.Sort(out)
		return out
	}
	if want, got := names(`alert: (\w+)`, alerts), names(`(?m)^\| (Tidegate\w+) \|`, page); !slices.Equal(got, want) {
		t.Errorf("the page has the alerts\n%q\nwant\n%q", got, want)
	}
	commands := names("(?m)(?:`|^)(tidegate [^`\n]+)", page)
	if len(commands) < 12 {
		t.Fatalf("the page has %d commands: this test no longer sees them", len(commands))
	}
	for _, line := range commands {
		c, args, err := root(&client.App{Env: os.Getenv}).Find(strings.Fields(line)[1:])
		if err == nil {
			c.SetOut(io.Discard)
			err = c.ParseFlags(args)
		}
		if err != nil || c.HasSubCommands() && !strings.Contains(line, c.Name()) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// A snapshot of a running broker, used as a data directory, has the messages of that time.
func TestBackupAndRestore(t *testing.T) {
	data, snapshots := filepath.Join(t.TempDir(), "data"), t.TempDir()
	tl := newTool(t, "--data", data, "--snapshot-dir", snapshots)
	tl.must("topic", "create", "orders")
	tl.must("send", "orders", "before")
	var answer struct{ Path string }
	out := tl.must("api", "POST", "/v1/snapshot").stdout
	if err := json.Unmarshal([]byte(out), &answer); err != nil || answer.Path == "" {
		t.Fatalf("%v: %s", err, out)
	}
	tl.must("send", "orders", "after")
	restored := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(restored, os.DirFS(answer.Path)); err != nil {
		t.Fatal(err)
	}
	again := newTool(t, "--data", restored)
	got := lines[received](t, again.must("receive", "billing", "orders", "--then", "ack", "--wait", "10ms", "-o", "jsonl").stdout)
	if len(got) != 1 || got[0].BodyText != "before" {
		t.Errorf("the restored broker has %+v, want the message before the snapshot", got)
	}
}
