package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// valuesDir makes a directory whose messages are in one file of values, which it returns.
func valuesDir(t *testing.T) (fs *vfs.MemFS, file string) {
	t.Helper()
	fs = vfs.NewCrashableMem()
	s, err := openDir("data", fs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(20) {
		m := sampleMessage()
		m.Body = bytes.Repeat([]byte{byte(i)}, 2*minSeparated)
		if err := s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &m) }, nil).Wait(); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.messages.Flush(), s.Close()); err != nil {
		t.Fatal(err)
	}
	names, err := fs.List("data/messages")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".blob") {
			file = "data/messages/" + name
		}
	}
	if file == "" {
		t.Fatalf("no file of values among %q", names)
	}
	return fs, file
}

// A file of values with a corrupt footer, or a missing one, loses its messages only: reads and
// compactions do not panic, and the store closes in order.
func TestCorruptFooterOfValues(t *testing.T) {
	fs, file := valuesDir(t)
	const footer = 38
	spoil := map[string]func(t *testing.T, fs *vfs.MemFS){"missing": func(t *testing.T, fs *vfs.MemFS) {
		if err := fs.Remove(file); err != nil {
			t.Fatal(err)
		}
	}}
	for i := 0; i < footer; i += 4 {
		spoil[fmt.Sprint("byte ", i, " of the footer")] = func(t *testing.T, fs *vfs.MemFS) {
			data, err := fs.UnsafeGetFileDataBuffer(file)
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)-footer+i] ^= 1
		}
	}
	for name, change := range spoil {
		t.Run(name, func(t *testing.T) {
			fs := fs.CrashClone(vfs.CrashCloneCfg{})
			s, err := openDir("data", fs)
			if err != nil {
				t.Fatal(err)
			}
			change(t, fs)
			_, _, err = s.Read(1, 0, 0, 20, 32, 1<<20)
			if d, ok := errors.AsType[*Damaged](err); !ok || d.From != 0 || d.To != 20 {
				t.Errorf("reading: %v", err)
			}
			if _, _, err := s.Get(Place{Topic: 1, Queue: 0, Offset: 7}); !IsDamage(err) {
				t.Errorf("reading one message: %v", err)
			}
			if err := s.messages.DeleteRange([]byte{0}, appendMessageKey(nil, Place{Topic: 1, Queue: 0, Offset: 10}), nil); err != nil {
				t.Error(err)
			}
			_ = s.messages.Compact(t.Context(), []byte{0}, []byte{0xff}, false) // it may keep the file as it is
			if err := s.Close(); err != nil {
				t.Errorf("closing: %v", err)
			}
		})
	}
}

// A read from a closed database is a fault of the caller, not damage: damage would move groups past
// messages.
func TestReadingAClosedStoreIsNoDamage(t *testing.T) {
	fs, _ := valuesDir(t)
	s, err := openDir("data", fs)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func() error{
		"Get":  func() error { _, _, err := s.Get(Place{Topic: 1, Queue: 0, Offset: 3}); return err },
		"Read": func() error { _, _, err := s.Read(1, 0, 0, 20, 32, 1<<20); return err },
	} {
		func() {
			defer func() {
				if p := recover(); p == nil {
					t.Errorf("%s: no panic", name)
				} else if err, ok := p.(error); !ok || !errors.Is(err, pebble.ErrClosed) {
					t.Errorf("%s: the panic is %v", name, p)
				}
			}()
			if err := read(); err == nil || IsDamage(err) {
				t.Errorf("%s: the error is %v", name, err)
			}
		}()
	}
}

// Pebble would rewrite a corrupt file of values again and again, and leave a goroutine behind or
// panic each time. The store therefore lets Pebble rewrite no file of values, also after a restart,
// until the corrupt file is gone. It logs this once.
func TestCorruptValuesAreNotRewritten(t *testing.T) {
	for _, where := range []string{"footer", "body"} {
		t.Run(where, func(t *testing.T) {
			fs, file := valuesDir(t)
			data, err := fs.UnsafeGetFileDataBuffer(file)
			if err != nil {
				t.Fatal(err)
			}
			if where == "footer" {
				data[len(data)-1] ^= 1
			} else {
				data[len(data)/3] ^= 1
			}
			churn := func(start string, wantErrors int, read bool) {
				var log bytes.Buffer
				s, err := Open(Options{Dir: "data", FS: fs, Logger: slog.New(slog.NewTextHandler(&log, nil)), CacheBytes: 1 << 20, MemTableBytes: 1 << 20})
				if err != nil {
					t.Fatal(start, err)
				}
				if read {
					if _, _, err := s.Read(1, 0, 10, 20, 32, 1<<20); !IsDamage(err) {
						t.Fatal(start, err)
					}
				}
				if err := s.messages.DeleteRange([]byte{0}, appendMessageKey(nil, Place{Topic: 1, Queue: 0, Offset: 10}), nil); err != nil {
					t.Fatal(start, err)
				}
				for i := range int64(50) {
					m := sampleMessage()
					m.Body = make([]byte, 300)
					if err := s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: 5 + i%3}, &m) }, nil).Wait(); err != nil {
						t.Fatal(start, err)
					}
					if err := s.messages.Flush(); err != nil {
						t.Fatal(start, err)
					}
				}
				if n := s.messages.Metrics().Compact.FailedCount; n > 0 {
					t.Errorf("%s: %d compactions failed", start, n)
				}
				if err := s.Close(); err != nil {
					t.Error(start, err)
				}
				if n := strings.Count(log.String(), "level=ERROR"); n != wantErrors {
					t.Errorf("%s: %d errors were logged, want %d:\n%s", start, n, wantErrors, &log)
				}
			}
			churn("first", 1, true)
			churn("second", 0, false)
			s, err := openDir("data", fs)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.messages.DeleteRange([]byte{0}, []byte{0xff}, nil); err != nil {
				t.Fatal(err)
			}
			if err := s.messages.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s, err = openDir("data", fs); err != nil {
				t.Fatal(err)
			}
			if _, err := fs.Stat("data/" + damagedFile); err == nil || s.damage.GarbageRatio() != targetGarbage {
				t.Errorf("the file is gone, and its note exists: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
