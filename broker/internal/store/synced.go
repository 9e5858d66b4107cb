package store

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
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

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// syncedPrefix and the name of a database are the name of the file with the lengths of the
// database's logs and manifests on disk.
const syncedPrefix = "SYNCED."

// acceptable is the remedy in errors about missing data that Options.AcceptLoss accepts.
const acceptable = "restore the whole data directory from a backup, give another directory, or accept the loss: start the broker once with --accept-data-loss"

// A Lost is the error of a directory in which data is missing that was on disk, while the rest can
// be opened.
type Lost struct{ Err error }

// Error implements error.
func (l *Lost) Error() string { return fmt.Sprintf("%v; %s", l.Err, acceptable) }

// Unwrap returns the cause.
func (l *Lost) Unwrap() error { return l.Err }

// accept returns err, or logs it and returns nil if it is a *Lost that the options accept.
func (s *Store) accept(o Options, err error) error {
	lost, ok := errors.AsType[*Lost](err)
	if !ok || !o.AcceptLoss {
		return err
	}
	s.logger.Error("the data directory is opened although data is missing", "directory", s.dir, "error", lost.Err)
	return nil
}

// A syncedFiles has the synced bytes of a database, by their record.
type syncedFiles struct {
	files  []syncedFile
	number uint64
}

// checkSynced compares the logs of both databases, and the files of values, with their records,
// before anything is changed.
func (s *Store) checkSynced(o Options) (map[string]syncedFiles, error) {
	known := map[string]syncedFiles{}
	var lost []error
	for _, db := range []string{messagesDir, groupsDir} {
		files, number, err := readSynced(s.fs, s.fs.PathJoin(s.dir, syncedPrefix+db))
		if err != nil {
			return nil, err
		}
		shortened, err := checkSynced(s.fs, s.fs.PathJoin(s.dir, db), files)
		if err != nil {
			return nil, err
		}
		for _, f := range shortened {
			lost = append(lost, f)
			files = slices.DeleteFunc(files, func(k syncedFile) bool { return k.Name == s.fs.PathBase(f.Path) })
		}
		known[db] = syncedFiles{files, number}
	}
	notes, values, err := readValues(s.fs, s.fs.PathJoin(s.dir, valuesFile), s.fs.PathJoin(s.dir, messagesDir))
	if err != nil {
		return nil, err
	}
	s.values = notes
	for _, f := range values {
		lost = append(lost, f)
	}
	if lost == nil {
		return known, nil
	}
	if err := s.accept(o, &Lost{errors.Join(lost...)}); err != nil {
		return nil, err
	}
	for _, f := range values {
		if err := s.replaceValues(f); err != nil {
			return nil, err
		}
	}
	return known, nil
}

// replaceValues lets the store be opened without a file of values. An empty file has its place:
// Pebble reports a file without a footer as corrupt, and panics if there is none.
func (s *Store) replaceValues(f *shortened) error {
	s.damage.Found(f.Path, f)
	if err := writeFile(s.fs, f.Path, nil); err != nil {
		return err
	}
	return s.values.Lose(f.Path)
}

// databaseFS returns the file system of a database.
func (s *Store) databaseFS(db string, known syncedFiles) (vfs.FS, error) {
	if s.room == nil {
		return logSyncFS{FS: s.fs}, nil
	}
	notes, err := openSynced(s.fs, s.fs.PathJoin(s.dir, syncedPrefix+db), known.files, known.number, s.logger)
	if err != nil {
		return nil, err
	}
	s.synced = append(s.synced, notes)
	dir := s.fs.PathJoin(s.dir, db)
	fs := newKnownFS(s.fs, dir, s.fs.PathJoin(s.dir, knownPrefix+db), s.noted[db])
	return logSyncFS{FS: syncedFS{FS: fs, Dir: dir, Notes: notes}}, nil
}

