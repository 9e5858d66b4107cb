package store

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidegate/tidegate/internal/assert"
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
			s := assert.Value(openDir(dir, nil))(t)
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
				list, err := os.ReadDir(dir)
				assert.That(t, err == nil && len(list) == 1, "it holds %v now, %v", list, err)
			})
			return nil
		}, []string{"thesis.tex", "empty directory"}},
		{"a file in its place", func(t *testing.T, dir string) vfs.FS {
			write(t, filepath.Dir(dir), filepath.Base(dir), "")
			return nil
		}, []string{"not a directory"}},
		{"full", func(*testing.T, string) vfs.FS { return tinyFS{vfs.Default} }, []string{"the disk of the directory is full", "1048576 bytes are free", "remove other files from the disk, or enlarge it"}},
		{"a lock that may not be written", func(*testing.T, string) vfs.FS { return refusing(errorfs.OpLock, "", syscall.EACCES) }, []string{"no permission to open", "LOCK", "check owner and permissions"}},
		{"a table that may not be read", func(t *testing.T, dir string) vfs.FS {
			s := assert.Value(openDir(dir, nil))(t)
			m := sampleMessage()
			assert.Must(t, s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: 0}, &m) }, nil).Wait())
			assert.Must(t, errors.Join(s.messages.Flush(), s.Close()))
			return refusing(errorfs.OpOpen, ".sst", syscall.EACCES)
		}, []string{"no permission to open", "check owner and permissions"}},
		{"read-only", func(*testing.T, string) vfs.FS { return refusing(errorfs.OpLock, "", syscall.EROFS) }, []string{"mounted read-only"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			s, err := openDir(dir, c.prepare(t, dir))
			if err == nil {
				s.Close()
				t.Fatal("it was opened")
			}
			assert.Contains(t, "the error", fmt.Sprint(err), append(c.says, dir)...)
		})
	}
}

// refusing returns the file system with an error for operations of one kind on files with a suffix,
// as of files without permissions. (Those of real files do not stop a test that runs as root.)
func refusing(kind errorfs.OpKind, suffix string, err error) vfs.FS {
	return errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == kind && strings.HasSuffix(op.Path, suffix) {
			return &os.PathError{Op: "open", Path: op.Path, Err: err}
		}
		return nil
	}))
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	assert.Must(t, os.MkdirAll(dir, 0o755))
	assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

func TestReopen(t *testing.T) {
	fs := vfs.NewMem()
	s, err := openDir("data", fs)
	assert.Must(t, err)
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
	assert.Must(t, s.Groups.Add(func(b *Batch) { b.PutLease(9, p, &l); b.PutCursor(9, 3, 1, Cursor{Next: 8, Bytes: 20, Rewound: 3}) }, nil).Wait())
	assert.Must(t, s.Close())
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
	assert.That(t, n == 9 && err == nil, "last number: %d, %v", n, err)
	leases, cursors := 0, 0
	if err := s.Leases(func(g uint32, at Place, got Lease) error {
		leases++
		assert.That(t, g == 9 && at == p && got == l, "lease: %d %+v %+v", g, at, got)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Cursors(func(g, topic uint32, queue uint16, c Cursor) error {
		cursors++
		assert.That(t, g == 9 && topic == 3 && queue == 1 && c == (Cursor{Next: 8, Bytes: 20, Rewound: 3}),
			"cursor: %d %d %d %+v", g, topic, queue, c)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	assert.That(t, leases == 1 && cursors == 1, "%d leases and %d cursors, want one each", leases, cursors)
}

// crashedDir makes a directory with tables in both databases, whose process ended.
func crashedDir(t *testing.T) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewCrashableMem()
	s := assert.Value(openDir("data", fs))(t)
	for i := range int64(20) {
		m := sampleMessage()
		assert.Must(t, s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &m) }, nil).Wait())
		assert.Must(t, s.Groups.Add(func(b *Batch) { b.PutCursor(9, 1, 0, Cursor{Next: i}) }, nil).Wait())
		if i%7 == 0 {
			assert.Must(t, s.messages.Flush())
			assert.Must(t, s.groups.Flush())
		}
	}
	clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	assert.Must(t, s.Close())
	return clone
}

