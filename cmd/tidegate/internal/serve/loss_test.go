package serve

import (
	"crypto/rand"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// A message log that is truncated after kill -9 is not opened silently: serve names the log and the
// flag that accepts the loss, and starts with that flag.
func TestTruncatedLogAfterKill(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data", dir, "--topic", "orders")
	c := dial(t, p)
	for range 20 {
		if r := c.Send(t.Context(), []*tidegate.Message{{ID: rand.Text(), Topic: "orders", Body: make([]byte, 1000)}})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	c.Close()
	p.kill()
	logs, err := filepath.Glob(filepath.Join(dir, "messages", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	log := logs[len(logs)-1]
	info := assert.Value(os.Stat(log))(t)
	assert.Must(t, os.Truncate(log, min(info.Size(), 20_000)-10_000))
	before := content(t, dir)
	var stdout, stderr strings.Builder
	code := run(t.Context(), []string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", dir}, &stdout, &stderr)
	for _, w := range []string{log, "--accept-data-loss", "restore"} {
		if code != 1 || !strings.Contains(stderr.String(), w) {
			t.Errorf("code %d, and stderr does not contain %q: %s", code, w, stderr.String())
		}
	}
	assert.Equal(t, "there was, and is", content(t, dir), before)
	p = start(t, "--data", dir, "--accept-data-loss")
	p.await(t, 0, "data is missing")
	if code := p.stop(); code != 0 {
		t.Errorf("SIGTERM: exit code %d\n%s", code, p.stderr.String())
	}
	p = start(t, "--data", dir)
	if code := p.stop(); code != 0 {
		t.Errorf("SIGTERM: exit code %d\n%s", code, p.stderr.String())
	}
}

// content returns the names and sizes of the files of the databases.
func content(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	for _, db := range []string{"messages", "groups"} {
		assert.Must(t, filepath.WalkDir(filepath.Join(dir, db), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			all.WriteString(path + " " + info.ModTime().String() + "\n")
			return err
		}))
	}
	return all.String()
}
