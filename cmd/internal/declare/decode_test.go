package declare

import (
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// The units are those of IEC 80000-13 and of the SI.
func TestDigits(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"max_backlog_bytes", "1GiB", "1073741824"},
		{"max_backlog.bytes", "512MiB", "536870912"},
		{"retention\x00bytes", "1.5 KiB", "1536"},
		{"bytes_per_second", "10MB", "10000000"},
		{"max_cold_reads_bytes_per_second", "2kB", "2000"},
		{"min_free_disk_bytes", "-1", "-1"},
		{"bytes", "4096", "4096"},
		{"bytes", "7B", "7"},
		{"queues", "1GiB", "1GiB"},
		{"max_backlog.messages", "many", "many"},
	} {
		if got, err := Digits(c.name, c.value); got != c.want || err != nil {
			t.Errorf("%q of %q is %q and %v, want %q", c.value, c.name, got, err, c.want)
		}
	}
	for _, value := range []string{"", "GiB", "1 Gib", "-1GiB", "0.3B", "9999999TiB", "NaNKiB", "InfB", "much"} {
		if got, err := Digits("bytes", value); err == nil || !strings.Contains(err.Error(), "512MiB") {
			t.Errorf("%q is %q and %v, want an error with an example", value, got, err)
		}
	}
}

func TestEach(t *testing.T) {
	s := map[string]any{"queues": 4, "max_backlog": map[string]any{"bytes": "1GiB", "messages": 5}, "type": "1GiB"}
	assert.Must(t, each(s, ""))
	below := s["max_backlog"].(map[string]any)
	assert.That(t, below["bytes"] == int64(1<<30) && below["messages"] == 5 && s["type"] == "1GiB", "the settings are %v", s)
	err := each(map[string]any{"retention": map[string]any{"bytes": "much"}}, "")
	assert.That(t, err != nil && strings.HasPrefix(err.Error(), `retention.bytes is "much": give`), "the error is %v", err)
}