func list(t *testing.T, fs vfs.FS, dir string) []string {
	t.Helper()
	names := assert.Value(fs.List(dir))(t)
	slices.Sort(names)
	return names
}

func fileWith(t *testing.T, fs vfs.FS, dir, prefix string) string {
	t.Helper()
	for _, name := range slices.Backward(list(t, fs, dir)) {
		if strings.HasPrefix(name, prefix) {
			return dir + "/" + name
		}
	}
	t.Fatalf("no file %s in %s", prefix, dir)
	return ""
}

func removeAll(t *testing.T, fs vfs.FS, dir string) {
	t.Helper()
	for _, name := range list(t, fs, dir) {
		assert.Must(t, fs.Remove(dir+"/"+name))
	}
}

func copyAll(t *testing.T, fs vfs.FS, from, to string) {
	t.Helper()
	for _, name := range list(t, fs, from) {
		r := assert.Value(fs.Open(from + "/" + name))(t)
		w := assert.Value(fs.Create(to+"/"+name, vfs.WriteCategoryUnspecified))(t)
		assert.Must(t, assert.Err(io.Copy(w, struct{ io.Reader }{r})))
		r.Close()
		w.Close()
	}
}

// After a crash, Open rejects a directory with a part that is missing, swapped or of another
// directory, or with an incomplete manifest. The error has the remedy, and no file of data is
// changed.
func TestIncompleteDirectoryIsRejected(t *testing.T) {
	for _, db := range []string{messagesDir, groupsDir} {
		dir := "data/" + db
		other := map[string]string{messagesDir: "data/" + groupsDir, groupsDir: "data/" + messagesDir}[db]
		for name, change := range map[string]func(t *testing.T, fs *vfs.MemFS){
			"no marker": func(t *testing.T, fs *vfs.MemFS) {
				assert.Must(t, fs.Remove(fileWith(t, fs, dir, markerPrefix)))
			},
			"no manifest": func(t *testing.T, fs *vfs.MemFS) {
				assert.Must(t, fs.Remove(fileWith(t, fs, dir, manifestPrefix)))
			},
			"removed": func(t *testing.T, fs *vfs.MemFS) { removeAll(t, fs, dir) },
			"copied over the other": func(t *testing.T, fs *vfs.MemFS) {
				removeAll(t, fs, dir)
				copyAll(t, fs, other, dir)
			},
			"of another directory": func(t *testing.T, fs *vfs.MemFS) {
				removeAll(t, fs, dir)
				copyAll(t, crashedDirIn(t, fs), "elsewhere/"+db, dir)
			},
			"manifest cut": func(t *testing.T, fs *vfs.MemFS) {
				path := fileWith(t, fs, dir, manifestPrefix)
				data := assert.Value(fs.UnsafeGetFileDataBuffer(path))(t)
				data = slices.Clone(data[:len(data)-1])
				f := assert.Value(fs.Create(path, vfs.WriteCategoryUnspecified))(t)
				assert.Must(t, assert.Err(f.Write(data)))
				f.Close()
			},
		} {
			t.Run(db+" "+name, func(t *testing.T) {
				fs := crashedDir(t)
				change(t, fs)
				wantRefused(t, fs, dir)
			})
		}
	}
}

// crashedDirIn makes another data directory in fs.
func crashedDirIn(t *testing.T, fs vfs.FS) vfs.FS {
	t.Helper()
	s := assert.Value(openDir("elsewhere", fs))(t)
	assert.Must(t, s.Close())
	return fs
}

func wantRefused(t *testing.T, fs *vfs.MemFS, dir string) {
	t.Helper()
	before := list(t, fs, dir)
	s, err := openDir("data", fs)
	if err == nil {
		s.Close()
		t.Fatal("it was opened")
	}
	assert.Contains(t, "the error", fmt.Sprint(err), "data", "restore the whole data directory from a backup")
	after := list(t, fs, dir)
	assert.That(t, slices.Equal(before, after), "there was %q, and is %q", before, after)
}