// checkPositions compares each database with the position that the other one has of it, and has
// each log record the position of the other. A database that ends before that position is an older
// copy.
func (s *Store) checkPositions(o Options) error {
	if s.room == nil {
		return nil
	}
	for _, pair := range [][2]*Log{{s.Messages, s.Groups}, {s.Groups, s.Messages}} {
		l, other := pair[0], pair[1]
		known, err := other.otherPosition()
		if err != nil {
			return err
		}
		end, err := l.end()
		if err != nil {
			return err
		}
		if end >= known {
			continue
		}
		err = s.accept(o, &Lost{fmt.Errorf("%s ends at position %d, but %s was written when it had reached %d: it is an older copy, or a copy of a directory in use, "+
			"and its last %d writes are missing", l.name, end, other.name, known, known-end)})
		if err != nil {
			return err
		}
		if err := other.Add(func(b *Batch) { b.putOtherPosition(end) }, nil).Wait(); err != nil {
			return err
		}
	}
	s.Messages.other.Store(s.Groups)
	s.Groups.other.Store(s.Messages)
	return nil
}

// otherPosition returns the position of the other database that this one has.
func (l *Log) otherPosition() (uint64, error) {
	v, closer, err := l.db.Get([]byte{prefixOther})
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer closer.Close()
	if len(v) != 8 {
		return 0, fmt.Errorf("%w: the position of the other database has %d bytes, not 8", errCorrupt, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}

// putOtherPosition writes the position of the other database.
func (b *Batch) putOtherPosition(n uint64) {
	must(b.pebble().Set([]byte{prefixOther}, binary.BigEndian.AppendUint64(nil, n), nil))
}

// end returns the position after the last write of the database.
func (l *Log) end() (uint64, error) {
	b := l.db.NewBatch()
	defer b.Close()
	must(b.LogData(nil, nil)) // takes no position
	if err := l.db.Apply(b, pebble.NoSync); err != nil {
		return 0, fmt.Errorf("writing to %s: %w", l.name, err)
	}
	return uint64(b.SeqNum()), nil
}

// noteOther adds the position of the other database to a batch, if it has changed. Only run calls
// it.
func (l *Log) noteOther(b *pebble.Batch) {
	other := l.other.Load()
	if other == nil || b.Empty() {
		return
	}
	if p := other.position.Load(); p > l.noted {
		(*Batch)(b).putOtherPosition(p)
		l.noted = p
	}
}

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

const (
	tailChunk  = 64 << 10
	tailChunks = 32 // 2 MiB in all
)

// A tail has the newest messages, encoded as in the database. Consumers without a backlog read them
// here: an iterator over the database costs about as much as sending the messages. Other messages
// are read from the database, so a tail can drop messages at any time.
type tail struct {
	mu     sync.RWMutex // guards all of it; held for copying and decoding only
	queues map[tailQueue]*tailRun
	chunks []tailPart // the oldest first; the last one is being filled

	lastQueue tailQueue // of the newest message; saves a search, because its successor often has it too
	last      *tailRun  // its run in queues; nil if it is not there
}

type tailQueue struct {
	topic uint32
	queue uint16
}

// A tailRun is some messages of one queue without a gap between their offsets.
type tailRun struct {
	first  int64
	values [][]byte // each within one chunk
}

func (r *tailRun) next() int64 { return r.first + int64(len(r.values)) }

// forget drops the messages before an offset.
func (r *tailRun) forget(before int64) {
	if n := min(before, r.next()) - r.first; n > 0 {
		r.values = r.values[n:]
		r.first += n
	}
}

// A tailPart is a chunk, and which messages are in it.
type tailPart struct {
	b    []byte
	ends []tailEnd // for each queue at least one; the last one counts
}

// A tailEnd is the offset after a message.
type tailEnd struct {
	queue tailQueue
	end   int64
}

// add notes a message of a queue.
func (p *tailPart) add(q tailQueue, end int64) {
	if last := len(p.ends) - 1; last >= 0 && p.ends[last].queue == q {
		p.ends[last].end = end
		return
	}
	p.ends = append(p.ends, tailEnd{q, end})
}

func newTail() *tail { return &tail{queues: map[tailQueue]*tailRun{}} }

// apply applies a batch of the messages database that is about to be committed. Readers read only
// committed messages, and no reader must find a removed message afterwards.
func (t *tail) apply(b *pebble.Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := b.Reader(); ; {
		kind, key, value, ok, err := r.Next()
		if err != nil {
			t.clear()
			return
		}
		if !ok {
			return
		}
		switch {
		case len(key) == 0 || key[0] != prefixMessage:
		case kind == pebble.InternalKeyKindSet && len(key) == messageKeyLen:
			t.put(splitMessageKey(key), value)
		case kind == pebble.InternalKeyKindDelete && len(key) == messageKeyLen:
			p := splitMessageKey(key)
			t.forget(tailQueue{p.Topic, p.Queue}, p.Offset+1)
		case kind == pebble.InternalKeyKindRangeDelete && len(key) == messageKeyLen && len(value) == messageKeyLen:
			from, to := splitMessageKey(key), splitMessageKey(value)
			if q := (tailQueue{from.Topic, from.Queue}); q == (tailQueue{to.Topic, to.Queue}) {
				t.forget(q, to.Offset)
				break
			}
			t.clear()
		default:
			t.clear()
		}
	}
}

func (t *tail) put(p Place, v []byte) {
	q := tailQueue{p.Topic, p.Queue}
	if len(v) > tailChunk {
		t.forget(q, p.Offset+1)
		return
	}
	part := t.room(len(v))
	at := len(part.b)
	part.b = append(part.b, v...)
	part.add(q, p.Offset+1)
	r := t.run(q, p.Offset)
	if p.Offset != r.next() {
		r.first, r.values = p.Offset, nil
	}
	r.values = append(r.values, part.b[at:len(part.b):len(part.b)])
}

// run returns the run of a queue. A new one begins at first.
func (t *tail) run(q tailQueue, first int64) *tailRun {
	if t.last != nil && t.lastQueue == q {
		return t.last
	}
	r := t.queues[q]
	if r == nil {
		r = &tailRun{first: first}
		t.queues[q] = r
	}
	t.lastQueue, t.last = q, r
	return r
}

// room returns a chunk with n free bytes, which it takes from the oldest messages if need be.
func (t *tail) room(n int) *tailPart {
	if last := len(t.chunks) - 1; last >= 0 && len(t.chunks[last].b)+n <= tailChunk {
		return &t.chunks[last]
	}
	var part tailPart
	if len(t.chunks) < tailChunks {
		part.b = make([]byte, 0, tailChunk)
	} else {
		for _, e := range t.chunks[0].ends {
			t.forget(e.queue, e.end)
		}
		part.b, part.ends = t.chunks[0].b[:0], t.chunks[0].ends[:0]
		copy(t.chunks, t.chunks[1:])
		t.chunks = t.chunks[:len(t.chunks)-1]
	}
	t.chunks = append(t.chunks, part)
	return &t.chunks[len(t.chunks)-1]
}

func (t *tail) forget(q tailQueue, before int64) {
	r := t.queues[q]
	if r == nil {
		return
	}
	if r.forget(before); len(r.values) == 0 {
		delete(t.queues, q)
		if t.lastQueue == q {
			t.last = nil
		}
	}
}

func (t *tail) clear() {
	clear(t.queues)
	t.chunks, t.last = nil, nil
}

// read returns the messages of a queue from an offset on, as Store.Read does. It
// returns none if it does not have the first one.
func (t *tail) read(topic uint32, queue uint16, from, to int64, limit int, maxBytes int64) (ms []Message, offsets []int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.queues[tailQueue{topic, queue}]
	if r == nil || from < r.first {
		return nil, nil
	}
	to = min(to, r.next(), from+int64(limit))
	if from >= to {
		return nil, nil
	}
	ms = make([]Message, to-from)
	offsets = make([]int64, 0, to-from)
	for i := range ms {
		if i > 0 && maxBytes <= 0 {
			return ms[:i], offsets
		}
		if err := decodeMessage(r.values[from-r.first], &ms[i]); err != nil {
			return ms[:i], offsets // the database returns the error
		}
		maxBytes -= int64(len(ms[i].Body))
		offsets = append(offsets, from)
		from++
	}
	return ms, offsets
}

// next returns the offset after the newest message of a queue. It returns false for a queue
// without recent messages, and if more than fewQueues have some.
func (t *tail) next(topic uint32, queue uint16) (int64, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.queues[tailQueue{topic, queue}]
	if r == nil || len(t.queues) > fewQueues {
		return 0, false
	}
	return r.next(), true
}

func splitMessageKey(k []byte) Place {
	return Place{Topic: binary.BigEndian.Uint32(k[1:]), Queue: binary.BigEndian.Uint16(k[5:]), Offset: messageOffset(k)}
}
