// Package store stores the data of the engine in two Pebble databases:
//
//   - messages: the message log keyed (topic, queue, offset), and the settings
//     of topics and groups.
//   - groups: the cursor and the leases of each consumer group: small records,
//     changed with every delivery.
//
// A write is acknowledged after its fsync. Lazy writes ([Log.AddLazy]) are the exception: first
// deliveries do not wait for the fsync, which follows within 20 ms. After a crash or a power
// failure a message that was delivered once can therefore be delivered again as attempt 1.
//
// Both databases gather the writes of all callers into one batch at a time ([Log]).
// In memory the same code runs on Pebble's in-memory file system.
package store

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// formatVersion is the form of the directory and of all records in it.
	formatVersion = 1
	formatFile    = "FORMAT"
	messagesDir   = "messages"
	groupsDir     = "groups"
	memoryDir     = "memory" // name of the directory of a broker in memory, for errors

	// The operating system caches the files as well, and groups read each
	// message about once: a cache of 64 MiB made no difference that could be measured.
	defaultCache       = 4 << 20
	defaultMemoryCache = 1 << 20

	// There are two memtables, because Pebble reuses the last one for the next. With compactions
	// from 6 tables on instead of 4, tables of 12 MiB cost no more processor that could be measured
	// than those of 16 MiB, and 8 MiB a tenth of the batches sent. On a small disk they are smaller
	// (space.MemTable).
	groupsMemTable = 4 // the groups' is that part of it: their records are small
	compactFrom    = 6

	// A compaction of new tables rewrites the base level, because new tables have messages of
	// all queues. The tables of a small base level soon move down, which rewrites nothing (see
	// tableEnd). With 4 MiB and 64 instead of Pebble's 64 MiB and 10,
	// compactions of sent messages cost less than half of the processor time, and rewrite no body.
	// While 1 000 topics receive messages in turn, each table refers to nearly all files with
	// bodies. With 256 of them instead of 64, 1.1 million messages of 1 KiB need 13 % less
	// processor time, and a consumer of all of them 4 % more.
	baseBytes = 4 << 20
	blobDepth = 256 // files with bodies that a table refers to before a compaction rewrites the bodies

	// Each block costs a read of the file, two checksums and an allocation. With blocks of 16 KiB
	// instead of Pebble's 4 KiB, 16 consumers of messages of 1 KiB take 4 to 8 % less processor
	// time for each message. Blocks of 32 and 64 KiB save little more. From the cache of the
	// operating system, reading 256 messages in order takes 331 instead of 434 µs, and reading a
	// single one 16 instead of 14 µs. A corrupt block costs all of its messages.
	messagesBlock = 16 << 10
)

// Options are the settings of a store.
type Options struct {
	Dir    string // empty: in memory
	FS     vfs.FS // nil: the operating system's, or a new one in memory
	Logger *slog.Logger
	// CacheBytes is the size of the cache of blocks read. 0: 4 MiB, or 1 MiB in memory.
	CacheBytes int64
	// MemTableBytes is how much is written before it is sorted into a table. 0: 12 MiB, or less on
	// a disk of less than 768 MiB.
	MemTableBytes uint64
	// AcceptLoss opens a directory although synced data of its logs is missing, and logs the loss.
	AcceptLoss bool
}

// A Store is open until Close. Its methods may be called by several goroutines.
type Store struct {
	messages, groups *pebble.DB
	// Messages and Groups take the writes of the two databases.
	Messages, Groups *Log

	logger    *slog.Logger
	broken    atomic.Pointer[error] // set when Pebble has reported a fatal error
	failed    chan struct{}         // closed then
	short     chan error            // size 1: a flush found no space while the databases are opened
	stall     atomic.Int64          // since when writes of messages stall, in nanoseconds since 1970; 0 if they do not
	abandoned chan struct{}         // closed by Abandon
	abandon   sync.Once             // closes abandoned
	lock      *pebble.Lock
	damage    *damageNotes
	tail      *tail
	fs        vfs.FS
	room      *fullFS              // fs; nil in memory
	noted     map[string][2]string // by database: its manifest and the record of it, while the store is opened
	synced    []*syncedNotes
	values    *valueNotes // nil in memory
	maxHeld   int64       // see Room
	dir       string
	onDisk    bool // false for memory, and for the files of a test
	unclean   bool // see Unclean; written by Open
}

