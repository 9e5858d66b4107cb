package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/filelock"
)

// A journal of any length takes a bounded memory: it forgets the oldest of the IDs at the target.
func TestJournalIsBounded(t *testing.T) {
	const more = 1000
	j := &carryJournal{sent: map[carryKey]bool{}, names: map[carryKey]string{}, used: map[string]string{}}
	for i := range maxUsed + more {
		k := carryKey{ID: fmt.Sprint(i), At: "0/1"}
		j.apply(journalEntry{Event: intentEvent, Messages: []journalRecord{{carryKey: k}}})
		j.apply(journalEntry{Event: sentEvent, Messages: []journalRecord{{carryKey: k}}})
		j.apply(journalEntry{Event: ackedEvent, Messages: []journalRecord{{carryKey: k}}})
	}
	if len(j.used) != maxUsed || len(j.order) != maxUsed || len(j.sent)+len(j.names) > 0 {
		t.Errorf("the journal has %d IDs at the target, %d in order, %d sent, %d names", len(j.used), len(j.order), len(j.sent), len(j.names))
	}
	_, oldest := j.used[fmt.Sprint(more-1)]
	_, kept := j.used[fmt.Sprint(more)]
	assert.That(t, !oldest && kept, "ID %d is known: %v, and ID %d: %v; want the newest ones", more-1, oldest, more, kept)
}

// A fullFile is a file on a full disk: a write of an event leaves a part of its bytes and fails,
// as all later ones do.
type fullFile struct {
	filelock.File
	event string
	full  bool
}

func (f *fullFile) Write(b []byte) (int, error) {
	if !f.full && !strings.Contains(string(b), fmt.Sprintf(`"event":%q`, f.event)) {
		return f.File.Write(b)
	}
	if f.full {
		return 0, syscall.ENOSPC
	}
	f.full = true
	n, err := f.File.Write(b[:len(b)/2])
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
				o := testCarryOptions(t, s, f, path)
				o.Journal.File = &fullFile{File: o.Journal.File, event: event}
				_, err := carry(t.Context(), o)
				if !errors.Is(err, syscall.ENOSPC) || strings.Count(err.Error(), "the journal cannot be written") != 1 {
					t.Errorf("the run ends with %v", err)
				}
				if sent := slices.Sorted(slices.Values(f.sent)); !slices.Equal(slices.Sorted(slices.Values(s.acked)), sent) {
					t.Errorf("the target has %q, and the source removed %q", sent, s.acked)
				}
				assert.Must(t, o.Journal.Close())
				sends := len(f.at)
				if s.journal = ""; len(f.sent) == 0 {
					s.batches = [][]*tidegate.Delivery{{deliver(1, "a"), deliver(2, "a"), deliver(3, "")}}
				}
				r, err := carry(t.Context(), testCarryOptions(t, s, f, path))
				if err != nil || len(f.sent) != 3 || len(f.at) != 3 || len(s.acked) != 3 {
					t.Errorf("the next run: %+v, %v; %d sends before it and %d now; the target has %q, the source removed %q", r, err, sends, len(f.at)-sends, f.sent, s.acked)
				}
			})
		})
	}
}
