package store

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// leases returns the offsets of the leases that a crash leaves.
func leasesAfter(t *testing.T, crashed vfs.FS) (offsets []int64) {
	t.Helper()
	s, err := openDir("data", crashed)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Leases(func(_ uint32, p Place, _ Lease) error {
		offsets = append(offsets, p.Offset)
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return offsets
}

func putLease(offset int64) func(*Batch) {
	return func(b *Batch) {
		b.PutLease(1, Place{Topic: 1, Queue: 0, Offset: offset}, &Lease{State: 1, Owner: string(make([]byte, 1+offset))})
	}
}

// The power fails while any part of the lazy writes is on disk. The store then opens with the first
// of these writes, without a gap, and with all writes that a Wait covered.
func TestPowerFailsAfterLazyWrites(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		disk := vfs.NewCrashableMem()
		s, err := openDir("data", disk)
		if err != nil {
			t.Fatal(err)
		}
		waited := rnd.Int64N(300)
		for i := range int64(300) {
			f := s.Groups.AddLazy(putLease(i))
			if err := f.WaitWritten(t.Context()); err != nil {
				t.Fatal(err)
			}
			if i == waited {
				if err := f.Wait(); err != nil {
					t.Fatal(err)
				}
			}
		}
		crashed := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rnd})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		offsets := leasesAfter(t, crashed)
		for i, offset := range offsets {
			if offset != int64(i) {
				t.Fatalf("seed %d: the lease of %d is number %d", seed, offset, i)
			}
		}
		if int64(len(offsets)) <= waited {
			t.Errorf("seed %d: %d leases; the one of %d was on disk", seed, len(offsets), waited)
		}
	}
}

// An fsync follows a lazy write within 20 ms, also if nothing else is written.
func TestLazyWriteIsSyncedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewCrashableMem()
		s, err := openDir("data", disk)
		if err != nil {
			t.Fatal(err)
		}
		crash := func() vfs.FS { return disk.CrashClone(vfs.CrashCloneCfg{}) }
		for i := range int64(3) {
			if err := s.Groups.AddLazy(putLease(i)).WaitWritten(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := crash()
			time.Sleep(20 * time.Millisecond)
			synctest.Wait()
			if n := len(leasesAfter(t, before)); int64(n) != i {
				t.Errorf("%d leases are on disk at once, want %d", n, i)
			}
			if n := len(leasesAfter(t, crash())); int64(n) != i+1 {
				t.Errorf("%d leases are on disk after 20 ms, want %d", n, i+1)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A stuckFS does not end the fsyncs of logs until it is released.
type stuckFS struct {
	vfs.FS
	stuck chan struct{} // nil: fsyncs end
}

type stuckFile struct {
	vfs.File
	fs *stuckFS
}

func (s *stuckFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.Create(name, c)
	return &stuckFile{f, s}, err
}

func (f *stuckFile) wait() {
	if stuck := f.fs.stuck; stuck != nil {
		<-stuck
	}
}

func (f *stuckFile) Sync() error { f.wait(); return f.File.Sync() }

func (f *stuckFile) SyncData() error { f.wait(); return f.File.SyncData() }

// While an fsync is under way, lazy writes are readable at once and other writes gather into one
// batch. The functions after the writes are called in order, and none before the write is on disk.
func TestWritesBesideAnFsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &stuckFS{FS: vfs.NewMem()}
		s, err := Open(Options{FS: disk, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		stuck := make(chan struct{})
		disk.stuck = stuck
		var ended []int64
		add := func(i int64) *PendingWrite {
			return s.Groups.Add(putLease(i), func(err error) {
				if err != nil {
					t.Error(err)
				}
				ended = append(ended, i)
			})
		}
		first := add(0)
		synctest.Wait() // its fsync is under way
		second, third := add(1), add(2)
		if first == second || second != third {
			t.Error("the writes during an fsync are not one batch of their own")
		}
		synctest.Wait()
		var found []int64
		read := func() []int64 {
			found = nil
			if err := s.Leases(func(_ uint32, p Place, _ Lease) error {
				found = append(found, p.Offset)
				return nil
			}); err != nil {
				t.Error(err)
			}
			return found
		}
		if got := read(); !slices.Equal(got, []int64{0}) {
			t.Errorf("during the fsync of 0, %v are written", got)
		}
		if err := s.Groups.AddLazy(putLease(3)).WaitWritten(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := read(); !slices.Equal(got, []int64{0, 1, 2, 3}) {
			t.Errorf("after a lazy write, %v are written", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := third.WaitContext(ctx); !errors.Is(err, context.DeadlineExceeded) || len(ended) > 0 {
			t.Errorf("before its fsync: %v, and the functions of %v were called", err, ended)
		}
		close(stuck)
		if err := errors.Join(first.Wait(), second.Wait(), third.Wait()); err != nil || !slices.Equal(ended, []int64{0, 1, 2}) {
			t.Errorf("%v; the functions of %v were called", err, ended)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if add(9) != nil || s.Groups.AddLazy(putLease(9)).Wait() == nil || len(ended) != 3 {
			t.Error("the closed log takes writes")
		}
	})
}

// failingSyncs fails the fsyncs of logs on request.
type failingSyncs struct {
	vfs.FS
	fail atomic.Bool
}

type failingFile struct {
	vfs.File
	fs *failingSyncs
}

func (s *failingSyncs) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.Create(name, c)
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return &failingFile{f, s}, nil
}

func (f *failingFile) Sync() error {
	if f.fs.fail.Load() {
		return errors.New("the fsync fails")
	}
	return f.File.Sync()
}

func (f *failingFile) SyncData() error { return f.Sync() }

// A failed fsync breaks the store, and every write that waits for one fails.
func TestFailedFsyncBreaksTheStore(t *testing.T) {
	disk := &failingSyncs{FS: vfs.NewMem()}
	s, err := Open(Options{Dir: "data", FS: disk, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	lazily := s.Groups.AddLazy(putLease(0))
	if err := lazily.WaitWritten(t.Context()); err != nil {
		t.Fatal(err)
	}
	disk.fail.Store(true)
	if err := lazily.Wait(); err == nil || s.Broken() == nil {
		t.Errorf("the lazy write: %v; the store is broken: %v", err, s.Broken())
	}
	if err := s.Groups.Add(putLease(1), nil).Wait(); err == nil {
		t.Error("a write after a failed fsync succeeds")
	}
	if err := s.Groups.AddLazy(putLease(2)).WaitWritten(t.Context()); err == nil {
		t.Error("a lazy write after a failed fsync succeeds")
	}
	_ = s.Close() // reports the same
}
