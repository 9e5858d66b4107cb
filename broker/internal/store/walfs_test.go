package store

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A countingFile tells what was done to it, and refuses what comes after Close.
type countingFile struct {
	vfs.File
	writes, syncs atomic.Int32
	synced        atomic.Int32  // writes before the last sync began
	slow          time.Duration // of a sync
	closed        bool
	err           error
}

func (f *countingFile) Write(p []byte) (int, error) { f.writes.Add(1); return len(p), nil }

func (f *countingFile) SyncData() error {
	if f.closed {
		f.err = errors.New("synced after it was closed")
	}
	n := f.writes.Load()
	if f.slow > 0 {
		time.Sleep(f.slow)
	}
	if f.err == nil {
		f.synced.Store(n)
	}
	f.syncs.Add(1)
	return f.err
}

func (f *countingFile) Close() error { f.closed = true; return nil }

// newLazyFile returns a log file over disk, which syncs after a second.
func newLazyFile(disk *countingFile) *lazyFile {
	f, _ := newLazyFS(nil, time.Second, func(error) {}).wrap("1.log", disk, nil)
	return f.(*lazyFile)
}

func put(t *testing.T, f vfs.File) {
	t.Helper()
	if _, err := f.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
}

// Pebble begins the next log file when this one is closed, and takes a log file that
// ends early for damaged if another follows it: closing has to sync.
func TestLazyFileIsSyncedBeforeItIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &countingFile{}
		f := newLazyFile(disk)
		for range 5 {
			put(t, f)
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
		}
		if disk.syncs.Load() != 0 {
			t.Errorf("%d syncs at once", disk.syncs.Load())
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if disk.syncs.Load() != 1 {
			t.Errorf("%d syncs after the delay, want 1", disk.syncs.Load())
		}
		put(t, f)
		if err := f.Close(); err != nil || disk.syncs.Load() != 2 || disk.synced.Load() != 6 {
			t.Errorf("closing: %v, %d syncs of %d writes, want 2 of 6", err, disk.syncs.Load(), disk.synced.Load())
		}
		_ = f.syncNow() // a timer that had fired already
		if disk.syncs.Load() != 2 || disk.err != nil {
			t.Errorf("%d syncs, %v", disk.syncs.Load(), disk.err)
		}
		if len(f.fs.files) != 0 {
			t.Error("the file system still holds the closed file")
		}
	})
}

func TestLazyFileTellsOfAFailedSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("a bad disk")
		f := newLazyFile(&countingFile{err: cause})
		var told error
		f.fs.fail = func(err error) { told = err }
		put(t, f)
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if err := f.Sync(); !errors.Is(err, cause) || !errors.Is(told, cause) {
			t.Errorf("the next sync: %v; the store was told %v", err, told)
		}
		if _, err := f.fs.sync(f.fs.position()); !errors.Is(err, cause) {
			t.Errorf("who waits for a sync is told %v", err)
		}
		f = newLazyFile(&countingFile{err: cause})
		put(t, f)
		if err := f.Close(); !errors.Is(err, cause) {
			t.Errorf("closing: %v", err)
		}
	})
}

// All who come before a sync begins share it; who comes later has another one;
// writes wait for none; what was synced for another reason needs none.
func TestLazySyncIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &countingFile{slow: 10 * time.Millisecond}
		f := newLazyFile(disk)
		var wg sync.WaitGroup
		wait := func() {
			put(t, f)
			n, at := disk.writes.Load(), f.fs.position()
			wg.Go(func() {
				if r, err := f.fs.sync(at); r != nil {
					<-r.done
					if r.err != nil {
						t.Error(r.err)
					}
				} else if err != nil {
					t.Error(err)
				}
				if got := disk.synced.Load(); got < n {
					t.Errorf("answered with %d writes on disk, want %d", got, n)
				}
			})
		}
		begin := time.Now()
		wait()
		synctest.Wait() // the first round runs, for 10 ms
		for range 20 {
			wait()
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("writing waited %v for a sync", d)
		}
		wg.Wait()
		if n, d := disk.syncs.Load(), time.Since(begin); n != 2 || d != 20*time.Millisecond {
			t.Errorf("%d syncs in %v, want 2 in 20 ms", n, d)
		}
		put(t, f)
		at := f.fs.position()
		if err := f.Close(); err != nil { // the log is rotated
			t.Fatal(err)
		}
		r, err := f.fs.sync(at)
		if err != nil {
			t.Fatal(err)
		}
		if r != nil {
			<-r.done
		}
		if n := disk.syncs.Load(); n != 3 || disk.synced.Load() != 22 {
			t.Errorf("%d syncs of %d writes, want 3 of 22", n, disk.synced.Load())
		}
		if r, err := f.fs.sync(at); r != nil || err != nil {
			t.Errorf("there is nothing to sync, but it waits: %v, %v", r, err)
		}
	})
}

// A power failure can leave later pages of the log that were not synced, and
// not those before them: what comes before the gap is there, and the database opens.
func TestGapInTheLazyLogIsItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		s, err := openDir("data", fs)
		if err != nil {
			t.Fatal(err)
		}
		put := func(from, to int64) (f *Flight) {
			for n := from; n < to; n++ {
				f = s.Groups.Add(func(b *Batch) { b.PutLease(1, Place{1, 0, n}, &Lease{Owner: string(make([]byte, 500))}) }, nil)
				if err := f.Wait(); err != nil {
					t.Fatal(err)
				}
			}
			return f
		}
		if err := put(0, 50).WaitSynced(); err != nil {
			t.Fatal(err)
		}
		put(50, 600)
		for seed := range uint64(10) {
			crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 70, RNG: rand.New(rand.NewPCG(seed, 0))})
			again, err := openDir("data", crashed)
			if err != nil {
				t.Fatal(err)
			}
			next := int64(0)
			if err := again.Leases(func(_ uint32, p Place, _ Lease) error {
				if p.Offset != next {
					t.Errorf("offset %d comes after %d", p.Offset, next-1)
				}
				next++
				return nil
			}); err != nil || next < 50 {
				t.Errorf("%d leases are there, want at least 50; %v", next, err)
			}
			if err := again.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
