package protocol

import (
	"regexp"
	"strings"
	"testing"
)

// Clients keep fingerprints in scripts, so they must not change.
func TestOfIsStable(t *testing.T) {
	t.Parallel()
	// printf 'orders\0order # is unknown' | sha256sum | head -c 12
	if got := Fingerprint("orders", "Order 17 is unknown\ngoroutine 3"); got != "a1474c121e36" {
		t.Errorf("the fingerprint is %s", got)
	}
}

// variable is the definition of the parts that differ between messages.
var variable = regexp.MustCompile(`"[^"]*"|'[^']*'|` + "`[^`]*`" + `|[\p{L}_-]*\d[\p{L}\d_.:-]*`)

// FuzzNormal compares normal with the definition as a regular expression.
func FuzzNormal(f *testing.F) {
	for _, s := range []string{
		"", `order 4711 of "Müller" timed out after 1.5s at 10.0.0.7:5432`, `it's "open`, "a-b_c9.d:e-", "--", "é1 ´2", "\xff1\xfea", "`x` 'y' \"z\"",
		"ǅ5 \u0661 ½", "a  b\tc\nd", "x.1", "_", `"`, "Ⅷ8",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, reason string) {
		line, _, _ := strings.Cut(reason, "\n")
		want := strings.Join(strings.Fields(variable.ReplaceAllString(strings.ToLower(line), "#")), " ")
		if got := normalReason(reason); got != want {
			t.Errorf("%q is %q, want %q", reason, got, want)
		}
	})
}

func BenchmarkOf(b *testing.B) {
	for b.Loop() {
		Fingerprint("orders", `order 4711 of customer "Müller" timed out after 1.5s at 10.0.0.7:5432`)
	}
}

// CutRedrive is the inverse of RedrivenID, except for IDs that are replaced by their hash.
func TestCutRedrive(t *testing.T) {
	for _, tt := range []struct {
		id       string
		first    string
		redrives int
	}{
		{"a", "a", 0}, {"a.redrive-1", "a", 1}, {"a.redrive-12", "a", 12}, {"a.redrive-1.redrive-1", "a.redrive-1", 1}, {"", "", 0},
		{"a.redrive-", "a.redrive-", 0}, {"a.redrive-0", "a.redrive-0", 0}, {"a.redrive-01", "a.redrive-01", 0}, {"a.redrive-+1", "a.redrive-+1", 0},
		{"a.redrive-1x", "a.redrive-1x", 0}, {".redrive-1", ".redrive-1", 0}, {"a.redrive-99999999999999999999", "a.redrive-99999999999999999999", 0},
	} {
		if first, redrives := CutRedrive(tt.id); first != tt.first || redrives != tt.redrives {
			t.Errorf("%q: %q, %d; want %q, %d", tt.id, first, redrives, tt.first, tt.redrives)
		}
		if tt.redrives > 0 && RedrivenID(tt.first, tt.redrives-1) != tt.id {
			t.Errorf("redrive %d of %q has the ID %q, want %q", tt.redrives, tt.first, RedrivenID(tt.first, tt.redrives-1), tt.id)
		}
	}
	if id := RedrivenID(strings.Repeat("x", 255), 0); len(id) > 255 {
		t.Errorf("the ID of a redrive has %d bytes", len(id))
	}
}
