package spool

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// crashDir names the directory of the process that is killed.
const crashDir = "TIDEGATE_SPOOL_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		produceUntilKilled(dir, os.Getenv(crashMode))
		return
	}
	os.Exit(m.Run())
}

// lines returns the complete lines of a file.
func lines(t *testing.T, dir, name string) []string {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, name))
	if os.IsNotExist(err) {
		return nil
	}
	assert.Must(t, err)
	defer f.Close()
	var list []string
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return list
		}
		list = append(list, strings.TrimSuffix(line, "\n"))
	}
}