// Open opens a directory, and creates it if necessary. Its errors name the fault of the directory
// and the remedy.
func Open(o Options) (*Store, error) {
	s := &Store{logger: o.Logger, fs: o.FS, dir: o.Dir, failed: make(chan struct{}), short: make(chan error, 1), tail: newTail(), abandoned: make(chan struct{}), noted: map[string][2]string{}, damage: newDamageNotes(o.Logger)}
	if s.fs == nil {
		s.fs = vfs.Default
		if o.Dir == "" {
			s.fs = vfs.NewMem()
		}
	}
	s.onDisk = s.fs == vfs.Default
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCache
		if o.Dir == "" {
			o.CacheBytes = defaultMemoryCache
		}
	}
	if o.Dir == "" {
		s.dir = memoryDir
	} else {
		s.damage.StoreIn(s.fs, s.dir, messagesDir) // not in room: it is not waited for
		s.room = newFullFS(s.fs, s.dir, o.Logger)
		s.fs = s.room
	}
	if err := s.prepare(); err != nil {
		err = s.explainOpen(err)
		if s.room != nil {
			s.room.Close()
		}
		return nil, err
	}
	space := spaceOf(0)
	if s.room != nil {
		space, _, _ = s.room.Space()
	}
	s.maxHeld = space.Held()
	if o.MemTableBytes == 0 {
		o.MemTableBytes = space.MemTable()
	}
	if err := s.openAll(o); err != nil {
		return nil, errors.Join(s.explainOpen(err), s.Close())
	}
	if s.room != nil {
		s.room.SetOpened()
	}
	return s, nil
}

// explainOpen returns the error of Open: with the directory and the remedy.
func (s *Store) explainOpen(err error) error {
	if s.room != nil && isFull(err) {
		err = s.explainFull(err)
	} else {
		err = explain(err)
	}
	return fmt.Errorf("opening data directory %s: %w", s.dir, err)
}

func (s *Store) openAll(o Options) (err error) {
	id, known := "", true // memory needs none
	var synced map[string]syncedFiles
	if s.room != nil {
		if err := s.accept(o, s.checkClean()); err != nil {
			return err
		}
		if id, known, err = s.checkIdentity(); err != nil {
			return err
		}
		if err := s.damage.Read(); err != nil {
			return err
		}
		if synced, err = s.checkSynced(o); err != nil {
			return err
		}
		if err := s.removeUnfinished(); err != nil {
			return err
		}
		if err := s.removeClean(); err != nil {
			return err
		}
	}
	messagesFS, err := s.databaseFS(messagesDir, synced[messagesDir])
	if err != nil {
		return err
	}
	groupsFS, err := s.databaseFS(groupsDir, synced[groupsDir])
	if err != nil {
		return err
	}
	cache := pebble.NewCache(o.CacheBytes)
	defer cache.Unref()
	options := s.options(cache, o.MemTableBytes, messagesFS)
	options.Experimental.SpanPolicyFunc = s.tablePolicy
	options.Levels[0].BlockSize = messagesBlock // the other levels inherit it
	s.watchStalls(options.EventListener)
	if s.messages, err = s.openDB(s.fs.PathJoin(s.dir, messagesDir), options); err != nil {
		return err
	}
	progress := s.options(cache, o.MemTableBytes/groupsMemTable, groupsFS)
	progress.Experimental.ValueSeparationPolicy = nil // the records are small
	if s.groups, err = s.openDB(s.fs.PathJoin(s.dir, groupsDir), progress); err != nil {
		return err
	}
	if !known {
		if err := s.writeIdentity(id); err != nil {
			return err
		}
	}
	s.Messages = newLog(s.messages, "the message log", s, s.tail)
	s.Groups = newLog(s.groups, "the groups' progress", s, nil)
	return s.checkPositions(o)
}

