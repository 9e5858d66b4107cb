package main

import (
	"strings"
	"testing"
)

func TestQuickstart(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, w := range []string{"530 TOO_MANY_REQUESTS", "the policy allows 800ms to 1.2s", "attempt 3 accepted", "attempt 4", "dead letter in %DLQ%ledger", "all of it happened"} {
		if !strings.Contains(out.String(), w) {
			t.Errorf("it does not tell %q:\n%s", w, out.String())
		}
	}
}
