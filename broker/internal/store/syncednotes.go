package store

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// syncedSlot is the size of one of the two slots in the file of SyncedNotes: a page, so that a
	// power failure within a write of one slot leaves the other one whole.
	syncedSlot = 4 << 10
	// numberEntry is the entry of a slot that has its number. The slot with the higher number
	// counts.
	numberEntry = "number"
)

// syncedNotes has how many bytes of each log and manifest of a database are on disk, in a file of
// its own. Each fsync of a log updates the file without an fsync of the file. The file is therefore
// never ahead of the disk. It survives the end of the process, and can lag after a power failure.
//
// A log is removed, created again or used again only after its entry was removed from the disk, and
// it gets an entry after its name is on disk. So each file with an entry exists and has at least
// the bytes of its entry.
type syncedNotes struct {
	logger *slog.Logger
	path   string

	mu     sync.Mutex // held over writing the file, which the one writer of a log waits for anyway
	file   vfs.File   // nil after Close
	number uint64
	files  []syncedFile // the oldest first
	buf    []byte
	used   [2]int // of each slot
	failed bool   // the last write failed, which was logged
}

// A syncedFile is how many bytes of a file of a database are on disk.
type syncedFile struct {
	Name  string
	Bytes int64
}

// readSynced reads the file of a SyncedNotes. It returns nothing if there is none, or if no slot of
// it is whole, as after a power failure.
func readSynced(vfs vfs.FS, path string) (files []syncedFile, number uint64, err error) {
	text, err := readFile(vfs, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	for slot := range slices.Chunk(text, syncedSlot) {
		if fs, n := parseSynced(slot); n > number {
			files, number = fs, n
		}
	}
	return files, number, nil
}

// parseSynced returns the content of a slot, and 0 if the slot is not whole.
func parseSynced(slot []byte) (files []syncedFile, number uint64) {
	lines, ok := parseSums([]byte(strings.TrimRight(string(slot), "\x00")))
	if !ok {
		return nil, 0
	}
	for name, text := range lines {
		n, err := strconv.ParseUint(text, 10, 63)
		switch {
		case err != nil:
			return nil, 0
		case name == numberEntry:
			number = n
		default:
			files = append(files, syncedFile{name, int64(n)})
		}
	}
	slices.SortFunc(files, func(a, b syncedFile) int { return strings.Compare(a.Name, b.Name) })
	return files, number
}

// appendSynced appends the content of a slot to an empty buffer. Entries that have no space are
// left out, the oldest first.
func appendSynced(b []byte, files []syncedFile, number uint64) []byte {
	for {
		b = append(append(b[:0], numberEntry...), ' ')
		b = append(strconv.AppendUint(b, number, 10), '\n')
		for _, f := range files {
			b = append(append(b, f.Name...), ' ')
			b = append(strconv.AppendInt(b, f.Bytes, 10), '\n')
		}
		if len(b)+len("01234567\n") < syncedSlot { // a zero follows
			sum := binary.BigEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli))
			return append(hex.AppendEncode(b, sum), '\n')
		}
		files = files[1:]
	}
}

// openSynced creates the file of a database's notes and returns them. files and number are the
// results of ReadSynced. The caller has to call Close.
func openSynced(fs vfs.FS, path string, files []syncedFile, number uint64, logger *slog.Logger) (*syncedNotes, error) {
	n := &syncedNotes{logger: logger, path: path, files: files, number: number + 1, buf: make([]byte, syncedSlot)}
	slot := n.slot()
	n.used = [2]int{syncedSlot, syncedSlot}
	if err := writeFile(fs, path, append(slices.Clone(slot), slot...)); err != nil {
		return nil, err
	}
	var err error
	n.file, err = fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	return n, err
}

// Close closes the file. Later notes fail: a database whose start was given up can still write.
func (n *syncedNotes) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.file
	n.file = nil
	return f.Close()
}

// slot returns the content of a slot. mu is held.
func (n *syncedNotes) slot() []byte {
	n.buf = appendSynced(n.buf, n.files, n.number)
	used := len(n.buf)
	n.buf = n.buf[:syncedSlot]
	clear(n.buf[used:])
	return n.buf
}

// synced notes that so many bytes of a file are on disk. A failure is logged: the entry then lags.
func (n *syncedNotes) synced(name string, bytes int64) {
	if err := n.record(name, bytes); err != nil {
		n.logger.Warn("the length of a log was not recorded; after a crash a truncated log may not be found", "file", n.path, "error", err)
	}
}

// record changes the entry of a file, and returns the first failure of several in a row.
func (n *syncedNotes) record(name string, bytes int64) (first error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.files, func(f syncedFile) bool { return f.Name == name })
	if i < 0 {
		i = len(n.files)
		n.files = append(n.files, syncedFile{Name: name})
	}
	n.files[i].Bytes = bytes
	err := n.write()
	if !n.failed {
		first = err
	}
	n.failed = err != nil
	return first
}