// openDB opens a database. Pebble repeats failed background work without end, and opening waits for
// it. If the store breaks meanwhile, or a flush finds no space, openDB returns an error.
func (s *Store) openDB(dir string, o *pebble.Options) (*pebble.DB, error) {
	type result struct {
		db  *pebble.DB
		err error
	}
	done := make(chan result, 1)
	go func() { // ends with Pebble's own; if it never does, the caller has given up
		db, err := pebble.Open(dir, o)
		if err != nil {
			err = s.explainMissing(dir, err)
		}
		done <- result{db, err}
	}()
	finish := func(r result) (*pebble.DB, error) {
		if err := s.Broken(); err != nil && r.err == nil {
			return r.db, err
		}
		return r.db, r.err
	}
	select {
	case r := <-done:
		return finish(r)
	case err := <-s.short:
		go func() { // ends when there is space for the flush, as does Pebble's lock
			if r := <-done; r.db != nil {
				_ = r.db.Close() // nothing was written to it
			}
		}()
		return nil, err
	case <-s.failed:
	}
	select {
	case r := <-done:
		return finish(r)
	case <-time.After(stuckAfter):
		return nil, s.Broken()
	}
}

func (s *Store) options(cache *pebble.Cache, memTable uint64, fs vfs.FS) *pebble.Options {
	o := &pebble.Options{
		Cache:  cache,
		FS:     &pausingFS{FS: markerFS{FS: blobFS{FS: fs, Damage: s.damage, Notes: s.values}}, Store: s, Damage: s.damage},
		Logger: pebbleLogger{s},
		// Pebble repeats a failed flush without end; the writes behind it would wait as long.
		EventListener:         &pebble.EventListener{BackgroundError: s.background, DataCorruption: s.damaged, FlushEnd: s.flushed},
		MemTableSize:          memTable,
		L0CompactionThreshold: compactFrom,
		LBaseMaxBytes:         baseBytes,
		FormatMajorVersion:    pebble.FormatNewest,
	}
	if !s.onDisk {
		o.Experimental.CompactionScheduler = &scheduler{} // Pebble's own has a ticker
	}
	// Bodies go to files of their own: a compaction then moves keys only.
	o.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{
			Enabled:               true,
			MinimumSize:           minSeparated,
			MaxBlobReferenceDepth: blobDepth,
			TargetGarbageRatio:    s.damage.GarbageRatio(),
		}
	}
	return o
}

// Broken returns why the store can write no more, and nil while it can.
func (s *Store) Broken() error {
	if p := s.broken.Load(); p != nil {
		return *p
	}
	return nil
}

// Failed returns a channel that is closed once Broken returns an error.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// fail marks the store as broken.
func (s *Store) fail(cause error) {
	err := fmt.Errorf("the store has failed: %w; remove the cause, then restart the broker", explain(cause))
	if s.broken.CompareAndSwap(nil, &err) {
		close(s.failed)
		s.logger.Error("the store has failed; all requests are rejected", "error", err)
	}
}

// Abandon marks the store as broken because of a panic, which may have left the
// databases half used: Close does not touch them.
func (s *Store) Abandon(cause error) {
	s.abandon.Do(func() { close(s.abandoned) })
	s.fail(cause)
}

// Abandoned returns a channel that is closed once Abandon was called.
func (s *Store) Abandoned() <-chan struct{} { return s.abandoned }

// background handles the error of a flush or compaction. Lack of space can pass, but Close does not
// wait for it, because a write can wait for the table. A start that failed for it has written
// nothing, and holds its lock until Pebble ends: its flush must not fail for good. Corruption
// stays: Pebble skips the files around it, and readers get the error.
func (s *Store) background(err error) {
	if s.room != nil && isFull(err) && (!s.room.Opened() || !s.room.Stopped()) {
		return
	}
	if IsDamage(err) {
		s.logger.Error("compaction failed, because a file is corrupt", "error", err)
		return
	}
	s.fail(err)
}

// flushed notes that a flush found no space while the databases are opened. Later flushes wait.
func (s *Store) flushed(info pebble.FlushInfo) {
	if s.room == nil || s.room.Opened() || !isFull(info.Err) {
		return
	}
	select {
	case s.short <- info.Err:
	default:
	}
}

// damaged notes a corrupt file that Pebble found. Without such a listener Pebble
// would end the process.
func (s *Store) damaged(info pebble.DataCorruptionInfo) { s.damage.Found(info.Path, info.Details) }

