package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/blob"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The form of Pebble's write-ahead log from FormatWALSyncChunks on: blocks of 32 KiB
// with chunks in them, each with its checksum (4 bytes), length (2), type (1), the
// log's number (4), and how far the log was synced when the chunk was written (8).
const (
	walBlock      = 32 << 10
	walHeader     = 19
	walLengthAt   = 4
	walTypeAt     = 6
	walNumberAt   = 7
	walSyncedAt   = 11
	walFirstType  = 9 // 9 to 12: whole records, and their first, middle and last parts
	walLastType   = 12
	walCheckedAt  = walTypeAt // the checksum covers the bytes after it
	walCRCAddend  = 0xa282ead8
	walCRCRotated = 15
)

// logSyncFS adds to write-ahead logs how far they were synced. A reader treats a damaged chunk as
// the end of the log, unless a later chunk records that the log was synced beyond it. Pebble 2.1.7
// writes too small a number (record/log_writer.go counts no full blocks that were waiting). Damage
// in megabytes of synced data was therefore the end of the log, and messages after it were lost
// silently.
type logSyncFS struct{ vfs.FS }

// Create implements vfs.FS.
func (fs logSyncFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return wrapLog(name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (fs logSyncFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(old, name, c)
	return wrapLog(name, f, err)
}

// Unwrap implements vfs.FS.
func (fs logSyncFS) Unwrap() vfs.FS { return fs.FS }

func wrapLog(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, logSuffix) {
		return f, err
	}
	return &syncedLog{File: f}, nil
}

// A syncedLog is a log that is being written. Pebble writes and syncs one from one goroutine.
type syncedLog struct {
	vfs.File
	written, synced int64
	buf             []byte
}

// Write implements vfs.File. Pebble writes whole chunks, at most to the end of a block.
func (f *syncedLog) Write(p []byte) (int, error) {
	f.buf = append(f.buf[:0], p...)
	noteSynced(f.buf, f.written, f.synced)
	n, err := f.File.Write(f.buf)
	f.written += int64(n)
	return n, err
}

// Sync implements vfs.File.
func (f *syncedLog) Sync() error { return f.noted(f.File.Sync()) }

// SyncData implements vfs.File.
func (f *syncedLog) SyncData() error { return f.noted(f.File.SyncData()) }

func (f *syncedLog) noted(err error) error {
	if err == nil {
		f.synced = f.written
	}
	return err
}

// noteSynced writes into the chunks of p, which is for offset at of a log, how far the log is
// synced. If p does not have the expected form, the rest is not changed.
func noteSynced(p []byte, at, synced int64) {
	for len(p) > 0 {
		left := walBlock - int(at%walBlock) // of the block
		if left < walHeader {               // padding
			n := min(left, len(p))
			p, at = p[n:], at+int64(n)
			continue
		}
		if len(p) < walHeader || p[walTypeAt] < walFirstType || p[walTypeAt] > walLastType {
			return // the end of the log
		}
		n := walHeader + int(binary.LittleEndian.Uint16(p[walLengthAt:]))
		if n > len(p) || n > left || binary.LittleEndian.Uint32(p) != walChecksum(p[walCheckedAt:n]) {
			return
		}
		if binary.LittleEndian.Uint64(p[walSyncedAt:]) < uint64(synced) {
			binary.LittleEndian.PutUint64(p[walSyncedAt:], uint64(synced))
			binary.LittleEndian.PutUint32(p, walChecksum(p[walCheckedAt:n]))
		}
		p, at = p[n:], at+int64(n)
	}
}

func walChecksum(p []byte) uint32 {
	c := crc32.Checksum(p, castagnoli)
	return (c>>walCRCRotated | c<<(32-walCRCRotated)) + walCRCAddend
}

// markerFS syncs the names of new files before a marker names one of them. Pebble creates a
// manifest, then the marker with the name of the current manifest, and then syncs the directory for
// both. It relies on a file system that keeps this order. On others, a power failure could leave
// only the marker.
type markerFS struct{ vfs.FS }

// Create implements vfs.FS.
func (fs markerFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(fs.PathBase(name), "marker.") {
		if err := syncDir(fs.FS, fs.PathDir(name)); err != nil {
			return nil, err
		}
	}
	return fs.FS.Create(name, c)
}

// Unwrap implements vfs.FS.
func (fs markerFS) Unwrap() vfs.FS { return fs.FS }

// retryPause is how long a broken store rests before it makes another file.
const retryPause = 100 * time.Millisecond

// pausingFS bounds the processor time of Pebble's retries: Pebble repeats a failed flush or
// compaction at once and without end.
type pausingFS struct {
	vfs.FS
	Store  interface{ Broken() error } // Broken returns why the store can write no more; nil while it can
	Damage *damageNotes
}

// Create implements vfs.FS.
func (fs *pausingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.Store.Broken(); err != nil {
		<-time.After(retryPause)
		return nil, err
	}
	if isTable(name) && fs.Damage.Recent() {
		<-time.After(damagePause)
	}
	return fs.FS.Create(name, c)
}

// Unwrap implements vfs.FS.
func (fs *pausingFS) Unwrap() vfs.FS { return fs.FS }

// GetDiskUsage implements vfs.FS. Pebble can do without it, so a failure is
// not one of the store.
func (fs *pausingFS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	u, err := fs.FS.GetDiskUsage(path)
	if err != nil {
		err = vfs.ErrUnsupported
	}
	return u, err
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

// syncDir syncs a directory, so that a power failure does not take back its entries.
func syncDir(fs vfs.FS, name string) error {
	d, err := fs.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// isTable reports whether a file is a table or a file of values, by its name.
func isTable(name string) bool {
	return strings.HasSuffix(name, ".sst") || isValues(name)
}

// isDamage reports whether an error is that of a damaged file or record, which no
// second reading will cure.
func isDamage(err error) bool {
	return pebble.IsCorruptionError(err) || errors.Is(err, errCorrupt)
}

const (
	ballastFile = "BALLAST"
	reserveFile = "RESERVE"

	// startFile exists while a start uses the space of the ballast or of the reserve.
	startFile = "START"

	// mostBallast is the size of the ballast: space for about a million acknowledgements, and for
	// the tables of both databases. On a disk of less than 1 GiB it is smallDisk of it, so that
	// there is space for messages: the ballast needs the same space beside it.
	mostBallast = 64 << 20
	smallDisk   = 16

	// mostReserve is the size of the reserve for a start, on a disk of less than 768 MiB
	// reservePart of it. Opening writes tables with all writes that are only in logs, before it
	// removes the logs: two memtables and a batch of each database (Space.MemTable, Space.Held).
	mostReserve = 96 << 20
	reservePart = 8

	// keepPart is the part of the reserve that a full disk keeps free after a start, for the
	// consumers and for the removal of messages. The reserve is smaller then, but at least half of
	// it, if so much is free. Less than a quarter is not worth a reserve.
	keepPart  = 8
	halfPart  = 2
	leastPart = 4

	// fullLook is how often a full disk is looked at, fullPause how long a
	// write that finds no room rests before it is tried again. While the databases are opened,
	// it is tried startTries times.
	fullLook   = time.Second
	fullPause  = 100 * time.Millisecond
	startTries = 20
)

// isFull reports whether an error means that the disk or its quota has no space left.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// A space is how a disk is divided.
type space struct {
	Ballast, Reserve int64
}

// spaceOf returns how a disk of so many bytes is divided; 0 means that the size is unknown.
func spaceOf(total uint64) space {
	if total == 0 {
		return space{mostBallast, mostReserve}
	}
	return space{int64(min(mostBallast, total/smallDisk)), int64(min(mostReserve, total/reservePart))}
}

// MemTable returns the size of the larger memtables, so that the tables of two of them and of two
// of the smaller ones fit in the reserve beside Held: 12 MiB unless the disk is small.
func (s space) MemTable() uint64 { return uint64(max(s.Reserve/8, 256<<10)) }

// Held returns the largest number of bytes of writes that are not on disk, which can become one
// batch: 64 MiB unless the disk is small.
func (s space) Held() int64 { return s.Reserve / 3 * 2 }

// fullFS lets a Pebble database survive a full disk, and a kill of the process on a full disk. It
// owns two files that only reserve space.
//
// A write that finds no space removes the ballast and is repeated. From then on the disk counts as
// full, until there is space for the ballast again and as much beside it. If the ballast does not
// suffice, writes of logs and manifests wait for space, because Pebble ends after their failure.
// Writes of tables fail, and Pebble repeats them.
//
// The reserve is for the next start, which writes the content of the logs to tables before it
// removes the logs. Only such a start removes it. The disk counts as full until it is there again.
//
// A sync that fails for lack of space, as on network file systems, is not repeated, because its
// data can be lost.
type fullFS struct {
	vfs.FS
	dir    string
	logger *slog.Logger

	state   atomic.Pointer[DiskFull]
	spent   atomic.Bool   // there is no reserve: compactions would take its space
	opened  atomic.Bool   // writes wait; before, opening fails instead
	closing chan struct{} // closed by StopWaiting: nothing waits any more
	stop    sync.Once     // closes closing
	watch   sync.WaitGroup

	mu    sync.Mutex // held while the ballast and the reserve change: writes without space wait for them anyway
	start []byte     // guarded by mu: content of StartFile, which is not written yet; nil for none
}

// newFullFS returns a FullFS over fs with its files in the directory dir. Before SetOpened no
// write waits for long.
func newFullFS(fs vfs.FS, dir string, logger *slog.Logger) *fullFS {
	return &fullFS{FS: fs, dir: dir, logger: logger, closing: make(chan struct{})}
}

// A DiskFull is the state of a full disk.
type DiskFull struct {
	Since   time.Time
	Missing int64 // bytes until it counts as full no more, when it was looked at last; at least 1
}

// Full returns the state of the disk if it is full, and nil otherwise.
func (fs *fullFS) Full() *DiskFull { return fs.state.Load() }

// Opened reports whether SetOpened was called.
func (fs *fullFS) Opened() bool { return fs.opened.Load() }

// SetOpened has writes wait for room from now on, and creates the reserve for the next start if it
// is not there. Before, a write that finds no room fails.
func (fs *fullFS) SetOpened() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.opened.Store(true)
	fs.start = nil
	err := fs.makeReserve()
	switch {
	case isFull(err):
		fs.begin()
	case err != nil:
		fs.logger.Warn("no space is reserved for the next start; if the broker is killed while the disk is full, it can need free space to start", "file", fs.reserve(), "error", err)
	}
}

// StopWaiting has nothing wait for room any more: a write that finds none fails. It may be called
// again.
func (fs *fullFS) StopWaiting() { fs.stop.Do(func() { close(fs.closing) }) }

// missing returns how many bytes are not free that should be, at least 1.
func (fs *fullFS) missing() int64 {
	size, free, _ := fs.Space()
	need := 2 * size.Ballast
	if fs.spent.Load() {
		need += size.Reserve
	}
	return max(1, need-free)
}

// Space returns how the disk is divided, and how many of its bytes are free. If the file system
// does not report its space, known is false and free is 0.
func (fs *fullFS) Space() (size space, free int64, known bool) {
	u, err := fs.FS.GetDiskUsage(fs.dir)
	if err != nil || u.TotalBytes == 0 {
		return spaceOf(0), 0, false
	}
	return spaceOf(u.TotalBytes), int64(u.AvailBytes), true
}

func (fs *fullFS) ballast() string { return fs.PathJoin(fs.dir, ballastFile) }
func (fs *fullFS) reserve() string { return fs.PathJoin(fs.dir, reserveFile) }
func (fs *fullFS) started() string { return fs.PathJoin(fs.dir, startFile) }

func (fs *fullFS) exists(name string) bool {
	_, err := fs.FS.Stat(name)
	return err == nil
}

// Prepare creates the ballast and the reserve before the databases are opened. Without room for the
// ballast, the disk counts as full from the beginning. start is the content of StartFile if the
// start will need their space.
func (fs *fullFS) Prepare(start []byte) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.start = start
	err := fs.makeReserve()
	if err == nil {
		err = fs.makeBallast()
	}
	if isFull(err) {
		if !fs.exists(fs.ballast()) {
			fs.begin()
		}
		return nil
	}
	return err
}

// makeReserve creates the reserve if it is not there, and enlarges a smaller one if there is ample
// space. mu is held.
func (fs *fullFS) makeReserve() error {
	size, free, known := fs.Space()
	exists := fs.exists(fs.reserve())
	n := size.Reserve
	if known && free < size.Reserve+2*size.Ballast {
		switch {
		case exists:
			fs.spent.Store(false)
			return nil
		case !fs.opened.Load(): // the start may need the space
			fs.spent.Store(true)
			return syscall.ENOSPC
		}
		n = min(n, max(free-n/keepPart, min(free, n/halfPart)))
		if n < size.Reserve/leastPart {
			fs.spent.Store(true)
			return syscall.ENOSPC
		}
	}
	if err := fs.allocate(fs.reserve(), n); err != nil {
		fs.spent.Store(isFull(err))
		return err
	}
	fs.spent.Store(false)
	if err := fs.FS.Remove(fs.started()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// makeBallast creates the ballast if it is not there, and if as much is left beside it. mu is held.
func (fs *fullFS) makeBallast() error {
	if fs.exists(fs.ballast()) {
		return nil
	}
	size, free, known := fs.Space()
	if known && free < 2*size.Ballast {
		return syscall.ENOSPC
	}
	return fs.allocate(fs.ballast(), size.Ballast)
}

// allocate lets a file without content take size bytes of the disk.
func (fs *fullFS) allocate(name string, size int64) error {
	existed := fs.exists(name)
	f, err := fs.FS.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// If the file system cannot allocate space beforehand, the file takes none: writes wait while
	// the disk is full, and a start can need free space.
	err = f.Preallocate(0, size)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	err = errors.Join(err, f.Close())
	if err != nil && !existed {
		_ = fs.FS.Remove(name)
	}
	return err
}

// remove removes one of the files, and first records the start that needs its space. mu is held.
func (fs *fullFS) remove(name string) {
	if err := fs.FS.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		fs.logger.Error("the space of a file that reserves it was not freed", "file", name, "error", err)
	}
	if fs.start != nil && writeFile(fs.FS, fs.started(), fs.start) == nil {
		fs.start = nil
	}
}

// begin has the disk count as full, and looks after it until there is room for the reserve and for
// the ballast. mu is held.
func (fs *fullFS) begin() {
	if fs.state.Load() != nil {
		return
	}
	since := time.Now()
	missing := fs.missing()
	fs.state.Store(&DiskFull{since, missing})
	fs.logger.Error("disk full; sends are rejected until space is free, consumers continue", "directory", fs.dir, "needed_bytes", missing)
	fs.watch.Go(func() {
		for {
			pause := fullLook
			if fs.spent.Load() {
				pause = fullPause
			}
			select {
			case <-fs.closing:
				return
			case <-time.After(pause):
			}
			if fs.look() {
				return
			}
			fs.state.Store(&DiskFull{since, fs.missing()})
		}
	})
}

// look creates the missing files, and reports whether they are all there, so that the disk is not
// full any more.
func (fs *fullFS) look() bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if !fs.opened.Load() || isFull(fs.makeReserve()) || fs.makeBallast() != nil {
		return false
	}
	fs.state.Store(nil)
	fs.logger.Info("disk has free space again; sends are accepted", "directory", fs.dir)
	return true
}

// giveBack removes the ballast: the disk is full.
func (fs *fullFS) giveBack() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.remove(fs.ballast())
	fs.begin()
}

