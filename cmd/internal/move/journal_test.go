package move

import (
	"errors"
	"fmt"
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

// A journal of any length takes a bounded memory: it forgets the oldest of the IDs at the target.
func TestJournalIsBounded(t *testing.T) {
	const more = 1000
	j := &Journal{sent: map[key]bool{}, names: map[key]string{}, used: map[string]string{}}
	for i := range maxUsed + more {
		k := key{ID: fmt.Sprint(i), At: "0/1"}
		j.apply(entry{Event: intentEvent, Messages: []record{{key: k}}})
		j.apply(entry{Event: sentEvent, Messages: []record{{key: k}}})
		j.apply(entry{Event: ackedEvent, Messages: []record{{key: k}}})
	}
	if len(j.used) != maxUsed || len(j.order) != maxUsed || len(j.sent)+len(j.names) > 0 {
		t.Errorf("the journal has %d IDs at the target, %d in order, %d sent, %d names", len(j.used), len(j.order), len(j.sent), len(j.names))
	}
	_, oldest := j.used[fmt.Sprint(more-1)]
	_, kept := j.used[fmt.Sprint(more)]
	if oldest || !kept {
		t.Errorf("ID %d is known: %v, and ID %d: %v; want the newest ones", more-1, oldest, more, kept)
	}
}