// Close commits all added writes and closes both databases. Later writes fail. A database that is
// blocked within a write, or that a panic interrupted, stays open and locked.
func (s *Store) Close() error {
	s.StopWaiting()
	var errs []error
	for _, l := range []*Log{s.Messages, s.Groups} {
		if l != nil && !l.close() {
			errs = append(errs, fmt.Errorf("%s: a write is blocked, so the database stays open: %w", l.name, s.Broken()))
		}
	}
	select {
	case <-s.abandoned:
		errs = append(errs, fmt.Errorf("the store stays open and locked: %w", s.Broken()))
	default:
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	for _, db := range []*pebble.DB{s.messages, s.groups} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	for _, n := range s.synced {
		errs = append(errs, n.Close())
	}
	if s.room != nil && s.Groups != nil && s.Broken() == nil && errors.Join(errs...) == nil {
		// Only a help for opening: without it nothing is compared.
		if err := s.writeClean(); err != nil {
			s.logger.Warn("the data directory was closed without its checksums; the next start compares no files", "directory", s.dir, "error", explain(err))
		}
	}
	if s.room != nil {
		s.room.Close() // nothing writes any more that would have it look after the disk
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// explain adds the remedy to errors of operating systems.
func explain(err error) error {
	file, ofFile := errors.AsType[*fs.PathError](err)
	switch {
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("its file system is mounted read-only: %w", err)
	case ofFile && errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the broker has no permission to %s %s; check owner and permissions: %w", file.Op, file.Path, err)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EACCES), // of locking: without a file's name
		strings.Contains(err.Error(), "lock held by current process"):
		return fmt.Errorf("another process uses the directory; stop that process, or give another directory: %w", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the broker has no permission to use it; check owner and permissions: %w", err)
	case isFull(err):
		return fmt.Errorf("the disk is full; free or add space: %w", err)
	}
	return err
}

// A pebbleLogger hands Pebble's messages on. Pebble expects Fatalf to end the
// process; ours marks the store as broken, so that all requests are rejected with the reason.
type pebbleLogger struct{ s *Store }

func (l pebbleLogger) Infof(format string, args ...any) {
	l.s.logger.Debug("pebble message", "text", text{format, args})
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.s.logger.Error("pebble error", "text", fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.s.fail(fmt.Errorf(format, args...))
}

// A text is formatted only if it is logged.
type text struct {
	format string
	args   []any
}

// LogValue implements slog.LogValuer.
func (t text) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf(t.format, t.args...)) }

// prepare makes the directory, locks it and checks its format.
func (s *Store) prepare() (err error) {
	if err := s.checkOurs(); err != nil {
		return err
	}
	if err := s.makeDir(); err != nil {
		return err
	}
	if s.lock, err = pebble.LockDirectory(s.dir, s.fs); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.lock.Close())
		}
	}()
	if s.room != nil {
		if err := s.room.Prepare(s.startRecord()); err != nil {
			return err
		}
	}
	version, err := s.readFormat()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.writeFormat()
	case err != nil:
		return err
	case version > formatVersion:
		return fmt.Errorf("it has format %d, and this program reads up to %d; use a newer version of tidegate", version, formatVersion)
	case version < 1:
		return fmt.Errorf("%s contains format %d: the file is corrupt, or this is not a tidegate data directory", formatFile, version)
	}
	return nil
}

// checkOurs returns an error if the directory has files of other programs, before anything is
// written: a wrong --data would mix them with ours. Files of a broker that ended while it created
// its directory, and system files of a mounted disk, are accepted.
func (s *Store) checkOurs() error {
	names, _ := s.fs.List(s.dir) // none if it does not exist, or is no directory, which its creation reports
	if slices.Contains(names, formatFile) {
		return nil
	}
	if slices.Contains(names, identityFile) {
		return fmt.Errorf("%s is missing; %s", s.fs.PathJoin(s.dir, formatFile), restore)
	}
	slices.Sort(names)
	for _, name := range names {
		switch base, _, _ := strings.Cut(name, "."); base {
		case "", "LOCK", formatFile, ballastFile, reserveFile, startFile, cleanFile, "messages", "groups", "lost+found":
		default:
			return fmt.Errorf("it has no file %s, but other files such as %s; give an empty directory, or one that does not exist", formatFile, name)
		}
	}
	return nil
}

