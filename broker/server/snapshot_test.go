package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
)

// Two snapshots over HTTP are two data directories, each named in its response. A server without a
// directory for snapshots, and one in memory, reject the request with the remedy.
func TestSnapshotOverHTTP(t *testing.T) {
	post := func(e *env) (status int, text string) {
		t.Helper()
		srv := httptest.NewServer(e.s.Handler())
		defer srv.Close()
		resp, err := http.Post(srv.URL+"/v1/snapshot", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	dir := t.TempDir()
	snapshots := filepath.Join(dir, "snapshots")
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(here, snapshots) // the response names the absolute path
	if err != nil {
		t.Fatal(err)
	}
	e := startWith(t, broker.Options{Dir: filepath.Join(dir, "data")}, server.Options{SnapshotDir: relative})
	for range 2 {
		status, text := post(e)
		var s struct{ Path string }
		if err := json.Unmarshal([]byte(text), &s); status != 201 || err != nil || filepath.Dir(s.Path) != snapshots {
			t.Fatalf("status %d, %s", status, text)
		}
		b, err := broker.Open(broker.Options{Dir: s.Path})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Topic("fifo"); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	if names, err := os.ReadDir(snapshots); err != nil || len(names) != 2 {
		t.Errorf("the directory of snapshots has %v, %v", names, err)
	}
	for want, e := range map[string]*env{
		"--snapshot-dir": startWith(t, broker.Options{Dir: filepath.Join(dir, "other")}, server.Options{}),
		"in memory":      start(t, server.Options{SnapshotDir: snapshots}),
	} {
		if status, text := post(e); status != 400 || !strings.Contains(text, want) {
			t.Errorf("status %d, and the response does not contain %q: %s", status, want, text)
		}
	}
}
