package nearest

import (
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	known := []string{"grpc", "http", "data", "log_level", "advertise", "topics", "groups"}
	for name, want := range map[string]string{
		"gprc": "grpc", "http2": "http", "loglevel": "log_level", "log-level": "log_level", "topcs": "topics", "Topics": "topics",
		"x": "", "advertised": "advertise", strings.Repeat("g", 1000): "", "": "",
	} {
		if got := Name(name, known); got != want {
			t.Errorf("Name(%.20q) = %q, want %q", name, got, want)
		}
	}
	if got := Name("a", nil); got != "" {
		t.Errorf("the nearest of nothing is %q", got)
	}
}

func TestHint(t *testing.T) {
	if got := Hint("topcs", []string{"topics", "groups"}); got != "did you mean topics?" {
		t.Error(got)
	}
	if got := Hint("zebra", []string{"topics", "groups"}); got != "the names are topics, groups" {
		t.Error(got)
	}
}