func (s *Store) readFormat() (int, error) {
	f, err := s.fs.Open(s.fs.PathJoin(s.dir, formatFile))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buf := make([]byte, 64)
	n, _ := f.Read(buf)
	word, ok := strings.CutPrefix(strings.TrimSpace(string(buf[:n])), "tidegate ")
	v, err := strconv.Atoi(word)
	if !ok || err != nil {
		return 0, fmt.Errorf("%s contains %q: the file is corrupt, or this is not a tidegate data directory", formatFile, buf[:n])
	}
	return v, nil
}

func (s *Store) writeFormat() error {
	return s.writeFile(formatFile, fmt.Appendf(nil, "tidegate %d\n", formatVersion))
}

// makeDir makes the directory and those above it, so that a power failure
// does not take them back.
func (s *Store) makeDir() error {
	var parents []string
	for d := s.dir; ; {
		if _, err := s.fs.Stat(d); err == nil {
			break
		}
		up := s.fs.PathDir(d)
		parents = append(parents, up)
		if up == d {
			break
		}
		d = up
	}
	if err := s.fs.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	for _, d := range parents {
		if err := syncDir(s.fs, d); err != nil {
			return err
		}
	}
	return nil
}

// identityFile names the data directory, and in each database the directory and
// the database that it is. In the directory it is written last: from then on
// both databases have to be there.
const identityFile = "IDENTITY"

// checkIdentity rejects a directory in which a database is missing, is another one, or
// is not whole. known is false while the directory has no identity.
func (s *Store) checkIdentity() (id string, known bool, err error) {
	root, err := s.readIdentity(identityFile)
	if err != nil {
		return "", false, err
	}
	id, known = root, root != ""
	for _, db := range []string{messagesDir, groupsDir} {
		path := s.fs.PathJoin(db, identityFile)
		text, err := s.readIdentity(path)
		if err != nil {
			return "", false, err
		}
		have, role, _ := strings.Cut(text, " ")
		switch {
		case text == "" && known:
			return "", false, fmt.Errorf("%s is missing: the database was removed or replaced; %s", s.fs.PathJoin(s.dir, path), restore)
		case text == "":
		case role != db:
			return "", false, fmt.Errorf("%s is the database %q of directory %s, not %q: databases were swapped or copied; %s", s.fs.PathJoin(s.dir, db), role, have, db, restore)
		case id != "" && have != id:
			return "", false, fmt.Errorf("%s belongs to the data directory %s, but this directory is %s; %s", s.fs.PathJoin(s.dir, db), have, id, restore)
		default:
			id = have // the broker ended while it made the directory
		}
		if err := s.checkKnown(db, known); err != nil {
			return "", false, err
		}
	}
	return id, known, nil
}

// writeIdentity completes the identities.
func (s *Store) writeIdentity(id string) error {
	if id == "" {
		id, s.unclean = rand.Text(), false
	}
	for _, db := range []string{messagesDir, groupsDir} {
		if err := s.writeFile(s.fs.PathJoin(db, identityFile), fmt.Appendf(nil, "tidegate %s %s\n", id, db)); err != nil {
			return err
		}
	}
	return s.writeFile(identityFile, fmt.Appendf(nil, "tidegate %s\n", id))
}

