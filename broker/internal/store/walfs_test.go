package store

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A countingFile tells what was done to it, and refuses what comes after Close.
type countingFile struct {
	vfs.File
	syncs  atomic.Int32
	closed bool
	err    error
}

func (f *countingFile) SyncData() error {
	if f.closed {
		f.err = errors.New("synced after it was closed")
	}
	f.syncs.Add(1)
	return f.err
}

func (f *countingFile) Close() error { f.closed = true; return nil }

// Pebble begins the next log file when this one is closed, and takes a log file that
// ends early for damaged if another follows it: closing has to sync.
func TestLazyFileIsSyncedBeforeItIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &countingFile{}
		f := &lazyFile{File: disk, delay: time.Second}
		for range 5 {
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
		// The timer has fired, but what it calls has not begun.
		f.mu.Lock()
		f.pending = time.AfterFunc(0, func() {})
		f.mu.Unlock()
		synctest.Wait()
		if err := f.Close(); err != nil || disk.syncs.Load() != 2 {
			t.Errorf("closing: %v, %d syncs, want 2", err, disk.syncs.Load())
		}
		f.syncNow() // now it has
		if disk.syncs.Load() != 2 || disk.err != nil {
			t.Errorf("%d syncs, %v", disk.syncs.Load(), disk.err)
		}
	})
}

func TestLazyFileTellsOfAFailedSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("a bad disk")
		f := &lazyFile{File: &countingFile{err: cause}, delay: time.Second}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if err := f.Sync(); !errors.Is(err, cause) {
			t.Errorf("the next sync: %v", err)
		}
		f = &lazyFile{File: &countingFile{err: cause}, delay: time.Second}
		_ = f.Sync()
		if err := f.Close(); !errors.Is(err, cause) {
			t.Errorf("closing: %v", err)
		}
	})
}
