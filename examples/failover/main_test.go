package main

import (
	"strings"
	"testing"
)

func TestFailover(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, w := range []string{"from primary to secondary", "from secondary to primary", "none failed", "all were consumed"} {
		if !strings.Contains(out.String(), w) {
			t.Errorf("it does not print %q:\n%s", w, out.String())
		}
	}
}