// readIdentity returns the text after the program's name in a file, or an empty text if there is no
// such file.
func (s *Store) readIdentity(name string) (string, error) {
	path := s.fs.PathJoin(s.dir, name)
	text, err := readFile(s.fs, path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	id, ok := strings.CutPrefix(strings.TrimSuffix(string(text), "\n"), "tidegate ")
	if !ok || id == "" {
		return "", fmt.Errorf("%s contains %q: it is corrupt; %s", path, text, restore)
	}
	return id, nil
}

// A Clock is the record of the wall clock.
type Clock struct {
	// At is the newest time that the broker trusted.
	At time.Time

	// Distrusted means that the broker did not trust the wall clock at that moment. Messages that
	// were stored afterwards can have wrong times.
	Distrusted bool
}

const clockVersion = 1

// PutClock writes the record of the wall clock: a version, Distrusted, and At in nanoseconds since
// 1970.
func (b *Batch) PutClock(c Clock) {
	v := []byte{clockVersion, 0}
	if c.Distrusted {
		v[1] = 1
	}
	must(b.pebble().Set([]byte{prefixClock}, binary.BigEndian.AppendUint64(v, uint64(nanos(c.At))), nil))
}

// Clock returns the record of the wall clock; false if there is none.
func (s *Store) Clock() (c Clock, ok bool, err error) {
	ok, err = s.read([]byte{prefixClock}, func(v []byte) error {
		if len(v) != 10 || v[0] != clockVersion || v[1] > 1 {
			return fmt.Errorf("%w: the time of the wall clock has %d bytes, or another version than %d", errCorrupt, len(v), clockVersion)
		}
		c = Clock{At: time.Unix(0, int64(binary.BigEndian.Uint64(v[2:]))), Distrusted: v[1] == 1}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("reading the time of the wall clock: %w", err)
	}
	return c, ok, err
}

const (
	// knownPrefix and the name of a database are the name of the file with the minimum size of the
	// database's manifest on disk.
	knownPrefix = "KNOWN."

	markerPrefix = "marker.manifest."
)

// restore is the remedy in errors about databases that are not whole.
const restore = "restore the whole data directory from a backup, or give another directory; the broker changed nothing in it"

// checkKnown compares the manifest of a database with its record, before Pebble opens the database
// and removes files that the manifest does not name.
func (s *Store) checkKnown(db string, known bool) error {
	dir := s.fs.PathJoin(s.dir, db)
	names, err := s.fs.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	manifest := currentManifest(names)
	switch {
	case manifest == "" && (known || slices.ContainsFunc(names, isTable)):
		return fmt.Errorf("%s has no file %s* that names its manifest: a part of it is missing; %s", dir, markerPrefix, restore)
	case manifest == "": // new
		return nil
	}
	path := s.fs.PathJoin(s.dir, knownPrefix+db)
	text, err := readFile(s.fs, path)
	if errors.Is(err, fs.ErrNotExist) && !known {
		return nil // of a version that noted nothing
	}
	if err != nil {
		return fmt.Errorf("reading the state of %s: %w; %s", dir, err, restore)
	}
	sums, ok := parseSums(text)
	if !ok {
		return fmt.Errorf("%s is corrupt; %s", path, restore)
	}
	if !known && sums[manifest] == "" {
		return nil // the broker ended while it noted the first one
	}
	s.noted[db] = [2]string{manifest, sums[manifest]}
	return s.checkManifest(dir, manifest, sums[manifest])
}

// currentManifest returns the manifest that a marker names, by the files of a database; empty if
// there is no marker.
func currentManifest(names []string) string {
	marker := ""
	for _, name := range names {
		if strings.HasPrefix(name, markerPrefix) && name > marker { // a number of fixed width follows
			marker = name
		}
	}
	_, manifest, _ := strings.Cut(strings.TrimPrefix(marker, markerPrefix), ".")
	return manifest
}

// unknownTable is a part of Pebble's error about a table that the manifest names and the directory
// does not have.
var unknownTable = regexp.MustCompile(`file (\d+) \(type sstable\) unknown`)

// explainMissing returns the error of Pebble's Open. If a file of the database is missing, the
// error names the file and the remedy.
func (s *Store) explainMissing(dir string, err error) error {
	missing := ""
	if m := unknownTable.FindStringSubmatch(err.Error()); m != nil {
		missing = m[1] + ".sst"
	} else if errors.Is(err, pebble.ErrDBNotPristine) {
		missing = "marker.format-version.*"
	}
	if missing == "" {
		return err
	}
	return fmt.Errorf("%s is missing: %w; %s", s.fs.PathJoin(dir, missing), err, restore)
}

// checkManifest compares the beginning of a manifest with the line that was noted of it.
func (s *Store) checkManifest(dir, name, line string) error {
	var size int64
	var sum uint32
	path := s.fs.PathJoin(dir, name)
	if _, err := fmt.Sscanf(line, sumFormat, &size, &sum); err != nil {
		return fmt.Errorf("%s is not the manifest that the broker last used: it is older, or belongs to another directory; %s", path, restore)
	}
	f, err := s.fs.Open(path)
	if err != nil {
		return fmt.Errorf("%w; %s", err, restore)
	}
	h := crc32.New(castagnoli)
	n, err := io.Copy(h, io.LimitReader(struct{ io.Reader }{f}, size))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if n != size || h.Sum32() != sum {
		return fmt.Errorf("%s is corrupt or truncated within its first %d bytes, so opening it would lose messages; %s", path, size, restore)
	}
	return nil
}

const (
	logSuffix = ".log"

	// The chunks of a new database's first log have an older form, without how far the log was
	// synced. Their types are those from 5 to 8.
	walShortHeader    = 11
	walShortFirstType = 5
)

// A shortened is the error of a file of which less is on disk than was, or something else.
type shortened struct {
	Path        string
	Left, Known int64 // bytes: the readable ones from its beginning, and those that were on disk
	Missing     bool  // the whole file
	Replaced    bool  // by a file of Left bytes
}

// Error implements error.
func (s *shortened) Error() string {
	if s.Missing {
		return fmt.Sprintf("%s is missing: %d bytes of it were on disk, so acknowledged data is lost", s.Path, s.Known)
	}
	if s.Replaced {
		return fmt.Sprintf("%s has %d bytes instead of %d: it was truncated or replaced, so acknowledged messages are lost", s.Path, s.Left, s.Known)
	}
	return fmt.Sprintf("%s is truncated or corrupt after %d bytes, but %d bytes of it were on disk, so acknowledged data is lost", s.Path, s.Left, s.Known)
}

// checkSynced compares the files of a database with their notes. It returns a *Shortened for each
// file of which synced data is missing or not readable.
func checkSynced(fs vfs.FS, dir string, files []syncedFile) (shortened []*shortened, err error) {
	for _, f := range files {
		s, err := diskfsCheckSynced(fs, fs.PathJoin(dir, f.Name), f)
		if err != nil {
			return nil, err
		}
		if s != nil {
			shortened = append(shortened, s)
		}
	}
	return shortened, nil
}

func diskfsCheckSynced(vfs vfs.FS, path string, known syncedFile) (*shortened, error) {
	f, err := vfs.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &shortened{Path: path, Known: known.Bytes, Missing: true}, nil
	}
	if err != nil {
		return nil, err
	}
	var left int64
	if number, ofLog := strings.CutSuffix(known.Name, logSuffix); ofLog {
		n, _ := strconv.ParseUint(number, 10, 64) // 0 if the name is not Pebble's, which no chunk has
		left, err = readableLog(struct{ io.Reader }{f}, uint32(n), known.Bytes)
	} else {
		var info interface{ Size() int64 }
		if info, err = f.Stat(); err == nil {
			left = min(info.Size(), known.Bytes) // its content is checked against KNOWN
		}
	}
	if err = errors.Join(err, f.Close()); err != nil || left == known.Bytes {
		return nil, err
	}
	return &shortened{Path: path, Left: left, Known: known.Bytes}, nil
}

// readableLog returns how many of the first size bytes of a log are whole chunks of the log with
// this number.
func readableLog(r io.Reader, number uint32, size int64) (n int64, err error) {
	block := make([]byte, walBlock)
	for n < size {
		want := int(min(walBlock, size-n))
		got, err := io.ReadFull(r, block[:want])
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return n, err
		}
		whole := readableBlock(block[:got], number)
		if n += int64(whole); whole < want {
			return n, nil
		}
	}
	return n, nil
}