// write writes the next slot. mu is held.
func (n *syncedNotes) write() error {
	if n.file == nil {
		return fs.ErrClosed
	}
	n.number++
	slot, at := n.slot(), n.number%2
	used := bytes.IndexByte(slot, 0)
	end := max(used, n.used[at]) // to the end of the text that is there
	n.used[at] = used
	_, err := n.file.WriteAt(slot[:end], int64(at)*syncedSlot)
	return err
}

// forget removes the entry of a file from the disk, before the file is removed or used again.
func (n *syncedNotes) forget(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.files, func(f syncedFile) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	n.files = slices.Delete(n.files, i, i+1)
	// Both slots: a power failure may leave either.
	if err := errors.Join(n.write(), n.write()); err != nil {
		return err
	}
	return n.file.Sync()
}

// syncedFS notes how many bytes of each log and manifest in a directory are on disk.
type syncedFS struct {
	vfs.FS
	Dir   string
	Notes *syncedNotes
}

func (fs syncedFS) forget(name string) error {
	if fs.PathDir(name) != fs.Dir { // of a snapshot
		return nil
	}
	return fs.Notes.forget(fs.PathBase(name))
}

// Create implements vfs.FS.
func (fs syncedFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.forget(name); err != nil {
		return nil, err
	}
	f, err := fs.FS.Create(name, c)
	return fs.wrap(name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (fs syncedFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.forget(old); err != nil {
		return nil, err
	}
	f, err := fs.FS.ReuseForWrite(old, name, c)
	return fs.wrap(name, f, err)
}

// Remove implements vfs.FS.
func (fs syncedFS) Remove(name string) error {
	if err := fs.forget(name); err != nil {
		return err
	}
	return fs.FS.Remove(name)
}

// Unwrap implements vfs.FS.
func (fs syncedFS) Unwrap() vfs.FS { return fs.FS }

func (fs syncedFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	base := fs.PathBase(name)
	if err != nil || fs.PathDir(name) != fs.Dir || !strings.HasSuffix(base, logSuffix) && !strings.HasPrefix(base, manifestPrefix) {
		return f, err
	}
	return &notedFile{File: f, fs: fs, path: name}, nil
}

// A notedFile is a log or manifest that is being written, by one goroutine at a time.
type notedFile struct {
	vfs.File
	fs      syncedFS
	path    string
	written int64
	named   bool // its name is on disk
}

// Write implements vfs.File.
func (f *notedFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err
}

// Sync implements vfs.File.
func (f *notedFile) Sync() error { return f.noted(f.File.Sync()) }

// SyncData implements vfs.File.
func (f *notedFile) SyncData() error { return f.noted(f.File.SyncData()) }

func (f *notedFile) noted(err error) error {
	if err == nil && !f.named { // Pebble syncs the directory of a manifest later
		err = syncDir(f.fs.FS, f.fs.PathDir(f.path))
		f.named = err == nil
	}
	if err == nil {
		f.fs.Notes.synced(f.fs.PathBase(f.path), f.written)
	}
	return err
}

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
	fs     vfs.FS // nil: the notes are only in memory
	dir    string // the data directory
	db     string // the directory of the database with files of values, below dir

	noRewrite atomic.Bool // no file of values is rewritten

	mu     sync.Mutex           // guards the rest, and writing DamagedFile
	last   time.Time            // when a corrupt file was read
	logged map[string]time.Time // by file, when it was last logged
	values []string             // the names of the corrupt files of values
}

// newDamageNotes returns notes that are only in memory.
func newDamageNotes(logger *slog.Logger) *damageNotes { return &damageNotes{logger: logger} }

// StoreIn makes the notes persistent, in a file of the directory dir. The files of values are those
// of the database db in it. Nothing else uses the notes yet.
func (d *damageNotes) StoreIn(fs vfs.FS, dir, db string) { d.fs, d.dir, d.db = fs, dir, db }

func (d *damageNotes) path() string { return d.fs.PathJoin(d.dir, damagedFile) }

// Found notes a corrupt file, and logs it once in a while.
func (d *damageNotes) Found(file string, err error) {
	report, failed := d.note(file, time.Now())
	if failed != nil {
		d.logger.Error("the list of corrupt files was not written", "file", d.path(), "error", failed)
	}
	if report {
		d.logger.Error("corrupt file in the data directory; restore it from a backup, or its messages are skipped", "file", file, "error", err)
	}
}

// note reports whether the file is to be logged, and the failure to record it.
func (d *damageNotes) note(file string, now time.Time) (report bool, failed error) {
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
func (d *damageNotes) write() error {
	if d.fs == nil {
		return nil
	}
	if len(d.values) == 0 {
		return errors.Join(d.fs.Remove(d.path()), syncDir(d.fs, d.dir))
	}
	return writeFile(d.fs, d.path(), []byte(strings.Join(d.values, "\n")+"\n"))
}

// Read reads the record from before the store was opened, and removes files that no longer exist.
func (d *damageNotes) Read() error {
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
func (d *damageNotes) GarbageRatio() float64 {
	if d.noRewrite.Load() {
		return 1
	}
	return targetGarbage
}

// Recent reports whether a corrupt file was read just now.
func (d *damageNotes) Recent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.last.IsZero() && time.Since(d.last) < damagePause
}
