package server

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

func TestBefore503(t *testing.T) {
	for version, want := range map[string]bool{
		"5.0.0": true, "5.0.2": true, "5.0.0-SNAPSHOT": true, "5.0.2.1": true,
		"5.0.3": false, "5.0.10": false, "5.0.20": false, "5.1.0": false, "5.1.4": false, "": false, "5.0.": false, "5": false, "x": false, "15.0.0": false,
	} {
		if got := before503(version); got != want {
			t.Errorf("before503(%q) = %v", version, got)
		}
	}
}

func TestReason(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a%20b%0A": "a b\n", "100%": "100%", "%FF": "\uFFFD", "": "",
		strings.Repeat("x", 2000):           strings.Repeat("x", maxReason),
		strings.Repeat("%C3%BC", 600) + "z": strings.Repeat("ü", maxReason/2),
	} {
		got, ok := reason(metadata.NewIncomingContext(t.Context(), metadata.Pairs(headerReason, in)))
		if got != want || !ok {
			t.Errorf("reason(%.20q) = %.40q, %v; want %.40q", in, got, ok, want)
		}
	}
	if _, ok := reason(t.Context()); ok {
		t.Error("a reason without a header")
	}
}

// What is remembered of clients is bounded, and the refusal is one that a
// client comes back from.
func TestSessionsAreBounded(t *testing.T) {
	r := newSessions(func(string) {})
	defer r.close()
	ensure := func(id string) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		_, err := r.ensureLocked(id)
		return err
	}
	for i := range maxSessions {
		if err := ensure(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	err := ensure("one more")
	if refusal.CodeOf(err) != tidegate.CodeTooManyRequests || !strings.Contains(err.Error(), "100000") {
		t.Errorf("%v; want 42900 with the limit", err)
	}
	if err := ensure("0"); err != nil {
		t.Errorf("one that is known: %v", err)
	}
	r.terminate("0")
	if err := ensure("one more"); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}