// readableBlock returns how many bytes of a block, or of its beginning, are whole chunks.
func readableBlock(p []byte, number uint32) (n int) {
	for n < len(p) {
		rest := p[n:]
		switch length, ok := wholeChunk(rest, number); {
		case ok:
			n += length
		case walBlock-n < walHeader && len(bytes.Trim(rest, "\x00")) == 0: // padding
			return len(p)
		case isTrailer(rest, number):
			return len(p)
		default:
			return n
		}
	}
	return n
}

// isTrailer reports whether p is the end of a closed log: a chunk of the next log's number without
// content and checksum.
func isTrailer(p []byte, number uint32) bool {
	return len(p) == walShortHeader && p[walTypeAt] == walShortFirstType && binary.LittleEndian.Uint32(p[walNumberAt:]) == number+1
}

// wholeChunk returns the length of the chunk at the beginning of p, if it is one of the log.
func wholeChunk(p []byte, number uint32) (length int, ok bool) {
	if len(p) < walShortHeader || p[walTypeAt] < walShortFirstType || p[walTypeAt] > walLastType {
		return 0, false
	}
	header := walHeader
	if p[walTypeAt] < walFirstType {
		header = walShortHeader
	}
	n := header + int(binary.LittleEndian.Uint16(p[walLengthAt:]))
	return n, n <= len(p) && binary.LittleEndian.Uint32(p[walNumberAt:]) == number && binary.LittleEndian.Uint32(p) == walChecksum(p[walCheckedAt:n])
}

