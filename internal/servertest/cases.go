package servertest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// Tests returns the names of the tests that are declared in a directory and below it.
func Tests(t *testing.T, dir string) map[string]bool {
	t.Helper()
	declared := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	assert.Must(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		for _, m := range declaration.FindAllSubmatch(text, -1) {
			declared[string(m[1])] = true
		}
		return err
	}))
	return declared
}

// Cases checks the tables of CASES.md in a directory: each row has a behaviour of a server and the
// tests that repeat it, which are declared in the directory or below it. There are at least so many
// rows.
func Cases(t *testing.T, dir string, least int) {
	t.Helper()
	declared := Tests(t, dir)
	text, err := os.ReadFile(filepath.Join(dir, "CASES.md"))
	assert.Must(t, err)
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, " | ")
		if len(cells) != 2 || cells[1] == "tests |\n" {
			continue
		}
		rows++
		names := regexp.MustCompile(`Test\w+`).FindAllString(cells[1], -1)
		assert.That(t, len(names) != 0, "no test: %s", line)
		for _, name := range names {
			assert.That(t, declared[name], "%s does not exist: %s", name, line)
		}
	}
	assert.That(t, rows >= least, "CASES.md has %d rows, want at least %d", rows, least)
}
