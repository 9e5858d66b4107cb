package store

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// heldFS lets no table be created until release is closed, so that logs stay.
type heldFS struct {
	vfs.FS
	release chan struct{}
}

func (fs heldFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob") {
		<-fs.release
	}
	return fs.FS.Create(name, c)
}

// killedDir returns the directory of a store after kill -9, with messages 0 to n-1, each with its
// cursor, in two logs of each database.
func killedDir(t *testing.T) (left *vfs.MemFS, n int64) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	fs := heldFS{mem, make(chan struct{})}
	s, err := openDir("data", fs)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		close(fs.release)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for ; len(logs(t, mem, messagesDir)) < 2 || len(logs(t, mem, groupsDir)) < 2; n++ {
		putBoth(t, s, n)
	}
	putBoth(t, s, n)
	return kill(mem), n + 1
}

// kill returns the file system after the end of the process, with all its content.
func kill(fs *vfs.MemFS) *vfs.MemFS {
	return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
}

// putBoth writes message i, and about a third as much to the groups.
func putBoth(t *testing.T, s *Store, i int64) {
	t.Helper()
	m := sampleMessage()
	m.Body = make([]byte, 8<<10)
	if err := s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &m) }, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	err := s.Groups.Add(func(b *Batch) {
		for q := range uint16(50) {
			b.PutCursor(9, 1, q, Cursor{Next: i + 1})
		}
	}, nil).Wait()
	if err != nil {
		t.Fatal(err)
	}
}

func logs(t *testing.T, fs vfs.FS, db string) []string {
	t.Helper()
	var names []string
	for _, name := range list(t, fs, "data/"+db) {
		if strings.HasSuffix(name, ".log") {
			names = append(names, "data/"+db+"/"+name)
		}
	}
	return names
}

func rewrite(t *testing.T, fs *vfs.MemFS, path string, change func([]byte) []byte) {
	t.Helper()
	data, err := fs.UnsafeGetFileDataBuffer(path)
	if err != nil {
		t.Fatal(err)
	}
	data = change(append([]byte(nil), data...))
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

func acceptLoss(fs vfs.FS) (*Store, error) {
	return Open(Options{Dir: "data", FS: fs, Logger: slog.New(slog.DiscardHandler), CacheBytes: 1 << 20, MemTableBytes: 1 << 20, AcceptLoss: true})
}

// wantLost checks that opening names the file and the remedies, and changes no file of data.
func wantLost(t *testing.T, fs *vfs.MemFS, path string) {
	t.Helper()
	wantRefused(t, fs, fs.PathDir(path))
	s, err := openDir("data", fs)
	if err == nil {
		s.Close()
		t.Fatal("it was opened")
	}
	for _, w := range []string{path, "--accept-data-loss"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not contain %q: %v", w, err)
		}
	}
}

// After kill -9, Open reports a log that lacks synced data: one that is cut anywhere, removed, with
// zeros at its end, or with a wrong bit in its last chunk. If the loss of the last log's end is
// accepted, the messages before it remain.
func TestShortenedLogIsRejected(t *testing.T) {
	for _, db := range []string{messagesDir, groupsDir} {
		for which := range 2 {
			for name, change := range map[string]func([]byte) []byte{
				"empty":         func(d []byte) []byte { return nil },
				"cut to a half": func(d []byte) []byte { return d[:len(d)/2] },
				"a byte short":  func(d []byte) []byte { return d[:len(d)-1] },
				"zeros":         func(d []byte) []byte { clear(d[len(d)-100:]); return d },
				"wrong bit":     func(d []byte) []byte { d[len(d)-50] ^= 1; return d },
				"removed":       nil,
			} {
				t.Run(fmt.Sprint(db, which, name), func(t *testing.T) {
					fs, n := killedDir(t)
					path := logs(t, fs, db)[which]
					if change == nil {
						if err := fs.Remove(path); err != nil {
							t.Fatal(err)
						}
					} else {
						rewrite(t, fs, path, change)
					}
					wantLost(t, fs, path)
					if which == 0 && change != nil {
						return // Pebble does not open a database with such a log
					}
					s, err := acceptLoss(fs)
					if err != nil {
						t.Fatal(err)
					}
					q, err := s.Queue(1, 0)
					if whole := q.End.Offset == n; err != nil || db == groupsDir && !whole || db == messagesDir && which == 1 && whole {
						t.Errorf("the queue ends at %d of %d, %v", q.End.Offset, n, err)
					}
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					if s, err = openDir("data", kill(fs)); err != nil {
						t.Fatalf("after the loss was accepted: %v", err)
					}
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	}
	fs, n := killedDir(t)
	s, err := openDir("data", fs)
	if err != nil {
		t.Fatalf("the whole directory: %v", err)
	}
	if q, err := s.Queue(1, 0); err != nil || q.End.Offset != n {
		t.Errorf("the queue ends at %d of %d, %v", q.End.Offset, n, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// After kill -9, an older copy of one database is rejected, also if all files beside the databases
// are as old as the copy. An older copy of the whole directory is opened.
func TestOlderCopyOfADatabaseIsRejected(t *testing.T) {
	for _, db := range []string{messagesDir, groupsDir} {
		for _, others := range []bool{false, true} {
			for _, flush := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s with the other files %v, flushed %v", db, others, flush), func(t *testing.T) {
					mem := vfs.NewCrashableMem()
					s, err := openDir("data", mem)
					if err != nil {
						t.Fatal(err)
					}
					defer s.Close()
					for i := range int64(10) {
						putBoth(t, s, i)
					}
					older := kill(mem)
					for i := range int64(10) {
						putBoth(t, s, 10+i)
					}
					if flush {
						if err := s.messages.Flush(); err != nil {
							t.Fatal(err)
						}
						if err := s.groups.Flush(); err != nil {
							t.Fatal(err)
						}
						putBoth(t, s, 20)
					}
					newer := kill(mem)
					dirs := []string{"data/" + db}
					if others {
						dirs = append(dirs, "data")
					}
					for _, dir := range dirs {
						for _, name := range list(t, newer, dir) {
							if info, err := newer.Stat(dir + "/" + name); err == nil && !info.IsDir() {
								_ = newer.Remove(dir + "/" + name)
							}
						}
						for _, name := range list(t, older, dir) {
							if info, err := older.Stat(dir + "/" + name); err != nil || info.IsDir() {
								continue
							}
							rewriteFrom(t, older, newer, dir+"/"+name)
						}
					}
					if s, err := openDir("data", newer); err == nil {
						s.Close()
						t.Fatal("it was opened")
					} else if !strings.Contains(err.Error(), "restore the whole data directory from a backup") {
						t.Errorf("the error names no remedy: %v", err)
					}
					whole, err := openDir("data", older)
					if err != nil {
						t.Fatalf("the older copy of the whole directory: %v", err)
					}
					if err := whole.Close(); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

func rewriteFrom(t *testing.T, from, to *vfs.MemFS, path string) {
	t.Helper()
	data, err := from.UnsafeGetFileDataBuffer(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := to.Create(path, vfs.WriteCategoryUnspecified)
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
