package store

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/internal/assert"
)

// categories records with which categories tables are created.
type categories struct {
	vfs.FS
	mu   sync.Mutex
	seen []vfs.DiskWriteCategory
}

func (fs *categories) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if isTable(name) {
		fs.mu.Lock()
		fs.seen = append(fs.seen, c)
		fs.mu.Unlock()
	}
	return fs.FS.Create(name, c)
}

// Without a reserve for the next start, Pebble's compactions write nothing, and its flushes do.
func TestCompactionsLeaveTheReserve(t *testing.T) {
	mem := &categories{FS: vfs.NewMem()}
	db := assert.Value(pebble.Open("db", &pebble.Options{FS: mem, DisableAutomaticCompactions: true}))(t)
	for range 2 {
		for _, key := range []string{"a", "b"} {
			assert.Must(t, db.Set([]byte(key), []byte("x"), pebble.Sync))
		}
		assert.Must(t, db.Flush())
	}
	flushes := slices.Compact(slices.Sorted(slices.Values(mem.seen)))
	assert.Must(t, db.Compact(t.Context(), []byte("a"), []byte("c"), false))
	assert.Must(t, db.Close())
	var compacted vfs.DiskWriteCategory
	for _, c := range mem.seen {
		if !slices.Contains(flushes, c) {
			compacted = c
		}
	}
	assert.MustThat(t, len(flushes) == 1 && compacted != "", "the categories are %q", mem.seen)
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewMem()
		disk.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 20, TotalBytes: 160 << 20, UsedBytes: 159 << 20})
		fs := newFullFS(disk, "", slog.New(slog.DiscardHandler))
		assert.Must(t, fs.Prepare(nil))
		if _, err := fs.Create("1.sst", compacted); !isFull(err) {
			t.Errorf("a compaction: %v", err)
		}
		f, err := fs.Create("2.sst", flushes[0])
		assert.Must(t, err, "a flush")
		assert.NoError(t, f.Close())
		disk.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 100 << 20, TotalBytes: 160 << 20, UsedBytes: 60 << 20})
		fs.SetOpened()
		if f, err = fs.Create("1.sst", compacted); err != nil {
			t.Fatalf("a compaction, with a reserve: %v", err)
		}
		assert.NoError(t, f.Close())
		fs.Close()
	})
}

// The reserve has the space of what a start writes, on disks of all sizes: the tables of two
// memtables of each database, and one batch.
func TestReserveSufficesForAStart(t *testing.T) {
	for _, mib := range []uint64{32, 160, 500, 768, 10 << 10, 0} {
		s := spaceOf(mib << 20)
		if need := int64(s.MemTable())*2*5/4 + s.Held(); s.Reserve < need {
			t.Errorf("%d MiB: the reserve has %d bytes, a start writes %d", mib, s.Reserve, need)
		}
		assert.That(t, s.MemTable() <= 12<<20 && s.Held() <= 64<<20, "%d MiB: %+v", mib, s)
	}
}

// A preallocating is a file system in memory that notes the space of files without content.
type preallocating struct {
	vfs.FS
	size int64
}

func (fs *preallocating) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.OpenReadWrite(name, c, o...)
	return preallocated{f, fs}, err
}

type preallocated struct {
	vfs.File
	fs *preallocating
}

func (f preallocated) Preallocate(_, n int64) error {
	f.fs.size = n
	return nil
}

// After a start on a nearly full disk, the reserve leaves space for consumers and purges, unless it
// would be smaller than half of its size. A reserve of less than a quarter is not created: the disk
// is full.
func TestReserveLeavesSpace(t *testing.T) {
	const mib, whole = 1 << 20, 20 << 20
	for free, want := range map[uint64]int64{100 * mib: whole, 23 * mib: whole, 20 * mib: whole * 7 / 8, 11 * mib: whole / 2, 8 * mib: 8 * mib, 4 * mib: 0} {
		synctest.Test(t, func(t *testing.T) {
			disk := vfs.NewMem()
			disk.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 160 * mib, UsedBytes: 160*mib - free})
			sizes := &preallocating{FS: disk}
			fs := newFullFS(sizes, "", slog.New(slog.DiscardHandler))
			fs.SetOpened()
			if sizes.size != want || (fs.Full() != nil) != (want == 0) {
				t.Errorf("%d bytes are free: the reserve has %d, want %d; full: %v", free, sizes.size, want, fs.Full())
			}
			fs.Close()
		})
	}
}

// A fakeDB has compactions that wait, and runs those that it is granted.
type fakeDB struct {
	allowed, waiting, granted int
	handle                    pebble.CompactionGrantHandle
	block                     chan struct{} // GetWaitingCompaction waits for it, unless nil
}

func (d *fakeDB) GetAllowedWithoutPermission() int { return d.allowed }

func (d *fakeDB) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	if d.block != nil {
		<-d.block
	}
	return d.waiting > 0, pebble.WaitingCompaction{}
}

