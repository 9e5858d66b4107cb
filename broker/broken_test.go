package broker_test

import (
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A badFS cannot write files of one kind once bad is set.
type badFS struct {
	vfs.FS
	suffix   string
	err      error // nil: an input/output error
	bad      atomic.Bool
	failures atomic.Int64
}

func (fs *badFS) check(name string) error {
	if fs.bad.Load() && strings.HasSuffix(name, fs.suffix) {
		fs.failures.Add(1)
		if fs.err != nil {
			return fs.err
		}
		return syscall.EIO
	}
	return nil
}

func (fs *badFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.check(name); err != nil {
		return nil, err
	}
	f, err := fs.FS.Create(name, c)
	return badFile{f, fs, name}, err
}

type badFile struct {
	vfs.File
	fs   *badFS
	name string
}

func (f badFile) Write(p []byte) (int, error) {
	if err := f.fs.check(f.name); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

// bounded fails the test if the store keeps trying: it gives every other goroutine many turns to do
// so.
func (fs *badFS) bounded(t *testing.T) {
	t.Helper()
	before := fs.failures.Load()
	for range 10_000 {
		runtime.Gosched()
	}
	if n := fs.failures.Load() - before; n > 10 {
		t.Errorf("it tried %d times more", n)
	}
}

// A store that cannot write its log or its tables rejects all requests with the reason and ends the
// waiting receives. It neither hangs nor spins, and can be closed. The test runs in no bubble,
// because a broken store may leave goroutines of Pebble behind.
func TestBrokenStoreRejectsEverything(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{".log", ".sst"} {
		t.Run(suffix, func(t *testing.T) {
			fs := &badFS{FS: vfs.NewMem(), suffix: suffix}
			b, err := broker.Open(broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs))
			if err != nil {
				t.Fatal(err)
			}
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			putTopic(t, b, "empty", settings.Topic{Queues: 1})
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
			poll := func(wait time.Duration) error {
				_, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "empty", Queue: -1, InvisibleDuration: time.Minute, Wait: wait})
				return err
			}
			waiting := make(chan error)
			go func() { waiting <- poll(time.Hour) }()
			size := 1000
			if suffix == ".sst" {
				size = 1 << 20 // soon a table is written
			}
			fs.bad.Store(true)
			for n := 0; b.Healthy() == nil; n++ {
				if n == 1000 {
					t.Fatal("1000 sends, and it is still healthy")
				}
				b.Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "t", Body: make([]byte, size)}})
			}
			for name, err := range map[string]error{
				"waiting receive": <-waiting,
				"receive":         poll(0),
				"send":            b.Send(t.Context(), []*tidegate.Message{{ID: "m", Topic: "t", Body: []byte("x")}})[0].Err,
				"ack":             b.Ack(t.Context(), ds)[0],
				"topic":           b.DeleteTopic(t.Context(), "t"),
				"health":          b.Healthy(),
			} {
				if err == nil || !strings.Contains(err.Error(), "input/output error") || !strings.Contains(err.Error(), "restart the broker") {
					t.Errorf("%s: %v", name, err)
				}
			}
			fs.bounded(t)
			_ = b.Close() // success or failure depends on the writes that are left
		})
	}
}

// The disk has room for logs, which reuse files, and for no table. Writes then wait for a table,
// and Close ends that wait. The test is in no bubble, because Pebble's write never ends.
func TestFullDiskForTablesCloses(t *testing.T) {
	t.Parallel()
	fs := &badFS{FS: vfs.NewMem(), suffix: ".sst", err: syscall.ENOSPC}
	b, err := broker.Open(broker.Options{Dir: "data"}.On(fs).MemTable(256 << 10))
	if err != nil {
		t.Fatal(err)
	}
	fs.bad.Store(true)
	done := make(chan error)
	calls := b.Engine().Parts().Calls
	for n := 0; !stalled(b); n++ {
		if n == 100 {
			t.Fatal("100 writes do not stall it")
		}
		calls.Begin()
		go func() {
			defer calls.End()
			done <- b.Engine().Parts().Store.Messages.Add(func(w *store.Batch) { w.PutTopic("t", make([]byte, 50_000)) }, nil).Wait()
		}()
		for waits := true; waits && !stalled(b); {
			select {
			case err := <-done:
				if err != nil || b.Healthy() != nil {
					t.Fatal(err, b.Healthy())
				}
				waits = false
			default:
				runtime.Gosched()
			}
		}
	}
	closed := make(chan error)
	go func() { closed <- b.Close() }()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("the write that waited: %v", err)
	}
	if err := <-closed; err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("closing: %v", err)
	}
	fs.bounded(t)
}
