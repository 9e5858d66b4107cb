package admin_test

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

// Snapshot returns the path of a copy that a broker can open.
func TestSnapshot(t *testing.T) {
	dir := t.TempDir()
	b, err := broker.Open(broker.Options{Dir: filepath.Join(dir, "data")})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.PutTopic(t.Context(), "orders", settings.Topic{}); err != nil {
		t.Fatal(err)
	}
	s, err := server.New(b, server.Options{Advertise: "127.0.0.1:8081", SnapshotDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	web := httptest.NewServer(s.Handler())
	defer web.Close()
	path, err := client(t, web.URL, admin.Options{}).Snapshot(t.Context())
	if err != nil || filepath.Dir(path) != dir {
		t.Fatalf("the snapshot is in %q, %v; want a directory below %s", path, err, dir)
	}
	if err := os.Rename(path, filepath.Join(dir, "copy")); err != nil {
		t.Fatal(err)
	}
	restored, err := broker.Open(broker.Options{Dir: filepath.Join(dir, "copy")})
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Close()
	if _, err := restored.Topic("orders"); err != nil {
		t.Error(err)
	}
}
