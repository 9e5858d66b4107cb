package store

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func openDir(dir string, fs vfs.FS) (*Store, error) {
	return Open(Options{Dir: dir, FS: fs, Logger: slog.New(slog.DiscardHandler), CacheBytes: 1 << 20, MemTableBytes: 1 << 20})
}

// tinyFS has no free space.
type tinyFS struct{ vfs.FS }

func (tinyFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 20, TotalBytes: 1 << 40}, nil
}

func (tinyFS) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, &os.PathError{Op: "open", Path: name, Err: syscall.ENOSPC}
}

func TestOpenRejectsBadDirectories(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, dir string) vfs.FS
		says    []string
	}{
		{"in use", func(t *testing.T, dir string) vfs.FS {
			s, err := openDir(dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return nil
		}, []string{"another process uses the directory"}},
		{"newer format", func(t *testing.T, dir string) vfs.FS {
			write(t, dir, formatFile, "tidegate 99\n")
			return nil
		}, []string{"format 99", "reads up to 1", "newer version"}},
		{"not ours", func(t *testing.T, dir string) vfs.FS {
			write(t, dir, formatFile, "something else")
			return nil
		}, []string{"something else", "not a tidegate data directory"}},
		{"files of another program", func(t *testing.T, dir string) vfs.FS {
			write(t, dir, "thesis.tex", "")
			t.Cleanup(func() {
				if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
					t.Errorf("it holds %v now, %v", list, err)
				}
			})
			return nil
		}, []string{"thesis.tex", "empty directory"}},
		{"a file in its place", func(t *testing.T, dir string) vfs.FS {
			write(t, filepath.Dir(dir), filepath.Base(dir), "")
			return nil
		}, []string{"not a directory"}},
		{"full", func(*testing.T, string) vfs.FS { return tinyFS{vfs.Default} }, []string{"the disk of the directory is full", "1048576 bytes are free", "remove other files from the disk, or enlarge it"}},
		{"a lock that may not be written", func(*testing.T, string) vfs.FS { return deniedFS{vfs.Default} }, []string{"no permission to open", "LOCK", "check owner and permissions"}},
		{"a table that may not be read", func(t *testing.T, dir string) vfs.FS {
			s, err := openDir(dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			m := sampleMessage()
			if err := s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: 0}, &m) }, nil).Wait(); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.messages.Flush(), s.Close()); err != nil {
				t.Fatal(err)
			}
			return deniedFS{vfs.Default}
		}, []string{"no permission to open", "check owner and permissions"}},
		{"read-only", func(*testing.T, string) vfs.FS { return readOnlyFS{vfs.Default} }, []string{"mounted read-only"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			s, err := openDir(dir, c.prepare(t, dir))
			if err == nil {
				s.Close()
				t.Fatal("it was opened")
			}
			for _, w := range append(c.says, dir) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error does not contain %q: %v", w, err)
				}
			}
		})
	}
}

// readOnlyFS refuses to create files, as a read-only mount does. (The
// permissions of a real directory do not stop a test that runs as root.)
type readOnlyFS struct{ vfs.FS }

func (readOnlyFS) Lock(string) (io.Closer, error) {
	return nil, &os.PathError{Op: "open", Path: "LOCK", Err: syscall.EROFS}
}

// deniedFS has files without permissions: the lock, or tables where there are any. (Those of real
// files do not stop a test that runs as root.)
type deniedFS struct{ vfs.FS }

func (fs deniedFS) Lock(name string) (io.Closer, error) {
	if tables, _ := filepath.Glob(filepath.Join(filepath.Dir(name), "*", "*.sst")); len(tables) > 0 {
		return fs.FS.Lock(name)
	}
	if tables, _ := filepath.Glob(filepath.Join(filepath.Dir(name), "*.sst")); len(tables) > 0 {
		return fs.FS.Lock(name)
	}
	return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EACCES}
}

func (fs deniedFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") {
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EACCES}
	}
	return fs.FS.Open(name, opts...)
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestReopen(t *testing.T) {
	fs := vfs.NewMem()
	s, err := openDir("data", fs)
	if err != nil {
		t.Fatal(err)
	}
	m := sampleMessage()
	p := Place{Topic: 3, Queue: 1, Offset: 7}
	l := Lease{State: 2, Attempt: 5, Group: "g"}
	if err := s.Messages.Add(func(b *Batch) {
		b.PutMessage(p, &m)
		b.MarkDeadLetter(9, p, 5)
		b.PutTopic("t", []byte("x"))
		b.PutNumber(9)
	}, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	if err := s.Groups.Add(func(b *Batch) { b.PutLease(9, p, &l); b.PutCursor(9, 3, 1, Cursor{Next: 8, Bytes: 20, Rewound: 3}) }, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s.Messages.Add(func(*Batch) { t.Error("written after Close") }, nil).Wait() == nil {
		t.Error("a closed store takes writes")
	}
	if s, err = openDir("data", fs); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, ok, err := s.Get(p); !ok || err != nil || !equalMessages(got, m) {
		t.Errorf("message: %+v, %v, %v", got, ok, err)
	}
	q, err := s.Queue(3, 1)
	if want := (QueueState{End: Mark{Offset: 8, Bytes: m.Cumulative}, Newest: m.StoredAt}); err != nil || !reflect.DeepEqual(q, want) {
		t.Errorf("queue: %+v, %v; want %+v", q, err, want)
	}
	if dead, err := s.IsDeadLetter(9, p, 5); !dead || err != nil {
		t.Errorf("dead letter mark: %v, %v", dead, err)
	}
	if dead, _ := s.IsDeadLetter(8, p, 0); dead {
		t.Error("another group has the mark")
	}
	n, err := s.LastNumber()
	if n != 9 || err != nil {
		t.Errorf("last number: %d, %v", n, err)
	}
	leases, cursors := 0, 0
	if err := s.Leases(func(g uint32, at Place, got Lease) error {
		leases++
		if g != 9 || at != p || got != l {
			t.Errorf("lease: %d %+v %+v", g, at, got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Cursors(func(g, topic uint32, queue uint16, c Cursor) error {
		cursors++
		if g != 9 || topic != 3 || queue != 1 || c != (Cursor{Next: 8, Bytes: 20, Rewound: 3}) {
			t.Errorf("cursor: %d %d %d %+v", g, topic, queue, c)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if leases != 1 || cursors != 1 {
		t.Errorf("%d leases and %d cursors, want one each", leases, cursors)
	}
}
