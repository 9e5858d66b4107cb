package store

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// damagedFile names the corrupt files of values that were found, one a line.
	damagedFile = "DAMAGED"

	// damageQuiet is how long a corrupt file is not logged again.
	damageQuiet = time.Minute

	// damagePause is how long a new table waits after a corrupt file was read.
	// Pebble repeats a compaction that failed at once and without end.
	damagePause = 100 * time.Millisecond

	// targetGarbage is which part of the values on disk may be garbage before
	// files of values are rewritten.
	targetGarbage = 0.3
)

// damageNotes are the corrupt files that are known.
//
// Pebble 2.1 panics in a goroutine of its own if it cannot read a block of a file of
// values that it rewrites. So none is rewritten once one of them is known to be
// corrupt: the process ends at most once for it, and not again after each start.
// The space of removed messages is then taken back only where a whole file has no message left.
type damageNotes struct {
	logger *slog.Logger
	fs     vfs.FS // nil: in memory, nothing is kept
	dir    string // the data directory

	keep atomic.Bool // no file of values is rewritten

	mu     sync.Mutex           // guards the rest, and writing damagedFile
	last   time.Time            // when a corrupt file was read
	logged map[string]time.Time // by file, when it was last logged
	values []string             // the names of the corrupt files of values
}

func (d *damageNotes) path() string { return d.fs.PathJoin(d.dir, damagedFile) }

// found notes a corrupt file, and logs it once in a while.
func (d *damageNotes) found(file string, err error) {
	if d.note(file, time.Now()) {
		d.logger.Error("a file of the store is damaged; restore it from a copy, or go on without what it has", "file", file, "error", err)
	}
}

// note reports whether the file is to be logged.
func (d *damageNotes) note(file string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = now
	if name := filepath.Base(file); isValues(name) && !slices.Contains(d.values, name) {
		d.keep.Store(true)
		d.values = append(d.values, name)
		if err := d.write(); err != nil {
			d.logger.Error("the corrupt files could not be noted", "file", d.path(), "error", err)
		}
	}
	if at, known := d.logged[file]; known && now.Sub(at) < damageQuiet {
		return false
	}
	if d.logged == nil {
		d.logged = map[string]time.Time{}
	}
	d.logged[file] = now
	return true
}

// write makes damagedFile name what is known. mu is held.
func (d *damageNotes) write() error {
	if d.fs == nil {
		return nil
	}
	if len(d.values) == 0 {
		return errors.Join(d.fs.Remove(d.path()), syncDir(d.fs, d.dir))
	}
	return writeFile(d.fs, d.path(), []byte(strings.Join(d.values, "\n")+"\n"))
}

// read takes what was noted before the store was opened, and forgets files that are gone since.
func (d *damageNotes) read() error {
	if d.fs == nil {
		return nil
	}
	text, err := readFile(d.fs, d.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	before := strings.Fields(string(text))
	for _, name := range before {
		if _, err := d.fs.Stat(d.fs.PathJoin(d.dir, messagesDir, name)); err == nil {
			d.values = append(d.values, name)
		}
	}
	if len(d.values) > 0 {
		d.keep.Store(true)
		d.logger.Warn("files of the store are damaged; until they are restored from a copy, files are not rewritten to take back the space of removed messages", "files", d.values)
	}
	if len(d.values) == len(before) {
		return nil
	}
	return d.write()
}

// garbageRatio returns which part of the values on disk may be garbage before files of
// values are rewritten; 1 stands for all.
func (d *damageNotes) garbageRatio() float64 {
	if d.keep.Load() {
		return 1
	}
	return targetGarbage
}

// recent reports whether a corrupt file was read just now.
func (d *damageNotes) recent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.last.IsZero() && time.Since(d.last) < damagePause
}

func isValues(name string) bool { return strings.HasSuffix(name, ".blob") }

// readFile returns the whole of a small file.
func readFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(struct{ io.Reader }{f})
	return text, errors.Join(err, f.Close())
}

// writeFile writes a small file whole, or not at all.
func writeFile(fs vfs.FS, path string, text []byte) error {
	f, err := fs.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := fs.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(fs, fs.PathDir(path))
}
