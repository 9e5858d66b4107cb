package store

import (
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
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
	db, err := pebble.Open("db", &pebble.Options{FS: mem, DisableAutomaticCompactions: true})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, key := range []string{"a", "b"} {
			if err := db.Set([]byte(key), []byte("x"), pebble.Sync); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	flushes := slices.Compact(slices.Sorted(slices.Values(mem.seen)))
	if err := db.Compact(t.Context(), []byte("a"), []byte("c"), false); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	var compacted vfs.DiskWriteCategory
	for _, c := range mem.seen {
		if !slices.Contains(flushes, c) {
			compacted = c
		}
	}
	if len(flushes) != 1 || compacted == "" {
		t.Fatalf("the categories are %q", mem.seen)
	}
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewMem()
		disk.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 20, TotalBytes: 160 << 20, UsedBytes: 159 << 20})
		fs := newFullFS(disk, "", slog.New(slog.DiscardHandler))
		if err := fs.Prepare(nil); err != nil {
			t.Fatal(err)
		}
		if _, err := fs.Create("1.sst", compacted); !isFull(err) {
			t.Errorf("a compaction: %v", err)
		}
		f, err := fs.Create("2.sst", flushes[0])
		if err != nil {
			t.Fatalf("a flush: %v", err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		disk.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 100 << 20, TotalBytes: 160 << 20, UsedBytes: 60 << 20})
		fs.SetOpened()
		if f, err = fs.Create("1.sst", compacted); err != nil {
			t.Fatalf("a compaction, with a reserve: %v", err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
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
		if s.MemTable() > 12<<20 || s.Held() > 64<<20 {
			t.Errorf("%d MiB: %+v", mib, s)
		}
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
