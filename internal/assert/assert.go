// Package assert has the checks that tests repeat, one line each. A check whose name has Must ends
// the test; the others report the failure and continue.
package assert

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// NoError reports an error, after a text as of Sprintf.
func NoError(tb testing.TB, err error, text ...any) {
	if err != nil {
		tb.Helper()
		tb.Error(with(text, err))
	}
}

// Must is NoError, and ends the test.
func Must(tb testing.TB, err error, text ...any) {
	if err != nil {
		tb.Helper()
		tb.Fatal(with(text, err))
	}
}

func with(text []any, err error) string {
	if len(text) == 0 {
		return err.Error()
	}
	return fmt.Sprintf(fmt.Sprint(text[0])+": %v", append(text[1:], err)...)
}

// Is reports an error that is not the wanted one.
func Is(tb testing.TB, what string, got, want error) {
	if !errors.Is(got, want) {
		tb.Helper()
		tb.Errorf("%s: %v, want %v", what, got, want)
	}
}

// MustIs is Is, and ends the test.
func MustIs(tb testing.TB, what string, got, want error) {
	if !errors.Is(got, want) {
		tb.Helper()
		tb.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// Slices reports a slice whose elements are not the wanted ones.
func Slices[T comparable](tb testing.TB, what string, got, want []T) {
	if !slices.Equal(got, want) {
		tb.Helper()
		tb.Errorf("%s: %v, want %v", what, got, want)
	}
}

// MustSlices is Slices, and ends the test.
func MustSlices[T comparable](tb testing.TB, what string, got, want []T) {
	if !slices.Equal(got, want) {
		tb.Helper()
		tb.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// Err returns the error of a call with two results: Must(t, Err(f())).
func Err[T any](_ T, err error) error { return err }

// Value returns a function that returns the first result of a call, and ends the test if the call
// failed: v := Value(f())(t).
func Value[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		Must(tb, err)
		return v
	}
}

// Equal reports a value that is not the wanted one.
func Equal[T comparable](tb testing.TB, what string, got, want T) {
	if got != want {
		tb.Helper()
		tb.Errorf("%s: %v, want %v", what, got, want)
	}
}

// MustEqual is Equal, and ends the test.
func MustEqual[T comparable](tb testing.TB, what string, got, want T) {
	if got != want {
		tb.Helper()
		tb.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// That reports a condition that does not hold, with a text as of Errorf.
func That(tb testing.TB, holds bool, format string, args ...any) {
	if !holds {
		tb.Helper()
		tb.Errorf(format, args...)
	}
}

// MustThat is That, and ends the test.
func MustThat(tb testing.TB, holds bool, format string, args ...any) {
	if !holds {
		tb.Helper()
		tb.Fatalf(format, args...)
	}
}

// Contains reports the words that a text lacks.
func Contains(tb testing.TB, what, text string, words ...string) {
	for _, w := range words {
		if !strings.Contains(text, w) {
			tb.Helper()
			tb.Errorf("%s does not contain %q: %s", what, w, text)
		}
	}
}

// AllocatedBytes returns how many bytes the process allocates while f runs. Other goroutines and
// the runtime may contribute, so the limit of a test leaves room for them.
func AllocatedBytes(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc) //nolint:gosec // far below the largest int
}

// Bubble runs a subtest in a bubble of package synctest.
func Bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}
