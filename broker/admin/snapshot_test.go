package admin_test

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

// Snapshot returns the path of a copy that a broker can open.
func TestSnapshot(t *testing.T) {
	dir := t.TempDir()
	b, err := broker.Open(broker.Options{Dir: filepath.Join(dir, "data")})
	assert.Must(t, err)
	defer b.Close()
	assert.Must(t, assert.Err(b.PutTopic(t.Context(), "orders", settings.Topic{})))
	s, err := server.New(b, server.Options{Advertise: "127.0.0.1:8081", SnapshotDir: dir})
	assert.Must(t, err)
	defer s.Close()
	web := httptest.NewServer(s.Handler())
	defer web.Close()
	path, err := client(t, web.URL, admin.Options{}).Snapshot(t.Context())
	assert.MustThat(t, err == nil && filepath.Dir(path) == dir, "the snapshot is in %q, %v; want a directory below %s", path, err, dir)
	assert.Must(t, os.Rename(path, filepath.Join(dir, "copy")))
	restored, err := broker.Open(broker.Options{Dir: filepath.Join(dir, "copy")})
	assert.Must(t, err)
	defer restored.Close()
	assert.NoError(t, assert.Err(restored.Topic("orders")))
}
