package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestMain is the worker where the program starts one.
func TestMain(m *testing.M) {
	if os.Getenv(envAddress) == "" {
		os.Exit(m.Run())
	}
	if err := workFromEnv(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func TestTransaction(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, w := range []string{
		"kills itself after the commit of order 10", "begins with order 11",
		"kills itself before the commit of order 20", "begins with order 20",
		"with commit", "with rollback",
		"27 orders in the database, 27 messages consumed, 4 half messages rolled back", "each order has its message",
	} {
		if !strings.Contains(out.String(), w) {
			t.Errorf("it does not print %q:\n%s", w, out.String())
		}
	}
}