const manifestPrefix = "MANIFEST-"

// knownFS records the size and checksum of a database's manifest after each fsync of it. Pebble
// accepts any end of a manifest and removes the tables that the manifest does not name: one wrong
// byte after a crash would remove messages. The record is on disk before a marker names the
// manifest.
type knownFS struct {
	vfs.FS
	dir  string // of the database
	path string // of the file that has sums

	mu    sync.Mutex // held over writing that file, which Pebble's one writer of a manifest waits for anyway
	order []string   // the manifests in sums, the oldest first
	sums  map[string]string
}

// newKnownFS returns a KnownFS of the database in a directory. noted is the line of the manifest
// that a marker names, if there is one.
func newKnownFS(fs vfs.FS, dir, path string, noted [2]string) *knownFS {
	k := &knownFS{FS: fs, dir: dir, path: path, sums: map[string]string{}}
	if manifest, line := noted[0], noted[1]; line != "" {
		k.order, k.sums[manifest] = []string{manifest}, line
	}
	return k
}

// Create implements vfs.FS.
func (k *knownFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := k.FS.Create(name, c)
	if base := k.PathBase(name); err == nil && k.PathDir(name) == k.dir && strings.HasPrefix(base, manifestPrefix) {
		return &manifestFile{File: f, fs: k, name: base}, nil
	}
	return f, err
}

// Unwrap implements vfs.FS.
func (k *knownFS) Unwrap() vfs.FS { return k.FS }

// note records the content of a manifest on disk. The record of the previous manifest stays,
// because a crash can occur before the marker names the new one.
func (k *knownFS) note(name string, size int64, sum uint32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sums[name] == "" {
		k.order = append(k.order, name)
		if len(k.order) > 2 {
			delete(k.sums, k.order[0])
			k.order = k.order[1:]
		}
	}
	k.sums[name] = sumLine(size, sum)
	return writeFile(k.FS, k.path, formatSums(k.sums))
}

// A manifestFile is a manifest that is being written.
type manifestFile struct {
	vfs.File
	fs   *knownFS
	name string
	size int64 // Pebble writes a manifest from one goroutine at a time
	sum  uint32
	bad  error // of a write: the content of the file is unknown from then on
}

// Write implements vfs.File.
func (f *manifestFile) Write(p []byte) (int, error) {
	// Computed before the write, which may change p: Pebble's file system in
	// memory does so under the race detector.
	sum := crc32.Update(f.sum, castagnoli, p)
	n, err := f.File.Write(p)
	f.size += int64(n)
	f.sum = sum
	if err != nil {
		f.bad = err
	}
	return n, err
}

// Sync implements vfs.File.
func (f *manifestFile) Sync() error {
	if f.bad != nil {
		return f.bad
	}
	if err := f.File.Sync(); err != nil {
		return err
	}
	return f.fs.note(f.name, f.size, f.sum)
}

// SyncData implements vfs.File.
func (f *manifestFile) SyncData() error { return f.Sync() }

// castagnoli is the polynomial of all checksums.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumFormat is the form of a file's size and checksum.
const sumFormat = "%d %08x"

// sumLine returns a file's size and checksum in SumFormat.
func sumLine(size int64, sum uint32) string { return fmt.Sprintf(sumFormat, size, sum) }

// formatSums returns a text of lines by file, with a checksum of its own at the end.
func formatSums(lines map[string]string) []byte {
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&text, "%s %s\n", name, lines[name])
	}
	fmt.Fprintf(&text, "%08x\n", crc32.Checksum(text.Bytes(), castagnoli))
	return text.Bytes()
}

// parseSums parses the result of FormatSums. ok is false if the text is damaged.
func parseSums(text []byte) (files map[string]string, ok bool) {
	end := bytes.LastIndexByte(bytes.TrimSuffix(text, []byte("\n")), '\n') + 1
	if string(text[end:]) != fmt.Sprintf("%08x\n", crc32.Checksum(text[:end], castagnoli)) {
		return nil, false
	}
	files = map[string]string{}
	for line := range strings.Lines(string(text[:end])) {
		name, rest, found := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !found {
			return nil, false
		}
		files[name] = rest
	}
	return files, true
}