// After a crash, Open fails for every wrong byte of a manifest.
func TestWrongByteInAManifestIsRejected(t *testing.T) {
	whole := crashedDir(t)
	for _, db := range []string{messagesDir, groupsDir} {
		path := fileWith(t, whole, "data/"+db, manifestPrefix)
		data := assert.Value(whole.UnsafeGetFileDataBuffer(path))(t)
		for at := 0; at < len(data); at += 1 + len(data)/40 {
			data[at] ^= 0x10
			wantRefused(t, whole, "data/"+db)
			data[at] ^= 0x10
		}
	}
	s, err := openDir("data", whole)
	assert.Must(t, err, "the whole directory")
	assert.NoError(t, s.Close())
}

// A directory of a version that had no identities gets them, and is guarded from then on.
func TestOldDirectoryGetsAnIdentity(t *testing.T) {
	fs := crashedDir(t)
	for _, name := range []string{identityFile, messagesDir + "/" + identityFile, groupsDir + "/" + identityFile, knownPrefix + messagesDir, knownPrefix + groupsDir} {
		assert.Must(t, fs.Remove("data/"+name))
	}
	s := assert.Value(openDir("data", fs))(t)
	_, ok, err := s.Get(Place{Topic: 1, Queue: 0, Offset: 19})
	assert.That(t, ok && err == nil, "its last message: %v, %v", ok, err)
	assert.Must(t, s.Close())
	assert.Must(t, fs.Remove("data/"+cleanFile))
	assert.Must(t, fs.Remove(fileWith(t, fs, "data/messages", markerPrefix)))
	wantRefused(t, fs, "data/messages")
}

// unneeded are the files without which a directory opens with all its data: locks, the reserves of
// the disk, copies of the content of another file, and the record of Pebble's options after a
// crash.
func unneeded(name string, closed bool) bool {
	base := path.Base(name)
	switch {
	case base == "LOCK", strings.HasPrefix(base, "SYNCED."), base == "VALUES", base == "BALLAST", base == "RESERVE", base == "CLEAN", name == "IDENTITY":
		return true
	case strings.HasPrefix(base, "OPTIONS-"):
		return !closed
	}
	return false
}

// The error of each file that is missing names the file and the remedy, after a crash and after an
// orderly close.
func TestEachMissingFileIsNamed(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{false, true} {
		whole := crashedDir(t)
		if closed {
			s := assert.Value(openDir("data", whole))(t)
			assert.Must(t, s.Close())
		}
		var files []string
		for _, dir := range []string{"", messagesDir, groupsDir} {
			for _, name := range list(t, whole, path.Join("data", dir)) {
				if name != messagesDir && name != groupsDir {
					files = append(files, path.Join(dir, name))
				}
			}
		}
		tables := 0
		for _, name := range files {
			fs := vfs.NewMem()
			if ok, err := vfs.Clone(whole, fs, "data", "data"); !ok || err != nil {
				t.Fatal(ok, err)
			}
			assert.Must(t, fs.Remove(path.Join("data", name)))
			s, err := openDir("data", fs)
			switch {
			case err == nil:
				assert.That(t, unneeded(name, closed) || strings.HasSuffix(name, ".sst") && isWhole(t, s),
					"closed %v: the directory opened without %s", closed, name)
				s.Close()
				continue
			case unneeded(name, closed):
				t.Errorf("closed %v: without %s: %v", closed, name, err)
				continue
			}
			if strings.HasSuffix(name, ".sst") {
				tables++
			}
			base, _, _ := strings.Cut(path.Base(name), ".0") // the number of a marker is not known
			for _, want := range []string{base, "restore the whole data directory from a backup", "give another directory"} {
				assert.That(t, strings.Contains(err.Error(), want),
					"closed %v: without %s the error does not contain %q: %v", closed, name, want, err)
			}
		}
		assert.That(t, tables != 0, "no table was needed")
	}
}

// isWhole reports whether a store has all that crashedDir wrote. A compaction can have replaced a
// table that is still in the directory.
func isWhole(t *testing.T, s *Store) bool {
	t.Helper()
	for i := range int64(20) {
		if _, found, err := s.Get(Place{Topic: 1, Queue: 0, Offset: i}); !found || err != nil {
			return false
		}
	}
	var last Cursor
	err := s.Cursors(func(_, _ uint32, _ uint16, c Cursor) error { last = c; return nil })
	return err == nil && last.Next == 19
}

