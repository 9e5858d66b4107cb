package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

func TestQuickstart(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, w := range []string{"530 TOO_MANY_REQUESTS", "the policy allows 800ms to 1.2s", "attempt 3 accepted", "attempt 4", "dead letter in %DLQ%ledger", "all expected steps happened"} {
		assert.That(t, strings.Contains(out.String(), w), "it does not print %q:\n%s", w, out.String())
	}
	shown := regexp.MustCompile("(?s)<!-- example: quickstart -->\n```\n(.*?)```").FindStringSubmatch(readFile(t, "../../README.md"))
	assert.MustThat(t, shown != nil, "the README does not show the output")
	for line := range strings.Lines(shown[1]) {
		if !strings.Contains(withoutFigures(out.String()), withoutFigures(line)) {
			t.Errorf("the README shows %q, the program prints:\n%s", line, out.String())
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text := assert.Value(os.ReadFile(name))(t)
	return string(text)
}

// withoutFigures replaces the parts that differ between two runs: times, message IDs and queue
// numbers.
func withoutFigures(s string) string {
	s = regexp.MustCompile(`[\d.]+m?s\b`).ReplaceAllString(s, "T")
	s = regexp.MustCompile(`\b[0-9A-F]{34}\b`).ReplaceAllString(s, "ID")
	return regexp.MustCompile(`queue \d+ offset \d+`).ReplaceAllString(s, "queue and offset")
}
