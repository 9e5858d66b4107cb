package amqp

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
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
		m := forbidden.Find(text)
		assert.That(t, m == nil || name == filepath.Join("interop", "observed_test.go"), "%s calls %s", name, m)
		return nil
	})
	assert.Must(t, err)
	text, err := os.ReadFile("CASES.md")
	assert.Must(t, err)
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, " | ")
		if len(cells) != 2 || line == "| Artemis | tests |\n" {
			continue
		}
		rows++
		names := regexp.MustCompile(`Test\w+`).FindAllString(cells[1], -1)
		assert.That(t, len(names) != 0, "no test: %s", line)
		for _, name := range names {
			assert.That(t, declared[name], "%s does not exist: %s", name, line)
		}
	}
	assert.That(t, rows >= 25, "CASES.md has %d rows", rows)
}
