package move

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
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

// A fullFile is a storage on a full disk: a write of an event leaves a part of its bytes and fails,
// as all later ones do.
type fullFile struct {
	storage
	event string
	full  bool
}

func (f *fullFile) Write(b []byte) (int, error) {
	if !f.full && !strings.Contains(string(b), fmt.Sprintf(`"event":%q`, f.event)) {
		return f.storage.Write(b)
	}
	if f.full {
		return 0, syscall.ENOSPC
	}
	f.full = true
	n, err := f.storage.Write(b[:len(b)/2])
	return n, errors.Join(err, syscall.ENOSPC)
}

// A journal that cannot be written ends the run with the reason, whichever entry it is. Messages
// that the target has leave the source; when there is space, a run with this journal carries the
// others, and sends none twice.
func TestFullDiskUnderTheJournal(t *testing.T) {
	for _, event := range []string{leaseEvent, intentEvent, sentEvent, ackedEvent, endEvent} {
		t.Run(event, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "j")
				batches := [][]*tidegate.Delivery{{deliver(1, "a"), deliver(2, "a"), deliver(3, "")}}
				s, f := &fakeSource{batches: batches}, &fakeTarget{}
				o := options(t, s, f, path)
				o.Journal.file = &fullFile{storage: o.Journal.file, event: event}
				_, err := Run(t.Context(), o)
				if !errors.Is(err, syscall.ENOSPC) || strings.Count(err.Error(), "the journal cannot be written") != 1 {
					t.Errorf("the run ends with %v", err)
				}
				if sent := slices.Sorted(slices.Values(f.sent)); !slices.Equal(slices.Sorted(slices.Values(s.acked)), sent) {
					t.Errorf("the target has %q, and the source removed %q", sent, s.acked)
				}
				if err := o.Journal.Close(); err != nil {
					t.Fatal(err)
				}
				sends := len(f.at)
				if s.journal = ""; len(f.sent) == 0 {
					s.batches = [][]*tidegate.Delivery{{deliver(1, "a"), deliver(2, "a"), deliver(3, "")}}
				}
				r, err := Run(t.Context(), options(t, s, f, path))
				if err != nil || len(f.sent) != 3 || len(f.at) != 3 || len(s.acked) != 3 {
					t.Errorf("the next run: %+v, %v; %d sends before it and %d now; the target has %q, the source removed %q", r, err, sends, len(f.at)-sends, f.sent, s.acked)
				}
			})
		})
	}
}

// A last line that a crash has cut off is removed, whatever its length: the entries of the next run
// follow the last whole line, and a third run reads them all.
func TestTornLineIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	whole := `{"event":"sent","messages":[{"id":"1"}]}` + "\n"
	torn := `{"event":"intent","messages":[{"id":"` + strings.Repeat("x", 1000)
	if err := os.WriteFile(path, []byte(whole+torn), 0o600); err != nil {
		t.Fatal(err)
	}
	for run := range 2 {
		j, err := OpenJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		if !j.Sent(key{ID: "1"}) || j.Sent(key{ID: "2"}) != (run > 0) {
			t.Errorf("run %d: message 1 was sent: %t; message 2: %t", run, j.Sent(key{ID: "1"}), j.Sent(key{ID: "2"}))
		}
		if err := errors.Join(j.mark(sentEvent, []key{{ID: "2"}}, true), j.Close()); err != nil {
			t.Fatal(err)
		}
	}
	entry := strings.Replace(whole, "1", "2", 1)
	if text, err := os.ReadFile(path); err != nil || string(text) != whole+entry+entry {
		t.Errorf("the journal has %q (%v)", text, err)
	}
}
