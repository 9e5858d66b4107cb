package move

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A failed write may have written a part of a line, and a later one would complete it to garbage.
func TestNoEntryAfterAFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, err := OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.file.Close()
	writable := j.file
	if j.file, err = os.Open(path); err != nil { // its writes fail
		t.Fatal(err)
	}
	defer j.file.Close()
	first := j.mark(sentEvent, []key{{ID: "1"}}, true)
	j.file = writable
	if again := j.mark(sentEvent, []key{{ID: "2"}}, true); first == nil || !errors.Is(again, first) {
		t.Errorf("after the failure %v an entry returns %v", first, again)
	}
	if text, err := os.ReadFile(path); err != nil || len(text) > 0 {
		t.Errorf("the journal has %q (%v)", text, err)
	}
}
