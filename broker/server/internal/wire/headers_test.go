package wire

import (
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
)

func TestBefore503(t *testing.T) {
	for version, want := range map[string]bool{
		"5.0.0": true, "5.0.2": true, "5.0.0-SNAPSHOT": true, "5.0.2.1": true,
		"5.0.3": false, "5.0.10": false, "5.0.20": false, "5.1.0": false, "5.1.4": false, "": false, "5.0.": false, "5": false, "x": false, "15.0.0": false,
	} {
		if got := Before503(version); got != want {
			t.Errorf("Before503(%q) = %v", version, got)
		}
	}
}

func TestReason(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a%20b%0A": "a b\n", "100%": "100%", "%FF": "\uFFFD", "": "",
		strings.Repeat("x", 2000):           strings.Repeat("x", maxReason),
		strings.Repeat("%C3%BC", 600) + "z": strings.Repeat("ü", maxReason/2),
	} {
		got, ok := Reason(metadata.NewIncomingContext(t.Context(), metadata.Pairs(HeaderReason, in)))
		if got != want || !ok {
			t.Errorf("Reason(%.20q) = %.40q, %v; want %.40q", in, got, ok, want)
		}
	}
	if _, ok := Reason(t.Context()); ok {
		t.Error("a reason without a header")
	}
}