func (d *fakeDB) Schedule(h pebble.CompactionGrantHandle) bool {
	if d.waiting == 0 {
		return false
	}
	d.waiting--
	d.granted++
	d.handle = h
	return true
}

func TestSchedulerAdmitsWhatIsAllowed(t *testing.T) {
	db := &fakeDB{allowed: 2}
	s := &scheduler{}
	s.Register(1, db)
	try := func(want bool) pebble.CompactionGrantHandle {
		t.Helper()
		ok, h := s.TrySchedule()
		assert.MustThat(t, ok == want, "TrySchedule() = %v, want %v, with %d running of %d", ok, want, s.running, db.allowed)
		return h
	}
	first, second := try(true), try(true)
	try(false)
	first.Done() // nothing waits, so its place is free
	third := try(true)
	try(false)
	db.waiting = 3
	second.Done() // the next one takes its place
	assert.That(t, db.granted == 1 && db.waiting == 2, "%d compactions were granted and %d wait, want 1 and 2", db.granted, db.waiting)
	db.allowed = 3
	third.Done() // two places now
	assert.That(t, db.granted == 3 && db.waiting == 0, "%d compactions were granted and %d wait, want 3 and 0", db.granted, db.waiting)
	try(false)
	s.Unregister()
	db.waiting = 1
	db.handle.Done()
	try(false)
	assert.Equal(t, "a compaction was granted after Unregister", db.granted, 3)
}

// Unregister returns after the calls of the database's methods.
func TestSchedulerUnregisterWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &fakeDB{allowed: 1, block: make(chan struct{})}
		s := &scheduler{}
		s.Register(1, db)
		_, h := s.TrySchedule()
		ended, unregistered := make(chan struct{}), make(chan struct{})
		go func() { h.Done(); close(ended) }()
		synctest.Wait()
		go func() { s.Unregister(); close(unregistered) }()
		synctest.Wait()
		select {
		case <-unregistered:
			t.Error("Unregister returned during a call of the database")
		default:
		}
		close(db.block)
		<-ended
		<-unregistered
	})
}

// A store in memory compacts its tables after flushes, without a look at the clock.
func TestMemoryStoreCompacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := assert.Value(Open(Options{Logger: slog.New(slog.DiscardHandler)}))(t)
		defer s.Close()
		start := time.Now()
		const flushes = 40
		for n := range flushes {
			for key := range 10 {
				assert.Must(t, s.messages.Set(fmt.Append(nil, "overlapping ", key), fmt.Append(nil, n), pebble.NoSync))
			}
			assert.Must(t, s.messages.Flush())
		}
		synctest.Wait()
		if m := s.messages.Metrics(); m.Compact.Count-m.Compact.MoveCount == 0 || m.Total().TablesCount >= flushes/2 {
			t.Errorf("%d tables after %d flushes and %d compactions", m.Total().TablesCount, flushes, m.Compact.Count)
		}
		assert.Equal(t, "it took of virtual time", time.Since(start), 0)
	})
}

// A snapshot that is taken while both databases are written has all that was on disk before it, is
// of one moment, and is opened like a directory that was closed in order. The store that it was
// taken of remains whole.
func TestSnapshotUnderLoad(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := assert.Value(openDir("data", mem))(t)
	var stop atomic.Bool
	var load sync.WaitGroup
	var written [4]atomic.Int64
	for q := range uint16(4) {
		load.Go(func() {
			for i := int64(0); !stop.Load(); i++ {
				m := sampleMessage()
				m.Body = make([]byte, 1<<10)
				if err := s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: q, Offset: i}, &m) }, nil).Wait(); err != nil {
					t.Error(err)
					return
				}
				if i%3 == 0 { // lazy, as first deliveries are
					err := s.Groups.AddLazy(func(b *Batch) { b.PutCursor(9, 1, q, Cursor{Next: i + 1}) }).WaitWritten(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
				} else if err := s.Groups.Add(func(b *Batch) { b.PutCursor(9, 1, q, Cursor{Next: i + 1}) }, nil).Wait(); err != nil {
					t.Error(err)
					return
				}
				written[q].Store(i + 1)
			}
		})
	}
	snapshots := map[string]map[uint16]int64{} // what was written before each, by directory
	for _, dir := range []string{"backup/1", "backup/2", "backup/3"} {
		before := map[uint16]int64{}
		snapshots[dir] = before
		for q := range uint16(4) {
			for target := written[q].Load() + 30; written[q].Load() < target && !t.Failed(); {
				if err := s.Groups.Barrier().Wait(); err != nil { // until more is written
					t.Fatal(err)
				}
			}
			before[q] = written[q].Load()
		}
		assert.Must(t, s.Snapshot(t.Context(), dir))
	}
	err := s.Snapshot(t.Context(), "backup/3")
	assert.That(t, err != nil && strings.Contains(err.Error(), "new directory"), "a snapshot over another one: %v", err)
	stop.Store(true)
	load.Wait() // the checks read every message, so nothing adds more meanwhile
	for dir, before := range snapshots {
		checkSnapshot(t, mem, dir, before)
	}
	end := map[uint16]int64{}
	for q := range uint16(4) {
		end[q] = written[q].Load()
	}
	left := kill(mem)
	assert.Must(t, s.Close())
	checkSnapshot(t, left, "data", end)
}

