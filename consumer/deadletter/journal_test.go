package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate/transport/transporttest"
)

// The line that a crash has truncated is removed from a journal, so that each line of the journal
// is an event, also if the next event is shorter.
func TestTruncatedLine(t *testing.T) {
	name := filepath.Join(t.TempDir(), "journal")
	whole := `{"event":"begin","group":"billing"}` + "\n"
	if err := os.WriteFile(name, []byte(whole+`{"event":"intent","why":"`+strings.Repeat("x", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := openJournal(name, "billing")
	if err != nil {
		t.Fatal(err)
	}
	if err := j.write(Event{Event: eventEnd}); err != nil {
		t.Fatal(err)
	}
	if err := j.file.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	for line := range strings.Lines(string(text)) {
		var e struct{ Event string }
		if err := json.Unmarshal([]byte(line), &e); err != nil || !strings.HasSuffix(line, "\n") {
			t.Errorf("%q is not a line with an event: %v", line, err)
		}
		events = append(events, e.Event)
	}
	if want := []string{"begin", "end"}; !slices.Equal(events, want) {
		t.Errorf("the journal has the events %q, want %q", events, want)
	}
}

// An event is written when it is on disk: a file that cannot be synced, such as a pipe, accepts
// none.
func TestEventsAreSynced(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	j := &journal{file: w}
	if err := j.write(Event{Event: eventIntent, MessageID: "m"}); err == nil {
		t.Error("an event is written without a sync")
	}
}

// A failed write may have written a part of a line. A later one would complete that line to
// garbage, for example when the full disk has space again, and the job could not be continued.
func TestNoEventAfterAFailure(t *testing.T) {
	name := filepath.Join(t.TempDir(), "journal")
	j, err := openJournal(name, "billing")
	if err != nil {
		t.Fatal(err)
	}
	defer j.file.Close()
	writable := j.file
	if j.file, err = os.Open(name); err != nil { // its writes fail
		t.Fatal(err)
	}
	defer j.file.Close()
	first := j.write(Event{Event: eventBegin, Group: "billing"})
	j.file = writable
	if again := j.write(Event{Event: eventEnd}); first == nil || !errors.Is(again, first) {
		t.Errorf("after the failure %v a write returns %v", first, again)
	}
	if text, err := os.ReadFile(name); err != nil || len(text) > 0 {
		t.Errorf("the journal has %q (%v)", text, err)
	}
}

// A removable source counts the letters that it removed.
type removable struct {
	Source
	removed int
}

func (r *removable) remove(context.Context, *Letter, string) error {
	r.removed++
	return nil
}

// A letter that was sent is removed also if the journal cannot record that, for example on a full
// disk: the next run would send it again. Without its intent in the journal it is not sent.
func TestSentLetterLeavesOnAFullDisk(t *testing.T) {
	to, src := &transporttest.Fake{}, &removable{}
	r := &runner{src: src, o: Options{Sender: to}, anew: true, journal: &journal{failed: errors.New("no space left on device")}, limiter: rate.NewLimiter(1, 1),
		plan: plan{sent: map[exact]bool{}, away: map[key]bool{}, failed: map[string]bool{}}}
	l := from("orders", letter("a", 0))
	if err := r.sendAnew(t.Context(), l); err == nil || len(to.Calls("Send")) != 1 || src.removed != 1 {
		t.Errorf("%v: %d sent, %d removed; want the error of the journal, and the letter sent and removed", err, len(to.Calls("Send")), src.removed)
	}
	r.batch = []*Letter{l}
	if err := r.flush(t.Context()); err == nil || len(to.Calls("Send")) != 1 || src.removed != 1 {
		t.Errorf("%v: a letter without an intent in the journal was sent", err)
	}
}
