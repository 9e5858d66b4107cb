package waiting

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
		{"", func(context.Context, string) error { return refused }, time.Minute, "", time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), c.response)
			defer cancel()
			var out strings.Builder
			began := time.Now()
			err := (&Look{Out: &out, Address: func() string { return c.addresses }, Bound: 10 * time.Second, Dial: c.dial}).Watch(ctx)
			if out.String() != c.want || (err != nil) != (c.want != "") || time.Since(began) != c.after {
				t.Errorf("%d: %q and %v after %v, want %q after %v", name, out.String(), err, time.Since(began), c.want, c.after)
			}
		})
	}
}
