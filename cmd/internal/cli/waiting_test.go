package cli

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// A look prints one line after a second if no address accepts a connection, and nothing otherwise.
func TestLook(t *testing.T) {
	refused := errors.New("connection refused")
	hangs := func(ctx context.Context, _ string) error { <-ctx.Done(); return errors.New("i/o timeout") }
	for name, c := range []struct {
		addresses string
		dial      func(context.Context, string) error
		response  time.Duration // of the request
		want      string
		after     time.Duration
	}{
		{"a:1", func(context.Context, string) error { return refused }, time.Minute, "not connected to a:1: connection refused; trying again for 10s (--timeout), Ctrl-C ends it\n", time.Second},
		{"a:1", func(context.Context, string) error { return refused }, 900 * time.Millisecond, "", 900 * time.Millisecond},
		{"a:1", func(context.Context, string) error { return nil }, time.Minute, "", time.Second},
		{"a:1", hangs, time.Minute, "not connected to a:1: i/o timeout; trying again for 10s (--timeout), Ctrl-C ends it\n", 2 * time.Second},
		{"a:1", hangs, 1500 * time.Millisecond, "", 1500 * time.Millisecond},
		{"a:1;b:2", func(_ context.Context, a string) error {
			if a == "b:2" {
				return nil
			}
			return refused
		}, time.Minute, "", time.Second},
		{"a:1", hangs, time.Minute, "not connected to a:1: i/o timeout; trying again, Ctrl-C ends it\n", 2 * time.Second},
		{"", func(context.Context, string) error { return refused }, time.Minute, "", time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), c.response)
			defer cancel()
			var out strings.Builder
			began := time.Now()
			look := &waitingLook{Out: &out, Noted: new(sync.Once), Address: func() string { return c.addresses }, Bound: 10 * time.Second, Dial: c.dial}
			if strings.Contains(c.want, "trying again,") {
				look.Bound = 0
			}
			err := look.Watch(ctx)
			if out.String() != c.want || (err != nil) != (c.want != "") || time.Since(began) != c.after {
				t.Errorf("%d: %q and %v after %v, want %q after %v", name, out.String(), err, time.Since(began), c.want, c.after)
			}
		})
	}
}

// The looks of a command print one line in all. Each returns the fault.
func TestLooksPrintOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("connection refused")
		var out strings.Builder
		var noted sync.Once
		for range 3 {
			look := waitingLook{Out: &out, Noted: &noted, Address: func() string { return "a:1" }, Dial: func(context.Context, string) error { return refused }}
			assert.Is(t, "the fault is", look.Watch(t.Context()), refused)
		}
		if n := strings.Count(out.String(), "\n"); n != 1 {
			t.Errorf("%d lines: %s", n, out.String())
		}
	})
}

// A note informs about messages under way, not about a wait for input.
func TestNoteWithoutMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var out strings.Builder
		began := time.Now()
		(&note{Out: &out, Address: "a:1", Bound: 30 * time.Second}).Watch(ctx, func() (results, underWay int64) {
			if time.Since(began) < 10*time.Second {
				assert.That(t, out.Len() <= 0, "without a message it prints %q", out.String())
				return 1, 0
			}
			return 1, 1
		})
		if want := "waiting for a:1: no response yet; each message is tried for 30s (--ack-timeout), Ctrl-C ends it\n"; out.String() != want {
			t.Errorf("the notes are %q, want %q", out.String(), want)
		}
	})
}
