package call

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

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
			if dropped := c.WaitingNotes() == io.Discard; dropped != terminal {
				t.Errorf("on a terminal: %t; it drops the notes: %t", terminal, dropped)
			}
			return enough
		}); !errors.Is(err, enough) {
			t.Error(err)
		}
	}
}
