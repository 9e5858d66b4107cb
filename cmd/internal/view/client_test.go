package view

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// The screen of top --clients fits the terminal, and shows control characters of clients as
// escapes.
func TestClientScreen(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	f := ClientFrame{At: at, Interval: "1s", Total: 3, Versions: []status.ClientVersion{{Language: "GO", Version: "5.1.4", Clients: 2}, {Language: "JAVA", Version: "5.0.4", Clients: 1, Outdated: true}}}
	for i, topics := range [][]string{{"a", "b", "c", "d"}, {"orders"}, nil} {
		f.Clients = append(f.Clients, status.Client{
			ID: "host\x1b[31m-" + string(rune('a'+i)), Kind: "push_consumer", Language: "GO", Version: "5.1.4", Group: "billing", Topics: topics, Hidden: i,
			LastSeen: at.Add(-time.Duration(i) * time.Minute), Waiting: int64(i), Inflight: int64(3 - i),
		})
	}
	var b strings.Builder
	s := ClientScreen{Server: "http://127.0.0.1:8080", Frame: f, By: "inflight", Width: 110, Height: 20}
	if err := s.Write(&b, output.Options{}); err != nil {
		t.Fatal(err)
	}
	golden(t, "topclients", b.String())
	b.Reset()
	s.Width, s.Height, s.Paused, s.Failed = 30, 8, true, errors.New("connection refused")
	if err := s.Write(&b, output.Options{}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	if len(lines) != 8 || strings.Contains(b.String(), "\x1b") {
		t.Errorf("a small screen is %q", lines)
	}
	for _, line := range lines {
		if output.Width(line) > 30 {
			t.Errorf("a line is too wide: %q", line)
		}
	}
}
