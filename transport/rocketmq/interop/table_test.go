package interop

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

var (
	testName = regexp.MustCompile("`(Test[A-Za-z]+|Suite/[A-Za-z]+)`")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Za-z]+)\(`)
	caseName = regexp.MustCompile(`\{name: "([A-Za-z]+)"`)
)

// Every difference that WIRE.md lists names tests that exist.
func TestDifferencesAreTested(t *testing.T) {
	known := map[string]bool{}
	note := func(pattern, prefix string, names *regexp.Regexp) {
		files, err := filepath.Glob(pattern)
		assert.MustThat(t, err == nil && len(files) != 0, "%s: %v, %v", pattern, files, err)
		for _, f := range files {
			for _, m := range names.FindAllStringSubmatch(read(t, f), -1) {
				known[prefix+m[1]] = true
			}
		}
	}
	note("*_test.go", "", testFunc)
	note("../../transporttest/*.go", "Suite/", caseName)

	_, section, _ := strings.Cut(read(t, "../WIRE.md"), "\n## Differences on a real RocketMQ\n")
	_, table, ok := strings.Cut(section, "\n|---|---|---|\n")
	assert.MustThat(t, ok, "WIRE.md has no table of differences")
	rows := 0
	for row := range strings.Lines(table) {
		if !strings.HasPrefix(row, "|") {
			break
		}
		rows++
		cells := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
		tests := testName.FindAllStringSubmatch(cells[len(cells)-1], -1)
		assert.That(t, len(cells) == 3 && len(tests) != 0,
			"row %d has %d cells and %d tests: %s", rows, len(cells), len(tests), row)
		for _, m := range tests {
			if !known[m[1]] {
				t.Errorf("row %d names the test %s, which does not exist", rows, m[1])
			}
		}
	}
	assert.That(t, rows >= 10, "the table has %d rows", rows)
}

func read(t *testing.T, name string) string {
	t.Helper()
	b := assert.Value(os.ReadFile(name))(t)
	return string(b)
}
