package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

func operatorsPage(t *testing.T) string {
	t.Helper()
	text := assert.Value(os.ReadFile("../../OPERATORS.md"))(t)
	return string(text)
}

// The page has a row for each alert rule, and no other.
func TestOperatorsPageHasAllAlerts(t *testing.T) {
	rules := assert.Value(os.ReadFile("../../broker/server/monitoring/alerts.yml"))(t)
	var want, got []string
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		want = append(want, m[1])
	}
	for _, m := range regexp.MustCompile("`(Tidegate[A-Z]\\w+)`").FindAllStringSubmatch(operatorsPage(t), -1) {
		got = append(got, m[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	assert.That(t, len(want) != 0 && slices.Equal(got, want), "the page has %q, want %q", got, want)
}

// The commands of the page back up a broker that works, and a broker on the backup has its
// messages.
func TestBackupAsDescribed(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?s)<!-- example: backup -->\n```sh\n(.*?)```").FindStringSubmatch(operatorsPage(t))
	assert.MustThat(t, block != nil, "the page has no commands for a backup")
	dir := t.TempDir()
	data, snapshots, backup := filepath.Join(dir, "data"), filepath.Join(dir, "snapshots"), filepath.Join(dir, "backup")
	tl := newTool(t, "--data", data, "--snapshot-dir", snapshots, "--topic", "orders")
	tl.must("send", "orders", "before")
	sh := exec.CommandContext(t.Context(), "sh", "-euc", block[1])
	sh.Env = append(tl.environ(installed(t)), "BACKUP="+backup)
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	tl.must("send", "orders", "after")
	restored := newTool(t, "--data", backup)
	got := lines[received](t, restored.must("receive", "billing", "orders", "--then", "ack", "--max", "2", "--wait", "1s", "-o", "jsonl").stdout)
	assert.That(t, len(got) == 1 && got[0].BodyText == "before", "the restored broker has %+v", got)
	if left, err := os.ReadDir(snapshots); err != nil || len(left) > 0 {
		t.Errorf("the snapshot is still there: %v (%v)", left, err)
	}
}

// Each command of the page exists, with its flags.
func TestOperatorsPageNamesCommands(t *testing.T) {
	tl := &tool{t: t}
	found := 0
	for _, m := range regexp.MustCompile("`(tidegate [a-z][^`]*)`").FindAllStringSubmatch(operatorsPage(t), -1) {
		words := strings.Fields(m[1])[1:]
		tl.must(append(words, "--help")...)
		found++
	}
	assert.That(t, found >= 10, "%d commands were found", found)
}
