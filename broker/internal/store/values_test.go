package store

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// manyValuesDir makes a directory with several files of values in path, and returns them. Bodies
// begin at size bytes.
func manyValuesDir(t *testing.T, fs *vfs.MemFS, path string, size int) (files []string) {
	t.Helper()
	s, err := openDir(path, fs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(20) {
		m := sampleMessage()
		m.Body = bytes.Repeat([]byte{byte(i)}, size*minSeparated+int(i/5)*7000)
		if err := s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &m) }, nil).Wait(); err != nil {
			t.Fatal(err)
		}
		if i%5 == 4 {
			if err := s.messages.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range list(t, fs, path+"/messages") {
		if strings.HasSuffix(name, ".blob") {
			files = append(files, path+"/messages/"+name)
		}
	}
	if len(files) < 3 {
		t.Fatalf("%d files of values", len(files))
	}
	return files
}

// A file of values that is missing or of another length while the broker is stopped has opening
// rejected, with the file and the remedy. One of the same length and other content costs its own
// messages. Neither ends the process, and after the loss is accepted the other messages are read.
func TestReplacedValues(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, fs *vfs.MemFS, files, others []string){
		"removed": func(t *testing.T, fs *vfs.MemFS, files, others []string) { fs.Remove(files[1]) },
		"replaced by the next one": func(t *testing.T, fs *vfs.MemFS, files, others []string) {
			copyFile(t, fs, files[2], files[1])
		},
		"replaced by that of another directory": func(t *testing.T, fs *vfs.MemFS, files, others []string) {
			copyFile(t, fs, others[1], files[1])
		},
		"empty": func(t *testing.T, fs *vfs.MemFS, files, others []string) {
			rewrite(t, fs, files[1], func([]byte) []byte { return nil })
		},
		"cut": func(t *testing.T, fs *vfs.MemFS, files, others []string) {
			rewrite(t, fs, files[1], func(b []byte) []byte { return b[:len(b)/2] })
		},
		"longer": func(t *testing.T, fs *vfs.MemFS, files, others []string) {
			rewrite(t, fs, files[1], func(b []byte) []byte { return append(b, b...) })
		},
		"random bytes": func(t *testing.T, fs *vfs.MemFS, files, others []string) {
			rewrite(t, fs, files[1], func(b []byte) []byte { return bytes.Repeat([]byte{0xa5}, len(b)) })
		},
		"same length": func(t *testing.T, fs *vfs.MemFS, files, others []string) {
			long, err := fs.UnsafeGetFileDataBuffer(files[2])
			if err != nil {
				t.Fatal(err)
			}
			rewrite(t, fs, files[1], func(b []byte) []byte { return append([]byte(nil), long[len(long)-len(b):]...) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			files, others := manyValuesDir(t, fs, "data", 2), manyValuesDir(t, fs, "other", 3)
			before, _ := fs.Stat(files[1])
			length := int64(-1)
			size := before.Size()
			change(t, fs, files, others)
			if info, err := fs.Stat(files[1]); err == nil {
				length = info.Size()
			}
			s, err := openDir("data", fs)
			if length != size {
				if err == nil {
					s.Close()
					t.Fatal("it was opened")
				}
				for _, w := range []string{files[1], "restore", "--accept-data-loss"} {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("the error does not contain %q: %v", w, err)
					}
				}
				s, err = acceptLoss(fs)
			}
			if err != nil {
				t.Fatal(err)
			}
			for round := range 2 { // the second after a restart
				for i := range int64(20) {
					m, ok, err := s.Get(Place{Topic: 1, Queue: 0, Offset: i})
					if lost := i/5 == 1; lost != IsDamage(err) || !lost && (err != nil || !ok || m.Body[0] != byte(i)) {
						t.Errorf("round %d, message %d: %v, %v", round, i, ok, err)
					}
				}
				if err := s.messages.DeleteRange([]byte{0}, appendMessageKey(nil, Place{Topic: 1, Queue: 0, Offset: 3}), nil); err != nil {
					t.Fatal(err)
				}
				_ = s.messages.Compact(t.Context(), []byte{0}, []byte{0xff}, false) // it may keep the files as they are
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if round == 0 {
					if s, err = openDir("data", fs); err != nil {
						t.Fatal(fmt.Errorf("after the loss was accepted: %w", err))
					}
					for i := range int64(3) {
						m := sampleMessage()
						m.Body = bytes.Repeat([]byte{byte(i)}, 100)
						if err := s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &m) }, nil).Wait(); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		})
	}
}

func copyFile(t *testing.T, fs *vfs.MemFS, from, to string) {
	t.Helper()
	data, err := fs.UnsafeGetFileDataBuffer(from)
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, fs, to, func([]byte) []byte { return append([]byte(nil), data...) })
}
