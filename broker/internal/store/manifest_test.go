package store

import (
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// crashedDir makes a directory with tables in both databases, whose process ended.
func crashedDir(t *testing.T) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewCrashableMem()
	s, err := openDir("data", fs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(20) {
		m := sampleMessage()
		if err := s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &m) }, nil).Wait(); err != nil {
			t.Fatal(err)
		}
		if err := s.Groups.Add(func(b *Batch) { b.PutCursor(9, 1, 0, Cursor{Next: i}) }, nil).Wait(); err != nil {
			t.Fatal(err)
		}
		if i%7 == 0 {
			if err := s.messages.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := s.groups.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return clone
}

func list(t *testing.T, fs vfs.FS, dir string) []string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
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
		if err := fs.Remove(dir + "/" + name); err != nil {
			t.Fatal(err)
		}
	}
}

func copyAll(t *testing.T, fs vfs.FS, from, to string) {
	t.Helper()
	for _, name := range list(t, fs, from) {
		r, err := fs.Open(from + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		w, err := fs.Create(to+"/"+name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, struct{ io.Reader }{r}); err != nil {
			t.Fatal(err)
		}
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
				if err := fs.Remove(fileWith(t, fs, dir, markerPrefix)); err != nil {
					t.Fatal(err)
				}
			},
			"no manifest": func(t *testing.T, fs *vfs.MemFS) {
				if err := fs.Remove(fileWith(t, fs, dir, manifestPrefix)); err != nil {
					t.Fatal(err)
				}
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
				data, err := fs.UnsafeGetFileDataBuffer(path)
				if err != nil {
					t.Fatal(err)
				}
				data = slices.Clone(data[:len(data)-1])
				f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.Write(data); err != nil {
					t.Fatal(err)
				}
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
	s, err := openDir("elsewhere", fs)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
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
	for _, w := range []string{"data", "restore the whole data directory from a backup"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not contain %q: %v", w, err)
		}
	}
	if after := list(t, fs, dir); !slices.Equal(before, after) {
		t.Errorf("there was %q, and is %q", before, after)
	}
}

// After a crash, Open fails for every wrong byte of a manifest.
func TestWrongByteInAManifestIsRejected(t *testing.T) {
	whole := crashedDir(t)
	for _, db := range []string{messagesDir, groupsDir} {
		path := fileWith(t, whole, "data/"+db, manifestPrefix)
		data, err := whole.UnsafeGetFileDataBuffer(path)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(data); at += 1 + len(data)/40 {
			data[at] ^= 0x10
			wantRefused(t, whole, "data/"+db)
			data[at] ^= 0x10
		}
	}
	s, err := openDir("data", whole)
	if err != nil {
		t.Fatalf("the whole directory: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A directory of a version that had no identities gets them, and is guarded from then on.
func TestOldDirectoryGetsAnIdentity(t *testing.T) {
	fs := crashedDir(t)
	for _, name := range []string{identityFile, messagesDir + "/" + identityFile, groupsDir + "/" + identityFile, knownPrefix + messagesDir, knownPrefix + groupsDir} {
		if err := fs.Remove("data/" + name); err != nil {
			t.Fatal(err)
		}
	}
	s, err := openDir("data", fs)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := s.Get(Place{Topic: 1, Queue: 0, Offset: 19}); !ok || err != nil {
		t.Errorf("its last message: %v, %v", ok, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fs.Remove("data/" + cleanFile); err != nil {
		t.Fatal(err)
	}
	if err := fs.Remove(fileWith(t, fs, "data/messages", markerPrefix)); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, fs, "data/messages")
}