// killedDir returns the directory of a store after kill -9, with messages 0 to n-1, each with its
// cursor, in two logs of each database.
func killedDir(t *testing.T) (left *vfs.MemFS, n int64) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	release := make(chan struct{})
	s := assert.Value(openDir("data", errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && isTable(op.Path) {
			<-release // no table is created, so that logs stay
		}
		return nil
	}))))(t)
	defer func() {
		close(release)
		assert.NoError(t, s.Close())
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
	assert.Must(t, s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &m) }, nil).Wait())
	err := s.Groups.Add(func(b *Batch) {
		for q := range uint16(50) {
			b.PutCursor(9, 1, q, Cursor{Next: i + 1})
		}
	}, nil).Wait()
	assert.Must(t, err)
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
	data := assert.Value(fs.UnsafeGetFileDataBuffer(path))(t)
	data = change(append([]byte(nil), data...))
	f := assert.Value(fs.Create(path, vfs.WriteCategoryUnspecified))(t)
	assert.Must(t, assert.Err(f.Write(append([]byte(nil), data...))))
	assert.Must(t, f.Close())
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
	assert.Contains(t, "the error", fmt.Sprint(err), path, "--accept-data-loss")
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
						assert.Must(t, fs.Remove(path))
					} else {
						rewrite(t, fs, path, change)
					}
					wantLost(t, fs, path)
					if which == 0 && change != nil {
						return // Pebble does not open a database with such a log
					}
					s, err := acceptLoss(fs)
					assert.Must(t, err)
					q, err := s.Queue(1, 0)
					if whole := q.End.Offset == n; err != nil || db == groupsDir && !whole || db == messagesDir && which == 1 && whole {
						t.Errorf("the queue ends at %d of %d, %v", q.End.Offset, n, err)
					}
					assert.Must(t, s.Close())
					if s, err = openDir("data", kill(fs)); err != nil {
						t.Fatalf("after the loss was accepted: %v", err)
					}
					assert.Must(t, s.Close())
				})
			}
		}
	}
	fs, n := killedDir(t)
	s, err := openDir("data", fs)
	assert.Must(t, err, "the whole directory")
	if q, err := s.Queue(1, 0); err != nil || q.End.Offset != n {
		t.Errorf("the queue ends at %d of %d, %v", q.End.Offset, n, err)
	}
	assert.Must(t, s.Close())
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
					assert.Must(t, err)
					defer s.Close()
					for i := range int64(10) {
						putBoth(t, s, i)
					}
					older := kill(mem)
					for i := range int64(10) {
						putBoth(t, s, 10+i)
					}
					if flush {
						assert.Must(t, s.messages.Flush())
						assert.Must(t, s.groups.Flush())
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
					assert.Must(t, err, "the older copy of the whole directory")
					assert.NoError(t, whole.Close())
				})
			}
		}
	}
}

func rewriteFrom(t *testing.T, from, to *vfs.MemFS, path string) {
	t.Helper()
	data := assert.Value(from.UnsafeGetFileDataBuffer(path))(t)
	f := assert.Value(to.Create(path, vfs.WriteCategoryUnspecified))(t)
	assert.Must(t, assert.Err(f.Write(append([]byte(nil), data...))))
	assert.Must(t, f.Close())
}

// Invariants: reading never panics, and any change of the written bytes is noticed.
func FuzzParseClean(f *testing.F) {
	whole := func(lines string) []byte {
		return fmt.Appendf([]byte(lines), "%08x\n", crc32.Checksum([]byte(lines), castagnoli))
	}
	f.Add(whole("messages/000001.log 5 0000abcd\n"), 3, byte(1))
	f.Add(whole(""), 0, byte(255))
	f.Add([]byte("\n"), 0, byte(0))
	f.Fuzz(func(t *testing.T, text []byte, at int, flip byte) {
		_, _ = parseSums(text)
		good := whole("groups/MANIFEST-000001 17 01234567\n")
		files, ok := parseSums(good)
		assert.MustThat(t, ok && len(files) == 1, "%q is not read: %v", good, files)
		if flip != 0 {
			good[uint(at)%uint(len(good))] ^= flip
			files, ok := parseSums(good)
			assert.MustThat(t, !ok, "%q is read as %v", good, files)
		}
	})
}
