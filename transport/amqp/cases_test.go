package amqp

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// CASES.md names tests that exist. The transport uses neither of the two functions of go-amqp that
// lose messages or links on Artemis.
func TestCases(t *testing.T) {
	declared := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	forbidden := regexp.MustCompile(`\.(DrainCredit|RejectMessage)\(`)
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".go" {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, m := range declaration.FindAllSubmatch(text, -1) {
			declared[string(m[1])] = true
		}
		if m := forbidden.Find(text); m != nil && name != filepath.Join("interop", "observed_test.go") {
			t.Errorf("%s calls %s", name, m)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("CASES.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, " | ")
		if len(cells) != 2 || line == "| Artemis | tests |\n" {
			continue
		}
		rows++
		names := regexp.MustCompile(`Test\w+`).FindAllString(cells[1], -1)
		if len(names) == 0 {
			t.Errorf("no test: %s", line)
		}
		for _, name := range names {
			if !declared[name] {
				t.Errorf("%s does not exist: %s", name, line)
			}
		}
	}
	if rows < 25 {
		t.Errorf("CASES.md has %d rows", rows)
	}
}
