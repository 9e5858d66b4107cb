package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/spf13/cobra"
)

// A watch on a terminal prints no notes between its screens. Elsewhere it prints them.
func TestNotesOfAWatch(t *testing.T) {
	enough := errors.New("enough")
	for _, terminal := range []bool{true, false} {
		a := New(strings.NewReader(""), io.Discard, new(strings.Builder))
		a.Terminal = terminal
		c := a.Local(&cobra.Command{Use: "test"}, nil, func(context.Context, *Call) error { return nil })
		if err := c.Watch(t.Context(), time.Second, func(context.Context) error {
			assert.Equal(t, "on a terminal; it drops the notes", (c.WaitingNotes() == io.Discard), terminal)
			return enough
		}); !errors.Is(err, enough) {
			t.Error(err)
		}
	}
}

// An item that is stored while a query reads, in a part that the query has passed, is found by the
// next one: also if the query took longer than the overlap and has found later items. Each item is
// found once, and old ones are forgotten.
func TestRecent(t *testing.T) {
	start := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	type item struct{ queue, second int }
	stored := []item{{0, 0}, {1, 1}, {2, 2}}
	r := recent[item]{Since: start}
	found := map[item]int{}
	clock := 100
	// query reads the queues one after the other. Each takes a minute, in which messages arrive in
	// all of them.
	query := func() {
		for queue := range 3 {
			for _, i := range stored {
				if at := start.Add(time.Duration(i.second) * time.Second); i.queue == queue && !at.Before(r.Since) && r.New(i, at) {
					found[i]++
				}
			}
			clock += 60
			for q := range 3 {
				stored = append(stored, item{q, clock - 30 + q})
			}
		}
		r.Whole()
	}
	for range 20 {
		query()
	}
	last := clock - 3*60*2 // the two last queries may have passed them
	for _, i := range stored {
		if n := found[i]; n > 1 || n == 0 && i.second < last {
			t.Errorf("the item at %d s in queue %d was found %d times", i.second, i.queue, n)
		}
	}
	assert.That(t, len(r.seen) <= 40, "%d of %d items are kept", len(r.seen), len(stored))
	again := recent[int]{Since: start}
	again.New(1, start.Add(100*time.Second))
	again.Whole()
	again.Whole()
	if want := start.Add(95 * time.Second); !again.Since.Equal(want) {
		t.Errorf("after an item at 100 s the query begins at %v, want %v", again.Since, want)
	}
}
