package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// A journal that another program has changed to UTF-16, or given a byte order mark, is rejected
// with that reason, and stays as it is.
func TestJournalOfAnotherEncoding(t *testing.T) {
	for text, want := range map[string]string{
		"\xef\xbb\xbf" + `{"time":"2026-01-02T03:04:05Z","event":"job","why":"j"}` + "\n": "byte order mark",
		"\xef\xbb\xbf" + `{"time":`:      "byte order mark",
		"\xff\xfe{\x00\"\x00e\x00\n\x00": "UTF-16",
		"\xfe\xff\x00{\x00\"\x00e":       "UTF-16BE",
		"a note":                         "is not a journal",
		`{"time":"2026-01-02T03:04:05Z","event":"job","why":"other"}` + "\n": "another job",
	} {
		path := filepath.Join(t.TempDir(), "journal")
		assert.Must(t, os.WriteFile(path, []byte(text), 0o600))
		err := begin(path, "j")
		if _, ok := errors.AsType[*otherError](err); !ok || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, want %q and the path", text, err, want)
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != text {
			t.Errorf("%q became %q, %v", text, after, err)
		}
	}
}
