package diskfs

import (
	"errors"
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
	// DamagedFile names the corrupt files of values that were found, one a line.
	DamagedFile = "DAMAGED"

	// damageQuiet is how long a corrupt file is not logged again.
	damageQuiet = time.Minute

	// damagePause is how long a new table waits after a corrupt file was read.
	// Pebble repeats a compaction that failed at once and without end.
	damagePause = 100 * time.Millisecond

	// TargetGarbage is which part of the values on disk may be garbage before
	// files of values are rewritten.
	TargetGarbage = 0.3
)

// DamageNotes are the corrupt files that are known.
//
// Pebble 2.1 panics in a goroutine of its own if it cannot read a block of a file of
// values that it rewrites. So none is rewritten once one of them is known to be
// corrupt: the process ends at most once for it, and not again after each start.
// The space of removed messages is then taken back only where a whole file has no message left.
type DamageNotes struct {
	logger *slog.Logger
	fs     vfs.FS // nil: the notes are only in memory
	dir    string // the data directory
	db     string // the directory of the database with files of values, below dir

	noRewrite atomic.Bool // no file of values is rewritten

	mu     sync.Mutex           // guards the rest, and writing DamagedFile
	last   time.Time            // when a corrupt file was read
	logged map[string]time.Time // by file, when it was last logged
	values []string             // the names of the corrupt files of values
}

// NewDamageNotes returns notes that are only in memory.
func NewDamageNotes(logger *slog.Logger) *DamageNotes { return &DamageNotes{logger: logger} }

// StoreIn makes the notes persistent, in a file of the directory dir. The files of values are those
// of the database db in it. Nothing else uses the notes yet.
func (d *DamageNotes) StoreIn(fs vfs.FS, dir, db string) { d.fs, d.dir, d.db = fs, dir, db }

func (d *DamageNotes) path() string { return d.fs.PathJoin(d.dir, DamagedFile) }

// Found notes a corrupt file, and logs it once in a while.
func (d *DamageNotes) Found(file string, err error) {
	report, failed := d.note(file, time.Now())
	if failed != nil {
		d.logger.Error("the list of corrupt files was not written", "file", d.path(), "error", failed)
	}
	if report {
		d.logger.Error("corrupt file in the data directory; restore it from a backup, or its messages are skipped", "file", file, "error", err)
	}
}

// note reports whether the file is to be logged, and the failure to record it.
func (d *DamageNotes) note(file string, now time.Time) (report bool, failed error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = now
	if name := filepath.Base(file); isValues(name) && !slices.Contains(d.values, name) {
		d.noRewrite.Store(true)
		d.values = append(d.values, name)
		failed = d.write()
	}
	if at, known := d.logged[file]; known && now.Sub(at) < damageQuiet {
		return false, failed
	}
	if d.logged == nil {
		d.logged = map[string]time.Time{}
	}
	d.logged[file] = now
	return true, failed
}

// write writes the known files to DamagedFile. mu is held.
func (d *DamageNotes) write() error {
	if d.fs == nil {
		return nil
	}
	if len(d.values) == 0 {
		return errors.Join(d.fs.Remove(d.path()), SyncDir(d.fs, d.dir))
	}
	return WriteFile(d.fs, d.path(), []byte(strings.Join(d.values, "\n")+"\n"))
}

// Read reads the record from before the store was opened, and removes files that no longer exist.
func (d *DamageNotes) Read() error {
	if d.fs == nil {
		return nil
	}
	text, err := ReadFile(d.fs, d.path())
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
		if _, err := d.fs.Stat(d.fs.PathJoin(d.dir, d.db, name)); err == nil {
			d.values = append(d.values, name)
		}
	}
	if len(d.values) > 0 {
		d.noRewrite.Store(true)
		d.logger.Warn("corrupt files in the data directory; until they are restored from a backup, the space of removed messages is not freed", "files", d.values)
	}
	if len(d.values) == len(before) {
		return nil
	}
	return d.write()
}

// GarbageRatio returns the part of the values on disk that can be garbage before blob files are
// rewritten; 1 means all.
func (d *DamageNotes) GarbageRatio() float64 {
	if d.noRewrite.Load() {
		return 1
	}
	return TargetGarbage
}

// Recent reports whether a corrupt file was read just now.
func (d *DamageNotes) Recent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.last.IsZero() && time.Since(d.last) < damagePause
}