// checkSnapshot opens a directory, which has all messages that were written before.
func checkSnapshot(t *testing.T, fs vfs.FS, dir string, before map[uint16]int64) {
	t.Helper()
	s, err := openDir(dir, fs)
	assert.Must(t, err)
	ends := map[uint16]int64{}
	for queue, n := range before {
		q, err := s.Queue(1, queue)
		assert.That(t, err == nil && q.End.Offset >= n, "%s: queue %d ends at %d of %d, %v", dir, queue, q.End.Offset, n, err)
		ends[queue] = q.End.Offset
		for i := range q.End.Offset {
			_, ok, err := s.Get(Place{Topic: 1, Queue: queue, Offset: i})
			assert.MustThat(t, ok && err == nil, "%s: message %d of queue %d: %v, %v", dir, i, queue, ok, err)
		}
	}
	err = s.Cursors(func(_, _ uint32, queue uint16, c Cursor) error {
		// One message at most is written and its cursor is not; no cursor is before its message.
		if _, checked := before[queue]; !checked {
			return nil
		}
		if c.Next > ends[queue] || c.Next < ends[queue]-1 {
			t.Errorf("%s: the cursor of queue %d is %d, and the queue ends at %d", dir, queue, c.Next, ends[queue])
		}
		return nil
	})
	assert.NoError(t, err)
	assert.NoError(t, s.Close())
}

// A store in memory, and a directory that exists, have no snapshot.
func TestSnapshotRejected(t *testing.T) {
	s := assert.Value(openDir("", nil))(t)
	defer s.Close()
	err := s.Snapshot(t.Context(), "x")
	assert.That(t, err != nil && strings.Contains(err.Error(), "in memory"), "in memory: %v", err)
}

// A copy of the files of a running store is not supported. Either Open rejects it, or it happens to
// have all that was on disk when the copy began and no progress beyond its messages.
func TestCopyOfARunningStore(t *testing.T) {
	mem := vfs.NewMem()
	s := assert.Value(openDir("data", mem))(t)
	var stop atomic.Bool
	var load sync.WaitGroup
	var written atomic.Int64
	load.Go(func() {
		for i := int64(0); !stop.Load() && !t.Failed(); i++ {
			putBoth(t, s, i)
			written.Store(i + 1)
			if i%40 == 0 {
				_ = s.messages.Flush()
			}
		}
	})
	refused, opened := 0, 0
	for n, order := range [][]string{{"", messagesDir, groupsDir}, {"", groupsDir, messagesDir}, {messagesDir, groupsDir, ""}, {groupsDir, messagesDir, ""}, {messagesDir, "", groupsDir}, {groupsDir, "", messagesDir}} {
		for target := written.Load() + 60; written.Load() < target && !t.Failed(); {
			assert.Must(t, s.Groups.Barrier().Wait())
		}
		to := mem.PathJoin("copies", string(rune('a'+n)))
		before := written.Load()
		for _, dir := range order {
			assert.Must(t, mem.MkdirAll(mem.PathJoin(to, dir), 0o755))
			for _, name := range list(t, mem, mem.PathJoin("data", dir)) {
				if info, err := mem.Stat(mem.PathJoin("data", dir, name)); err != nil || info.IsDir() {
					continue // removed since
				}
				data, err := readOpen(mem, mem.PathJoin("data", dir, name))
				if err == nil {
					rewriteNew(t, mem, mem.PathJoin(to, dir, name), data)
				}
			}
		}
		c, err := openDir(to, mem)
		if err != nil {
			refused++
			continue
		}
		opened++
		assert.Must(t, c.Close())
		checkSnapshot(t, mem, to, map[uint16]int64{0: before})
	}
	stop.Store(true)
	load.Wait()
	t.Logf("%d copies were refused, %d opened", refused, opened)
	assert.NoError(t, s.Close())
}

// readOpen reads a file that another goroutine may be writing.
func readOpen(fs vfs.FS, path string) (data []byte, err error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	data, err = io.ReadAll(f)
	return data, errors.Join(err, f.Close())
}

func rewriteNew(t *testing.T, fs vfs.FS, path string, data []byte) {
	t.Helper()
	f := assert.Value(fs.Create(path, vfs.WriteCategoryUnspecified))(t)
	assert.Must(t, assert.Err(f.Write(append([]byte(nil), data...))))
	assert.Must(t, f.Close())
}
