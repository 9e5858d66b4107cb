package metrics

import (
	"testing"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

func TestCodeLabel(t *testing.T) {
	for st, want := range map[rmqpb.Code]string{
		rmqpb.Code_OK: "OK", rmqpb.Code_TOO_MANY_REQUESTS: "TOO_MANY_REQUESTS", 12345: "OTHER", -1: "OTHER",
	} {
		if got := codeLabel(st, nil); got != want {
			t.Errorf("code %d: %q, want %q", st, got, want)
		}
	}
	if got := codeLabel(rmqpb.Code_OK, t.Context().Err()); got != "OK" {
		t.Errorf("no error: %q", got)
	}
}