// giveReserve removes the reserve, so that a start can use its space.
func (fs *fullFS) giveReserve() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.opened.Load() || !fs.exists(fs.reserve()) {
		return
	}
	fs.spent.Store(true)
	fs.remove(fs.reserve())
	fs.logger.Warn("disk full; the broker starts in the space that is reserved for it", "directory", fs.dir)
}

// Stopped reports whether nothing waits for room any more.
func (fs *fullFS) Stopped() bool {
	select {
	case <-fs.closing:
		return true
	default:
		return false
	}
}

// Close ends all waiting.
func (fs *fullFS) Close() {
	fs.StopWaiting()
	fs.watch.Wait()
}

// try makes a change, and again if there was no room.
func (fs *fullFS) try(name string, change func() error) error {
	err := change()
	if !isFull(err) {
		return err
	}
	fs.giveBack()
	if err = change(); !isFull(err) {
		return err
	}
	if !fs.opened.Load() {
		fs.giveReserve()
		err = change()
		for n := 0; isFull(err) && n < startTries; n++ {
			<-time.After(fullPause) // also after Close: Pebble repeats a failed flush without end
			err = change()
		}
		return err
	}
	for isFull(err) {
		select {
		case <-fs.closing:
			return err
		case <-time.After(fullPause):
		}
		fs.giveBack() // there may be a new one
		if err = change(); isTable(name) {
			return err
		}
	}
	return err
}

