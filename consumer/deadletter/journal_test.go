package deadletter

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/transporttest"
)

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
	path := filepath.Join(t.TempDir(), "journal")
	j, err := openJournal(path, "billing")
	assert.Must(t, err)
	defer j.File.Close()
	if j.File, err = os.Open(path); err != nil { // its writes fail
		t.Fatal(err)
	}
	defer j.File.Close()
	to, src := &transporttest.Fake{}, &removable{}
	r := &runner{src: src, o: Options{Sender: to}, anew: true, journal: j, limiter: rate.NewLimiter(1, 1),
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
