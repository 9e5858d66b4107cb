package protocol

import (
	"strings"
	"testing"
)

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
