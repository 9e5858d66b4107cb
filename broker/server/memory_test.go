package server

import (
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker/server/internal/requests"
)

func TestFitMemory(t *testing.T) {
	const body = 4 << 20
	for _, c := range []struct {
		name    string
		in      Options
		memory  int64
		want    Options
		refused string
	}{
		{"512 MiB", Options{}, 410 << 20, Options{MaxTransitBytes: 410 << 18, MaxParkedBytes: 410 << 17, MaxReceiveSize: 410<<16 - requests.StreamWindow}, ""},
		{"no limit", Options{}, 1<<63 - 1, Options{MaxTransitBytes: 256 << 20, MaxParkedBytes: 128 << 20, MaxReceiveSize: defaultMaxReceiveSize}, ""},
		{"a large machine", Options{}, 1 << 40, Options{MaxTransitBytes: 1 << 30, MaxParkedBytes: 1 << 30, MaxReceiveSize: defaultMaxReceiveSize}, ""},
		{"a tiny one", Options{}, 64 << 20, Options{MaxTransitBytes: 64 << 20, MaxParkedBytes: 8 << 20, MaxReceiveSize: 16<<20 - requests.StreamWindow}, ""},
		{"too little", Options{MaxTransitBytes: 63 << 20}, 1 << 30, Options{}, "MaxTransitBytes is 66060288"},
		{"too little for one receive", Options{MaxParkedBytes: 1 << 10}, 1 << 30, Options{}, "MaxParkedBytes is 1024"},
		{"too large a request", Options{MaxReceiveSize: 17 << 20}, 64 << 20, Options{}, "MaxReceiveSize is 17825792"},
	} {
		got := c.in
		err := got.fitMemory(c.memory, body)
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || got.MaxTransitBytes != c.want.MaxTransitBytes || got.MaxParkedBytes != c.want.MaxParkedBytes || got.MaxReceiveSize != c.want.MaxReceiveSize {
			t.Errorf("%s: %d, %d, %d, %v", c.name, got.MaxTransitBytes, got.MaxParkedBytes, got.MaxReceiveSize, err)
		}
	}
	if err := (Options{MaxTransitBytes: 64 << 20, MaxReceiveSize: 17 << 20}).Validate(); err == nil || !strings.Contains(err.Error(), "MaxReceiveSize is 17825792") {
		t.Errorf("both set: %v", err)
	}
}
