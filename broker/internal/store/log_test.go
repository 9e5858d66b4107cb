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
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// leases returns the offsets of the leases that a crash leaves.
func leasesAfter(t *testing.T, crashed vfs.FS) (offsets []int64) {
	t.Helper()
	s := assert.Value(openDir("data", crashed))(t)
	if err := s.Leases(func(_ uint32, p Place, _ Lease) error {
		offsets = append(offsets, p.Offset)
		return nil
	}); err != nil {
		t.Error(err)
	}
	assert.Must(t, s.Close())
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
		s := assert.Value(openDir("data", disk))(t)
		waited := rnd.Int64N(300)
		for i := range int64(300) {
			f := s.Groups.AddLazy(putLease(i))
			assert.Must(t, f.WaitWritten(t.Context()))
			if i == waited {
				assert.Must(t, f.Wait())
			}
		}
		crashed := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rnd})
		assert.Must(t, s.Close())
		offsets := leasesAfter(t, crashed)
		for i, offset := range offsets {
			assert.MustThat(t, offset == int64(i), "seed %d: the lease of %d is number %d", seed, offset, i)
		}
		assert.That(t, int64(len(offsets)) > waited, "seed %d: %d leases; the one of %d was on disk", seed, len(offsets), waited)
	}
}

// An fsync follows a lazy write within 20 ms, also if nothing else is written.
func TestLazyWriteIsSyncedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewCrashableMem()
		s := assert.Value(openDir("data", disk))(t)
		crash := func() vfs.FS { return disk.CrashClone(vfs.CrashCloneCfg{}) }
		for i := range int64(3) {
			assert.Must(t, s.Groups.AddLazy(putLease(i)).WaitWritten(t.Context()))
			before := crash()
			time.Sleep(20 * time.Millisecond)
			synctest.Wait()
			assert.Equal(t, "leases are on disk at once", int64(len(leasesAfter(t, before))), i)
			assert.Equal(t, "leases are on disk after 20 ms", int64(len(leasesAfter(t, crash()))), i+1)
		}
		assert.Must(t, s.Close())
	})
}

// onSync returns a file system in memory that calls f before each fsync of a log.
func onSync(f func() error) vfs.FS {
	return errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".log") && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
			return f()
		}
		return nil
	}))
}

// While an fsync is under way, lazy writes are readable at once and other writes gather into one
// batch. The functions after the writes are called in order, and none before the write is on disk.
func TestWritesBesideAnFsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stuck chan struct{} // nil: fsyncs end
		disk := onSync(func() error {
			if stuck != nil {
				<-stuck
			}
			return nil
		})
		s := assert.Value(Open(Options{FS: disk, Logger: slog.New(slog.DiscardHandler)}))(t)
		stuck = make(chan struct{})
		var ended []int64
		add := func(i int64) *PendingWrite {
			return s.Groups.Add(putLease(i), func(err error) {
				assert.NoError(t, err)
				ended = append(ended, i)
			})
		}
		first := add(0)
		synctest.Wait() // its fsync is under way
		second, third := add(1), add(2)
		assert.That(t, first != second && second == third, "the writes during an fsync are not one batch of their own")
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
		assert.Slices(t, "during the fsync of 0, are written", read(), []int64{0})
		assert.Must(t, s.Groups.AddLazy(putLease(3)).WaitWritten(t.Context()))
		assert.Slices(t, "after a lazy write, are written", read(), []int64{0, 1, 2, 3})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := third.WaitContext(ctx); !errors.Is(err, context.DeadlineExceeded) || len(ended) > 0 {
			t.Errorf("before its fsync: %v, and the functions of %v were called", err, ended)
		}
		close(stuck)
		err := errors.Join(first.Wait(), second.Wait(), third.Wait())
		assert.That(t, err == nil && slices.Equal(ended, []int64{0, 1, 2}), "%v; the functions of %v were called", err, ended)
		assert.Must(t, s.Close())
		assert.That(t, add(9) == nil && s.Groups.AddLazy(putLease(9)).Wait() != nil && len(ended) == 3, "the closed log takes writes")
	})
}

// A failed fsync breaks the store, and every write that waits for one fails.
func TestFailedFsyncBreaksTheStore(t *testing.T) {
	var fail atomic.Bool
	disk := onSync(func() error {
		if fail.Load() {
			return errors.New("the fsync fails")
		}
		return nil
	})
	s := assert.Value(Open(Options{Dir: "data", FS: disk, Logger: slog.New(slog.DiscardHandler)}))(t)
	lazily := s.Groups.AddLazy(putLease(0))
	assert.Must(t, lazily.WaitWritten(t.Context()))
	fail.Store(true)
	if err := lazily.Wait(); err == nil || s.Broken() == nil {
		t.Errorf("the lazy write: %v; the store is broken: %v", err, s.Broken())
	}
	assert.That(t, s.Groups.Add(putLease(1), nil).Wait() != nil, "a write after a failed fsync succeeds")
	assert.That(t, s.Groups.AddLazy(putLease(2)).WaitWritten(t.Context()) != nil, "a lazy write after a failed fsync succeeds")
	_ = s.Close() // reports the same
}

