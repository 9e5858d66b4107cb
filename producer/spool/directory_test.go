package spool

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// The name of a new directory is on disk before the spool is open: otherwise a power failure could
// lose all messages that the spool has accepted. Other users cannot read the directory.
func TestNewDirectoryIsDurable(t *testing.T) {
	errSync := errors.New("by the test")
	for _, tt := range []struct {
		name   string
		exists bool
		err    error // of the sync
		syncs  int
		opens  bool
	}{
		{"a new directory", false, nil, 1, true},
		{"a new directory on a broken disk", false, errSync, 1, false},
		{"an existing directory", true, nil, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parent := t.TempDir()
			path := filepath.Join(parent, "orders.spool")
			if tt.exists {
				assert.Must(t, os.Mkdir(path, 0o700))
			}
			var synced []string
			lock, err := prepare(path, func(dir string) error { synced = append(synced, dir); return tt.err })
			if tt.opens {
				assert.Must(t, err)
				defer lock.Close()
			} else if !errors.Is(err, errSync) {
				t.Errorf("error %v, want that of the disk", err)
			}
			want := []string{parent, parent}[:tt.syncs]
			assert.That(t, slices.Equal(synced, want), "synced %q, want %q", synced, want)
			info := assert.Value(os.Stat(path))(t)
			if m := info.Mode().Perm(); m != 0o700 && runtime.GOOS != "windows" {
				t.Errorf("the directory has the mode %v, want rwx for its owner alone", m)
			}
		})
	}
}
