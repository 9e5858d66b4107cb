package store

import (
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A snapshot that is taken while both databases are written has all that was on disk before it, is
// of one moment, and is opened like a directory that was closed in order. The store that it was
// taken of remains whole.
func TestSnapshotUnderLoad(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s, err := openDir("data", mem)
	if err != nil {
		t.Fatal(err)
	}
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
		if err := s.Snapshot(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Snapshot(t.Context(), "backup/3"); err == nil || !strings.Contains(err.Error(), "new directory") {
		t.Errorf("a snapshot over another one: %v", err)
	}
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
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	checkSnapshot(t, left, "data", end)
}

// checkSnapshot opens a directory, which has all messages that were written before.
func checkSnapshot(t *testing.T, fs vfs.FS, dir string, before map[uint16]int64) {
	t.Helper()
	s, err := openDir(dir, fs)
	if err != nil {
		t.Fatal(err)
	}
	ends := map[uint16]int64{}
	for queue, n := range before {
		q, err := s.Queue(1, queue)
		if err != nil || q.End.Offset < n {
			t.Errorf("%s: queue %d ends at %d of %d, %v", dir, queue, q.End.Offset, n, err)
		}
		ends[queue] = q.End.Offset
		for i := range q.End.Offset {
			if _, ok, err := s.Get(Place{Topic: 1, Queue: queue, Offset: i}); !ok || err != nil {
				t.Fatalf("%s: message %d of queue %d: %v, %v", dir, i, queue, ok, err)
			}
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
	if err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A store in memory, and a directory that exists, have no snapshot.
func TestSnapshotRejected(t *testing.T) {
	s, err := openDir("", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Snapshot(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "in memory") {
		t.Errorf("in memory: %v", err)
	}
}

// A copy of the files of a running store is not supported. Either Open rejects it, or it happens to
// have all that was on disk when the copy began and no progress beyond its messages.
func TestCopyOfARunningStore(t *testing.T) {
	mem := vfs.NewMem()
	s, err := openDir("data", mem)
	if err != nil {
		t.Fatal(err)
	}
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
			if err := s.Groups.Barrier().Wait(); err != nil {
				t.Fatal(err)
			}
		}
		to := mem.PathJoin("copies", string(rune('a'+n)))
		before := written.Load()
		for _, dir := range order {
			if err := mem.MkdirAll(mem.PathJoin(to, dir), 0o755); err != nil {
				t.Fatal(err)
			}
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
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		checkSnapshot(t, mem, to, map[uint16]int64{0: before})
	}
	stop.Store(true)
	load.Wait()
	t.Logf("%d copies were refused, %d opened", refused, opened)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
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
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(append([]byte(nil), data...)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