// After a crash, Open fails for one wrong bit anywhere in the synced part of the message log,
// except in the last blocks, which have no later chunk to check them.
func TestWrongBitInTheSyncedLogIsRejected(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s, err := Open(Options{Dir: "data", FS: fs, Logger: slog.New(slog.DiscardHandler), CacheBytes: 1 << 20, MemTableBytes: 32 << 20})
	assert.Must(t, err)
	for i := range int64(30) { // each of several blocks, with one fsync
		m := sampleMessage()
		m.Body = make([]byte, 100_000)
		assert.Must(t, s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &m) }, nil).Wait())
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	assert.Must(t, s.Close())
	log := ""
	var data []byte
	for _, name := range list(t, crashed, "data/messages") {
		if !strings.HasSuffix(name, ".log") {
			continue
		}
		d := assert.Value(crashed.UnsafeGetFileDataBuffer("data/messages/" + name))(t)
		if len(d) > len(data) {
			log, data = name, d
		}
	}
	const batch = 110_000 // the last one, which nothing was written after
	assert.MustThat(t, len(data) >= 1_000_000, "the log has %d bytes", len(data))
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		at := rnd.IntN(len(data) - 2*batch)
		data[at] ^= 1
		s, err := openDir("data", crashed.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rnd}))
		data[at] ^= 1
		if err == nil {
			_ = s.Close()
			t.Fatalf("byte %d of %d of %s is wrong, and it was opened", at, len(data), log)
		}
	}
	if s, err = openDir("data", crashed); err != nil {
		t.Fatalf("the whole log: %v", err)
	}
	if q, err := s.Queue(1, 0); err != nil || q.End.Offset != 30 {
		t.Errorf("the whole log has %d messages, %v", q.End.Offset, err)
	}
	assert.NoError(t, s.Close())
}

// A batch that waits for the one before takes so much, and then has no room
// until it is committed itself.
func TestLogHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		fs := onSync(func() error {
			if slow.Load() {
				time.Sleep(time.Hour)
			}
			return nil
		})
		s := assert.Value(Open(Options{Dir: "data", FS: fs, Logger: slog.New(slog.DiscardHandler)}))(t)
		defer func() {
			assert.NoError(t, s.Close())
		}()
		offset := int64(0)
		add := func() {
			s.Messages.Add(func(w *Batch) {
				w.PutMessage(Place{Topic: 1, Queue: 0, Offset: offset}, &Message{Message: tidegate.Message{Body: make([]byte, 1<<20)}, StoredAt: time.Now()})
			}, nil)
			offset++
		}
		slow.Store(true)
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
		assert.NoError(t, room(), "a batch that is not full")
		add()
		assert.Is(t, "a full batch", room(), context.DeadlineExceeded)
		slow.Store(false)
		start := time.Now()
		err := s.Messages.Room(t.Context(), 0, nil)
		assert.That(t, err == nil && time.Since(start) >= 50*time.Minute, "space after %v, %v", time.Since(start), err)
		add()
		assert.Must(t, s.Messages.Barrier().Wait())
		n := s.Messages.Committed()
		assert.That(t, n >= offset<<20, "%d bytes committed, want %d at least", n, offset<<20)
	})
}

// Any number of waiting calls that are admitted together add no more than the bound and the size of
// the last of them. A call that gives up leaves its space to the others.
func TestRoomIsBoundedForManyWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := assert.Value(Open(Options{Logger: slog.New(slog.DiscardHandler)}))(t)
		const n, each = 100, 4 << 20
		assert.Must(t, s.Messages.Room(t.Context(), s.maxHeld, nil))
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
		assert.Equal(t, "are admitted while there is no space", admitted.Load(), 0)
		s.Messages.Release(s.maxHeld)
		synctest.Wait()
		assert.Equal(t, "are admitted at once", admitted.Load(), s.maxHeld/each)
		cancel()
		close(leave)
		synctest.Wait()
		if a, g := admitted.Load(), given.Load(); a+g != n || a < n/2 || s.Messages.reserved.Load() != 0 {
			t.Errorf("%d were admitted and %d have given up, of %d; %d bytes stay reserved", a, g, n, s.Messages.reserved.Load())
		}
		// A call that waits when the store closes is admitted, and Add rejects it.
		assert.Must(t, s.Messages.Room(t.Context(), s.maxHeld, nil))
		late := make(chan error)
		go func() { late <- s.Messages.Room(t.Context(), each, nil) }()
		synctest.Wait()
		assert.Must(t, s.Close())
		if err := <-late; err != nil || s.Messages.Barrier() != nil {
			t.Errorf("a call that waited during the close: %v", err)
		}
	})
}

// A batch that is encoded in part, because of a bug, is not committed, and no later batch hangs.
func TestPanicWithinAddBreaksTheStore(t *testing.T) {
	s := assert.Value(Open(Options{Logger: slog.New(slog.DiscardHandler)}))(t)
	defer s.Close()
	func() {
		defer func() {
			assert.That(t, recover() == "a bug", "the panic is gone")
		}()
		s.Messages.Add(func(w *Batch) {
			w.PutNumber(7)
			panic("a bug")
		}, nil)
	}()
	if err := s.Messages.Barrier().Wait(); err == nil || s.Broken() == nil {
		t.Errorf("after it: %v, broken: %v", err, s.Broken())
	}
	n, err := s.LastNumber()
	assert.That(t, n == 0 && err == nil, "%d was committed, %v", n, err)
}

func TestFirstIn(t *testing.T) {
	s := assert.Value(Open(Options{Logger: slog.New(slog.DiscardHandler)}))(t)
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

// A caller that waits for space in the log continues at the moment at which a batch is on disk.
func TestRoomIsWokenByACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := assert.Value(openDir("", nil))(t)
		defer s.Close()
		l := s.Messages
		l.held.Add(s.maxHeld)
		done := make(chan error)
		go func() { done <- l.Room(t.Context(), 1, nil) }()
		<-time.After(roomLook + roomLook/2) // between two of its own looks
		begin := time.Now()
		m := sampleMessage()
		l.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1}, &m) }, func(error) { l.held.Add(-s.maxHeld) })
		assert.Must(t, <-done)
		assert.Equal(t, "it waited after the commit", time.Since(begin), 0)
		l.Release(1)
	})
}
