package store

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
)

// A slowFS takes an hour for the fsync of a log file once it is slow.
type slowFS struct {
	vfs.FS
	slow atomic.Bool
}

func (fs *slowFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return slowFile{f, fs}, nil
}

type slowFile struct {
	vfs.File
	fs *slowFS
}

func (f slowFile) SyncData() error {
	if f.fs.slow.Load() {
		time.Sleep(time.Hour)
	}
	return f.File.SyncData()
}

func (f slowFile) Sync() error { return f.SyncData() }

// A batch that waits for the one before takes so much, and then has no room
// until it is committed itself.
func TestLogHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &slowFS{FS: vfs.NewMem()}
		s, err := Open(Options{Dir: "data", FS: fs, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}()
		offset := int64(0)
		add := func() {
			s.Messages.Add(func(w *Batch) {
				w.PutMessage(Place{Topic: 1, Queue: 0, Offset: offset}, &Message{Message: tidegate.Message{Body: make([]byte, 1<<20)}, StoredAt: time.Now()})
			}, nil)
			offset++
		}
		fs.slow.Store(true)
		add()
		synctest.Wait() // it is on its way
		room := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return s.Messages.Room(ctx, 0, nil)
		}
		for range s.maxHeld>>20 - 2 {
			add()
		}
		if err := room(); err != nil {
			t.Errorf("a batch that is not full: %v", err)
		}
		add()
		if err := room(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a full batch: %v", err)
		}
		fs.slow.Store(false)
		start := time.Now()
		if err := s.Messages.Room(t.Context(), 0, nil); err != nil || time.Since(start) < 50*time.Minute {
			t.Errorf("space after %v, %v", time.Since(start), err)
		}
		add()
		if err := s.Messages.Barrier().Wait(); err != nil {
			t.Fatal(err)
		}
		if n := s.Messages.Committed(); n < offset<<20 {
			t.Errorf("%d bytes committed, want %d at least", n, offset<<20)
		}
	})
}

// Any number of waiting calls that are admitted together add no more than the bound and the size of
// the last of them. A call that gives up leaves its space to the others.
func TestRoomIsBoundedForManyWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		const n, each = 100, 4 << 20
		if err := s.Messages.Room(t.Context(), s.maxHeld, nil); err != nil {
			t.Fatal(err)
		}
		var admitted, given atomic.Int64
		leave := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		for i := range n {
			go func() {
				ctx := ctx
				if i%2 == 0 {
					ctx = t.Context()
				}
				if s.Messages.Room(ctx, each, nil) != nil {
					given.Add(1)
					return
				}
				admitted.Add(1)
				<-leave
				s.Messages.Release(each)
			}()
		}
		synctest.Wait()
		if k := admitted.Load(); k != 0 {
			t.Errorf("%d are admitted while there is no space", k)
		}
		s.Messages.Release(s.maxHeld)
		synctest.Wait()
		if k := admitted.Load(); k != s.maxHeld/each {
			t.Errorf("%d are admitted at once, want %d", k, s.maxHeld/each)
		}
		cancel()
		close(leave)
		synctest.Wait()
		if a, g := admitted.Load(), given.Load(); a+g != n || a < n/2 || s.Messages.reserved.Load() != 0 {
			t.Errorf("%d were admitted and %d have given up, of %d; %d bytes stay reserved", a, g, n, s.Messages.reserved.Load())
		}
		// A call that waits when the store closes is admitted, and Add rejects it.
		if err := s.Messages.Room(t.Context(), s.maxHeld, nil); err != nil {
			t.Fatal(err)
		}
		late := make(chan error)
		go func() { late <- s.Messages.Room(t.Context(), each, nil) }()
		synctest.Wait()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-late; err != nil || s.Messages.Barrier() != nil {
			t.Errorf("a call that waited during the close: %v", err)
		}
	})
}

// A batch that is encoded in part, because of a bug, is not committed, and no later batch hangs.
func TestPanicWithinAddBreaksTheStore(t *testing.T) {
	s, err := Open(Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	func() {
		defer func() {
			if recover() != "a bug" {
				t.Error("the panic is gone")
			}
		}()
		s.Messages.Add(func(w *Batch) {
			w.PutNumber(7)
			panic("a bug")
		}, nil)
	}()
	if err := s.Messages.Barrier().Wait(); err == nil || s.Broken() == nil {
		t.Errorf("after it: %v, broken: %v", err, s.Broken())
	}
	if n, err := s.LastNumber(); n != 0 || err != nil {
		t.Errorf("%d was committed, %v", n, err)
	}
}

func TestFirstIn(t *testing.T) {
	s, err := Open(Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Messages.Add(func(w *Batch) {
		for _, offset := range []int64{3, 5} {
			w.PutMessage(Place{Topic: 1, Queue: 2, Offset: offset}, &Message{StoredAt: time.Unix(offset, 0)})
		}
	}, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, want int64 }{{0, 9, 3}, {3, 9, 3}, {4, 9, 5}, {6, 9, 0}, {0, 3, 0}, {4, 5, 0}} {
		if got, ok, err := s.FirstIn(Range{Topic: 1, Queue: 2, From: c.from, To: c.to}); err != nil || ok != (c.want > 0) || ok && !got.At.Equal(time.Unix(c.want, 0)) {
			t.Errorf("from %d to %d: %v, %v, %v; want %d s", c.from, c.to, got.At, ok, err, c.want)
		}
	}
	if p := s.Pressure(); p.Disk || !s.StalledSince().IsZero() {
		t.Errorf("in memory: %+v, stalled since %v", p, s.StalledSince())
	}
}
