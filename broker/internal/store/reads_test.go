package store

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Every read of a value goes through value or get: Pebble panics on some
// damage, and they make an error of it.
func TestReadsBearDamage(t *testing.T) {
	raw := regexp.MustCompile(`\.ValueAndErr\(|(messages|groups|db)\.Get\(`)
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if name == "damage.go" || name == "reads_test.go" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if m := raw.Find(text); m != nil {
			t.Errorf("%s calls %s directly", name, m)
		}
	}
}
