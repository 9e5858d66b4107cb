package store

import (
	"path"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// unneeded are the files without which a directory opens with all its data: locks, the reserves of
// the disk, copies of the content of another file, and the record of Pebble's options after a
// crash.
func unneeded(name string, closed bool) bool {
	base := path.Base(name)
	switch {
	case base == "LOCK", strings.HasPrefix(base, "SYNCED."), base == "VALUES", base == "BALLAST", base == "RESERVE", base == "CLEAN", name == "IDENTITY":
		return true
	case strings.HasPrefix(base, "OPTIONS-"):
		return !closed
	}
	return false
}

// The error of each file that is missing names the file and the remedy, after a crash and after an
// orderly close.
func TestEachMissingFileIsNamed(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{false, true} {
		whole := crashedDir(t)
		if closed {
			s, err := openDir("data", whole)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		var files []string
		for _, dir := range []string{"", messagesDir, groupsDir} {
			for _, name := range list(t, whole, path.Join("data", dir)) {
				if name != messagesDir && name != groupsDir {
					files = append(files, path.Join(dir, name))
				}
			}
		}
		tables := 0
		for _, name := range files {
			fs := vfs.NewMem()
			if ok, err := vfs.Clone(whole, fs, "data", "data"); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if err := fs.Remove(path.Join("data", name)); err != nil {
				t.Fatal(err)
			}
			s, err := openDir("data", fs)
			switch {
			case err == nil:
				if !unneeded(name, closed) && (!strings.HasSuffix(name, ".sst") || !isWhole(t, s)) {
					t.Errorf("closed %v: the directory opened without %s", closed, name)
				}
				s.Close()
				continue
			case unneeded(name, closed):
				t.Errorf("closed %v: without %s: %v", closed, name, err)
				continue
			}
			if strings.HasSuffix(name, ".sst") {
				tables++
			}
			base, _, _ := strings.Cut(path.Base(name), ".0") // the number of a marker is not known
			for _, want := range []string{base, "restore the whole data directory from a backup", "give another directory"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("closed %v: without %s the error does not contain %q: %v", closed, name, want, err)
				}
			}
		}
		if tables == 0 {
			t.Error("no table was needed")
		}
	}
}

// isWhole reports whether a store has all that crashedDir wrote. A compaction can have replaced a
// table that is still in the directory.
func isWhole(t *testing.T, s *Store) bool {
	t.Helper()
	for i := range int64(20) {
		if _, found, err := s.Get(Place{Topic: 1, Queue: 0, Offset: i}); !found || err != nil {
			return false
		}
	}
	var last Cursor
	err := s.Cursors(func(_, _ uint32, _ uint16, c Cursor) error { last = c; return nil })
	return err == nil && last.Next == 19
}
