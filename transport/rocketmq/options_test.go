package rocketmq

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

func TestNewRejects(t *testing.T) {
	_, err := New("nowhere", Options{
		RequestTimeout: -1, HeartbeatInterval: -1, RouteRefresh: -1, SettingsSync: -1, MaxReceiveSize: -1, Compression: -1,
		Namespace: "a b", ClientID: "ü", Credentials: tidegate.Credentials{AccessKey: "x"},
	})
	for _, field := range []string{"nowhere", "RequestTimeout", "HeartbeatInterval", "RouteRefresh", "SettingsSync",
		"MaxReceiveSize", "Compression", "Namespace", "ClientID", "Credentials"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
	if _, err := New("host:1", Options{ConnectBackoff: backoff.Exponential{Initial: -1}}); !errors.Is(err, tidegate.ErrInvalid) ||
		!strings.Contains(err.Error(), "ConnectBackoff") {
		t.Errorf("ConnectBackoff alone: %v does not match ErrInvalid", err)
	}
	for _, bad := range []string{"", ";", "host", "host:0", "host:65536", ":1", "1.2.3.4:1;host:1", "[::1:1"} {
		if c, err := New(bad, Options{}); !errors.Is(err, tidegate.ErrInvalid) || c != nil {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A client without Options.Logger logs nothing.
func TestDefaults(t *testing.T) {
	o, err := Options{}.withDefaults()
	if err != nil || o.Logger.Enabled(t.Context(), slog.LevelError) || !headerSafe(o.ClientID) || o.RequestTimeout != 3*time.Second ||
		o.MaxReceiveSize != 32<<20 || o.ConnectBackoff.Max != 120*time.Second {
		t.Errorf("%+v, %v", o, err)
	}
	if p, _ := (Options{}).withDefaults(); p.ClientID == o.ClientID {
		t.Errorf("two clients have the ID %s", p.ClientID)
	}
}
