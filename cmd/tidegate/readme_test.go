package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// The commands of the README run in their order.
func TestReadme(t *testing.T) {
	t.Parallel()
	readme := assert.Value(os.ReadFile("../../README.md"))(t)
	block := regexp.MustCompile("(?s)<!-- example: commands -->\n```sh\n(.*?)```").FindSubmatch(readme)
	assert.MustThat(t, block != nil, "the README has no example of the commands")
	tl := newTool(t, "--topic", "orders")
	dir := t.TempDir()
	charge := "#!/bin/sh\necho 'unknown currency EUR' >&2\nexit 1\n"
	assert.Must(t, os.WriteFile(filepath.Join(dir, "charge.sh"), []byte(charge), 0o700))
	bin := installed(t)
	n := 0
	for line := range strings.Lines(string(block[1])) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		if strings.Contains(line, "--exec") {
			tl.must("send", "orders", "7 EUR")
			line += " --max 1"
		}
		if strings.Contains(line, "CLASS") {
			var class struct{ Fingerprint string }
			assert.Must(t, json.Unmarshal([]byte(tl.must("dead-letters", "top", "billing", "-o", "jsonl").stdout), &class))
			line = strings.Replace(line, "CLASS", class.Fingerprint, 1)
		}
		if strings.HasPrefix(line, "tidegate bench") {
			line += " --duration 100ms --warmup 0s || [ $? = 7 ]" // a busy machine has no valid figures
		}
		n++
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir, cmd.Env = dir, tl.environ(bin)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, text)
		}
	}
	assert.That(t, n >= 5, "the example has %d commands: this test no longer sees them", n)
	if got := lines[received](t, tl.must("receive", "billing", "orders", "--then", "ack", "-o", "jsonl", "--wait", "10ms").stdout); len(got) != 1 || got[0].BodyText != "7 USD" {
		t.Errorf("after the example the topic has %+v, want the corrected message", got)
	}
}