func (fs *fullFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &fullFile{f, fs, name}, nil
}

// compactions are the categories of Pebble's writes that can wait for space.
var compactions = []vfs.DiskWriteCategory{"pebble-compaction", "pebble-blob-file-rewrite"}

// Create implements vfs.FS. While there is no reserve, compactions create nothing: they would take
// the space that is for the next start.
func (fs *fullFS) Create(name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	if fs.spent.Load() && slices.Contains(compactions, c) {
		select {
		case <-fs.closing:
			<-time.After(retryPause) // a start that failed can go on: Pebble repeats the compaction without end
		case <-time.After(fullPause):
		}
		return nil, syscall.ENOSPC
	}
	err = fs.try(name, func() error { f, err = fs.FS.Create(name, c); return err })
	return fs.wrap(name, f, err)
}

// OpenReadWrite implements vfs.FS.
func (fs *fullFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (f vfs.File, err error) {
	err = fs.try(name, func() error { f, err = fs.FS.OpenReadWrite(name, c, o...); return err })
	return fs.wrap(name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (fs *fullFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	err = fs.try(name, func() error { f, err = fs.FS.ReuseForWrite(old, name, c); return err })
	return fs.wrap(name, f, err)
}

// Link implements vfs.FS.
func (fs *fullFS) Link(old, name string) error {
	return fs.try(name, func() error { return fs.FS.Link(old, name) })
}

// Rename implements vfs.FS.
func (fs *fullFS) Rename(old, name string) error {
	return fs.try(name, func() error { return fs.FS.Rename(old, name) })
}

// MkdirAll implements vfs.FS.
func (fs *fullFS) MkdirAll(name string, perm os.FileMode) error {
	return fs.try(name, func() error { return fs.FS.MkdirAll(name, perm) })
}

// Unwrap implements vfs.FS.
func (fs *fullFS) Unwrap() vfs.FS { return fs.FS }

// A fullFile is a file of a FullFS.
type fullFile struct {
	vfs.File
	fs   *fullFS
	name string
}

// Preallocate implements vfs.File. Pebble allocates space for logs beforehand. On a full disk that
// would take the space of a million acknowledgements.
func (f *fullFile) Preallocate(offset, length int64) error {
	if f.fs.Full() != nil || f.fs.spent.Load() {
		return nil
	}
	return f.File.Preallocate(offset, length)
}

// Write implements vfs.File. A partial write continues where it stopped.
func (f *fullFile) Write(p []byte) (n int, err error) {
	err = f.fs.try(f.name, func() error {
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	return n, err
}

// WriteAt implements vfs.File.
func (f *fullFile) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.fs.try(f.name, func() error {
		m, err := f.File.WriteAt(p[n:], at+int64(n))
		n += m
		return err
	})
	return n, err
}

// blobFS checks Pebble's reads of blob files. If such a file is corrupt or missing, Pebble 2.1
// panics, in reads and in compactions, because it reports the corruption of a file without
// metadata. It returns an error other than its own corruption error like any other. With BlobFS no
// panic occurs, and the process continues.
type blobFS struct {
	vfs.FS
	Damage *damageNotes // gets each corruption
	Notes  *valueNotes  // nil: a replaced file is not found
}

// Create implements vfs.FS.
func (b blobFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := b.FS.Create(name, c)
	if err != nil || !b.Notes.has(name) {
		return f, err
	}
	return &newValues{File: f, notes: b.Notes, path: name}, nil
}

// Remove implements vfs.FS.
func (b blobFS) Remove(name string) error {
	if b.Notes.has(name) {
		if err := b.Notes.remove(name); err != nil {
			return err
		}
	}
	return b.FS.Remove(name)
}

// Open implements vfs.FS.
func (b blobFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := b.FS.Open(name, opts...)
	switch {
	case !isValues(name):
		return f, err
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w: the file %s is missing", errCorrupt, name)
		b.Damage.Found(name, err)
		return nil, err
	case err != nil:
		return nil, err
	}
	var size int64
	if b.Notes.has(name) {
		err = b.Notes.check(name, f)
	}
	if err == nil {
		size, err = checkBlobFooter(f)
	}
	if err != nil {
		if isDamage(err) {
			b.Damage.Found(name, err)
		}
		return nil, errors.Join(fmt.Errorf("the file %s: %w", name, err), f.Close())
	}
	return &blobFile{f, name, size, b.Damage}, nil
}

// Unwrap implements vfs.FS.
func (b blobFS) Unwrap() vfs.FS { return b.FS }

// checkBlobFooter has Pebble read the footer of a file of values, and returns the file's size.
func checkBlobFooter(f vfs.File) (size int64, err error) {
	r, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return 0, err
	}
	// The reader holds nothing but f, which stays open.
	if _, err := blob.NewFileReader(context.Background(), r, blob.FileReaderOptions{}); isDamage(err) {
		return 0, foreign(err)
	} else if err != nil {
		return 0, err
	}
	return r.Size(), nil
}

// foreign returns a corruption error of Pebble as one that Pebble does not know.
func foreign(err error) error { return fmt.Errorf("%w: %s", errCorrupt, err.Error()) }

// A blobFile is a file of values: blocks, and the footer, which is not checked again.
type blobFile struct {
	vfs.File
	name   string
	size   int64
	damage *damageNotes
}

// ReadAt implements vfs.File. Pebble reads one block at a time.
func (f *blobFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	length := len(p) - block.TrailerLen
	if err != nil || length < 0 || off+int64(len(p)) >= f.size {
		return n, err
	}
	if err := block.ValidateChecksum(block.ChecksumTypeCRC32c, p, block.Handle{Offset: uint64(off), Length: uint64(length)}); err != nil {
		err = fmt.Errorf("the file %s: %w", f.name, foreign(err))
		f.damage.Found(f.name, err)
		return 0, err
	}
	return n, nil
}

const (
	// valuesFile has the size and a checksum of each file of values.
	valuesFile = "VALUES"

	// identified is how many bytes at the beginning and at the end of a file of values its checksum
	// covers. The rest has checksums of its own.
	identified = 4 << 10
)

// valueNotes has the files of values of a database, so that a missing or a replaced file is found
// before Pebble reads it. Pebble does not compare these files with its manifest, and a file of
// other values ends the process.
//
// A file is noted when it is whole and its name is on disk, before a manifest names the file. It is
// removed only after its note.
type valueNotes struct {
	fs   vfs.FS
	path string
	dir  string // of the database

	mu    sync.Mutex // held over writing the notes, which Pebble's flushes and compactions wait for
	lines map[string]string
}

// readValues reads the notes of the database in the directory dir. Without notes, as in a directory
// of an older version, it notes the files that are there. lost has the files that are missing or
// have another length.
func readValues(fsys vfs.FS, path, dir string) (notes *valueNotes, lost []*shortened, err error) {
	n := &valueNotes{fs: fsys, path: path, dir: dir, lines: map[string]string{}}
	text, err := readFile(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		err = n.readAll()
		return n, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	var ok bool
	if n.lines, ok = parseSums(text); !ok {
		return nil, nil, fmt.Errorf("%s is corrupt; restore the whole data directory from a backup", path)
	}
	for _, name := range slices.Sorted(maps.Keys(n.lines)) {
		var known int64
		if _, err := fmt.Sscanf(n.lines[name], "%d", &known); err != nil {
			return nil, nil, fmt.Errorf("%s has %q: %w; restore the whole data directory from a backup", path, n.lines[name], err)
		}
		file := fsys.PathJoin(dir, name)
		info, err := fsys.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			lost = append(lost, &shortened{Path: file, Known: known, Missing: true})
		case err != nil:
			return nil, nil, err
		case info.Size() != known:
			lost = append(lost, &shortened{Path: file, Left: info.Size(), Known: known, Replaced: true})
		}
	}
	return n, lost, nil
}

// readAll notes all files of values in the directory.
func (n *valueNotes) readAll() error {
	names, err := n.fs.List(n.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range names {
		if !isValues(name) {
			continue
		}
		f, err := n.fs.Open(n.fs.PathJoin(n.dir, name))
		if err != nil {
			return err
		}
		line, err := identify(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		n.lines[name] = line
	}
	return n.write()
}

// identify returns the line of a file of values.
func identify(f vfs.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	size := info.Size()
	edge := make([]byte, min(size, identified))
	h := crc32.New(castagnoli)
	for _, at := range []int64{0, size - int64(len(edge))} {
		if _, err := f.ReadAt(edge, at); err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		_, _ = h.Write(edge)
	}
	return sumLine(size, h.Sum32()), nil
}

// has reports whether the notes are about a file: one of values, in the database's directory.
func (n *valueNotes) has(name string) bool {
	return n != nil && isValues(name) && n.fs.PathDir(name) == n.dir
}

// check returns an error if a file is not the one that is noted under its name. A file without a
// note is accepted.
func (n *valueNotes) check(name string, f vfs.File) error {
	n.mu.Lock()
	want := n.lines[n.fs.PathBase(name)]
	n.mu.Unlock()
	if want == "" {
		return nil
	}
	line, err := identify(f)
	if err != nil || line == want {
		return err
	}
	return fmt.Errorf("%w: it is not the file that the broker wrote: size and checksum are %s, not %s", errCorrupt, line, want)
}

// Lose notes that an empty file replaces a lost one.
func (n *valueNotes) Lose(path string) error { return n.add(path, sumLine(0, 0)) }

// add notes a file that is on disk.
func (n *valueNotes) add(name, line string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines[n.fs.PathBase(name)] = line
	return n.write()
}

// remove removes the note of a file.
func (n *valueNotes) remove(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if base := n.fs.PathBase(name); n.lines[base] != "" {
		delete(n.lines, base)
		return n.write()
	}
	return nil
}

func (n *valueNotes) write() error { return writeFile(n.fs, n.path, formatSums(n.lines)) }

// A newValues is a file of values that is being written.
type newValues struct {
	vfs.File
	notes           *valueNotes
	path            string
	written, synced int64
	head, tail      []byte // at most identified bytes each
}

// Write implements vfs.File.
func (f *newValues) Write(p []byte) (int, error) {
	f.head = append(f.head, p[:min(len(p), identified-len(f.head))]...) // before the write, which may change p
	end := p[max(0, len(p)-identified):]
	keep := min(len(f.tail), identified-len(end))
	f.tail = append(f.tail[:copy(f.tail, f.tail[len(f.tail)-keep:])], end...)
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err
}

// Sync implements vfs.File.
func (f *newValues) Sync() error { return f.noted(f.File.Sync()) }

// SyncData implements vfs.File.
func (f *newValues) SyncData() error { return f.noted(f.File.SyncData()) }

func (f *newValues) noted(err error) error {
	if err == nil {
		f.synced = f.written
	}
	return err
}

// Close implements vfs.File. It notes the file if all of it is on disk.
func (f *newValues) Close() error {
	if err := f.File.Close(); err != nil || f.synced < f.written || f.written == 0 {
		return err
	}
	if err := syncDir(f.notes.fs, f.notes.fs.PathDir(f.path)); err != nil {
		return err
	}
	sum := crc32.Update(crc32.Checksum(f.head, castagnoli), castagnoli, f.tail)
	return f.notes.add(f.path, sumLine(f.written, sum))
}
