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

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// manyValuesDir makes a directory with several files of values in path, and returns them. Bodies
// begin at size bytes.
func manyValuesDir(t *testing.T, fs *vfs.MemFS, path string, size int) (files []string) {
	t.Helper()
	s := assert.Value(openDir(path, fs))(t)
	for i := range int64(20) {
		m := sampleMessage()
		m.Body = bytes.Repeat([]byte{byte(i)}, size*minSeparated+int(i/5)*7000)
		assert.Must(t, s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &m) }, nil).Wait())
		if i%5 == 4 {
			assert.Must(t, s.messages.Flush())
		}
	}
	assert.Must(t, s.Close())
	for _, name := range list(t, fs, path+"/messages") {
		if strings.HasSuffix(name, ".blob") {
			files = append(files, path+"/messages/"+name)
		}
	}
	assert.MustThat(t, len(files) >= 3, "%d files of values", len(files))
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
			long := assert.Value(fs.UnsafeGetFileDataBuffer(files[2]))(t)
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
				assert.Contains(t, "the error", fmt.Sprint(err), files[1], "restore", "--accept-data-loss")
				s, err = acceptLoss(fs)
			}
			assert.Must(t, err)
			for round := range 2 { // the second after a restart
				for i := range int64(20) {
					m, ok, err := s.Get(Place{Topic: 1, Queue: 0, Offset: i})
					if lost := i/5 == 1; lost != IsDamage(err) || !lost && (err != nil || !ok || m.Body[0] != byte(i)) {
						t.Errorf("round %d, message %d: %v, %v", round, i, ok, err)
					}
				}
				assert.Must(t, s.messages.DeleteRange([]byte{0}, appendMessageKey(nil, Place{Topic: 1, Queue: 0, Offset: 3}), nil))
				_ = s.messages.Compact(t.Context(), []byte{0}, []byte{0xff}, false) // it may keep the files as they are
				assert.Must(t, s.Close())
				if round == 0 {
					if s, err = openDir("data", fs); err != nil {
						t.Fatal(fmt.Errorf("after the loss was accepted: %w", err))
					}
					for i := range int64(3) {
						m := sampleMessage()
						m.Body = bytes.Repeat([]byte{byte(i)}, 100)
						assert.Must(t, s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &m) }, nil).Wait())
					}
				}
			}
		})
	}
}

func copyFile(t *testing.T, fs *vfs.MemFS, from, to string) {
	t.Helper()
	data := assert.Value(fs.UnsafeGetFileDataBuffer(from))(t)
	rewrite(t, fs, to, func([]byte) []byte { return append([]byte(nil), data...) })
}

// valuesDir makes a directory whose messages are in one file of values, which it returns.
func valuesDir(t *testing.T) (fs *vfs.MemFS, file string) {
	t.Helper()
	fs = vfs.NewCrashableMem()
	s := assert.Value(openDir("data", fs))(t)
	for i := range int64(20) {
		m := sampleMessage()
		m.Body = bytes.Repeat([]byte{byte(i)}, 2*minSeparated)
		assert.Must(t, s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &m) }, nil).Wait())
	}
	assert.Must(t, errors.Join(s.messages.Flush(), s.Close()))
	names := assert.Value(fs.List("data/messages"))(t)
	for _, name := range names {
		if strings.HasSuffix(name, ".blob") {
			file = "data/messages/" + name
		}
	}
	assert.MustThat(t, file != "", "no file of values among %q", names)
	return fs, file
}

// A file of values with a corrupt footer, or a missing one, loses its messages only: reads and
// compactions do not panic, and the store closes in order.
func TestCorruptFooterOfValues(t *testing.T) {
	fs, file := valuesDir(t)
	const footer = 38
	spoil := map[string]func(t *testing.T, fs *vfs.MemFS){"missing": func(t *testing.T, fs *vfs.MemFS) {
		assert.Must(t, fs.Remove(file))
	}}
	for i := 0; i < footer; i += 4 {
		spoil[fmt.Sprint("byte ", i, " of the footer")] = func(t *testing.T, fs *vfs.MemFS) {
			data := assert.Value(fs.UnsafeGetFileDataBuffer(file))(t)
			data[len(data)-footer+i] ^= 1
		}
	}
	for name, change := range spoil {
		t.Run(name, func(t *testing.T) {
			fs := fs.CrashClone(vfs.CrashCloneCfg{})
			s, err := openDir("data", fs)
			assert.Must(t, err)
			change(t, fs)
			_, _, err = s.Read(1, 0, 0, 20, 32, 1<<20)
			d, ok := errors.AsType[*Damaged](err)
			assert.That(t, ok && d.From == 0 && d.To == 20, "reading: %v", err)
			if _, _, err := s.Get(Place{Topic: 1, Queue: 0, Offset: 7}); !IsDamage(err) {
				t.Errorf("reading one message: %v", err)
			}
			assert.NoError(t, s.messages.DeleteRange([]byte{0}, appendMessageKey(nil, Place{Topic: 1, Queue: 0, Offset: 10}), nil))
			_ = s.messages.Compact(t.Context(), []byte{0}, []byte{0xff}, false) // it may keep the file as it is
			assert.NoError(t, s.Close(), "closing")
		})
	}
}

// A read from a closed database is a fault of the caller, not damage: damage would move groups past
// messages.
func TestReadingAClosedStoreIsNoDamage(t *testing.T) {
	fs, _ := valuesDir(t)
	s := assert.Value(openDir("data", fs))(t)
	assert.Must(t, s.Close())
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
			err := read()
			assert.That(t, err != nil && !IsDamage(err), "%s: the error is %v", name, err)
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
			assert.Must(t, err)
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
					_, _, err := s.Read(1, 0, 10, 20, 32, 1<<20)
					assert.MustThat(t, IsDamage(err), "%+v, %+v", start, err)
				}
				if err := s.messages.DeleteRange([]byte{0}, appendMessageKey(nil, Place{Topic: 1, Queue: 0, Offset: 10}), nil); err != nil {
					t.Fatal(start, err)
				}
				for i := range int64(50) {
					m := sampleMessage()
					m.Body = make([]byte, 300)
					err := s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: 5 + i%3}, &m) }, nil).Wait()
					assert.MustThat(t, err == nil, "%+v, %+v", start, err)
					err = s.messages.Flush()
					assert.MustThat(t, err == nil, "%+v, %+v", start, err)
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
			assert.Must(t, err)
			assert.Must(t, s.messages.DeleteRange([]byte{0}, []byte{0xff}, nil))
			assert.Must(t, s.messages.Compact(t.Context(), []byte{0}, []byte{0xff}, false))
			assert.Must(t, s.Close())
			if s, err = openDir("data", fs); err != nil {
				t.Fatal(err)
			}
			if _, err := fs.Stat("data/" + damagedFile); err == nil || s.damage.GarbageRatio() != targetGarbage {
				t.Errorf("the file is gone, and its note exists: %v", err)
			}
			assert.NoError(t, s.Close())
		})
	}
}

func TestTableEnd(t *testing.T) {
	key := func(topic uint32, queue uint16, offset int64) []byte {
		return appendMessageKey(nil, Place{Topic: topic, Queue: queue, Offset: offset})
	}
	next := func(topic uint32, queue uint16) (int64, bool) {
		if topic != 7 {
			return 0, false // nothing was sent recently
		}
		return 10_000 + int64(queue), true
	}
	for _, tt := range []struct {
		name       string
		first, end []byte
	}{
		{"settings before the messages", []byte("gname"), []byte("m")},
		{"all messages", []byte("m"), []byte("n")},
		{"all messages of a topic, as a range to delete", []byte("m\x00\x00\x00\x07"), []byte("n")},
		{"4096 newer messages", key(7, 2, 10_002-4096), []byte("m\x00\x00\x00\x07\x00\x03")},
		{"fewer", key(7, 2, 10_002-4095), []byte("n")},
		{"the last queue of a topic", key(7, 0xffff, 0), []byte("m\x00\x00\x00\x08")},
		{"an idle queue", key(8, 0, 0), []byte("n")},
		{"records after the messages", []byte("q\x00"), nil},
		{"nothing", nil, nil},
	} {
		end := tableEnd(tt.first, next)
		assert.That(t, bytes.Equal(end, tt.end), "%s: the table ends at %q, want %q", tt.name, end, tt.end)
		assert.That(t, end == nil || bytes.Compare(end, tt.first) > 0,
			"%s: the end %q is not after the first key %q", tt.name, end, tt.first)
	}
}

// Compacted tables have messages of one queue each, and every message is still there.
func TestTablesEndWithTheirQueue(t *testing.T) {
	s := assert.Value(Open(Options{Logger: slog.New(slog.DiscardHandler), MemTableBytes: 1 << 20}))(t)
	defer s.Close()
	const queues, messages, batch = 3, 3 * queueTable, 512
	for first := int64(0); first < messages; first += batch {
		w := s.Messages.Add(func(b *Batch) {
			for offset := first; offset < first+batch; offset++ {
				for q := range uint16(queues) {
					b.PutMessage(Place{Topic: 1, Queue: q, Offset: offset}, &Message{Message: tidegate.Message{ID: fmt.Sprint(q, offset)}})
				}
			}
		}, nil)
		assert.Must(t, w.Wait())
	}
	assert.Must(t, s.messages.Compact(t.Context(), []byte("m"), []byte("n"), false))
	levels := assert.Value(s.messages.SSTables())(t)
	ofQueue := map[uint16]int{}
	for level, tables := range levels {
		for _, table := range tables {
			from, to := table.Smallest.UserKey, table.Largest.UserKey
			if len(from) != messageKeyLen || len(to) != messageKeyLen {
				continue
			}
			assert.That(t, level != 0 && splitMessageKey(from).Queue == splitMessageKey(to).Queue,
				"a table of level %d has the messages from %x to %x", level, from, to)
			ofQueue[splitMessageKey(from).Queue]++
		}
	}
	assert.That(t, len(ofQueue) == queues, "tables by queue: %v, want some for each of %d", ofQueue, queues)
	for q := range uint16(queues) {
		ms, _, err := s.Read(1, q, 0, messages, messages, 1<<40)
		assert.That(t, err == nil && len(ms) == messages && ms[messages-1].ID == fmt.Sprint(q, messages-1),
			"queue %d: %d messages, %v", q, len(ms), err)
	}
}

// With many queues that receive messages, tables of single queues would be too small.
func TestTablesOfManyQueues(t *testing.T) {
	tail := newTail()
	for q := range uint16(fewQueues + 1) {
		n, ok := tail.next(1, 0)
		assert.That(t, q <= 0 || n == 7+1 && ok, "%d queues: the next offset is %d, %v, want 8", q, n, ok)
		tail.put(Place{Topic: 1, Queue: q, Offset: 7}, []byte("v"))
	}
	_, ok := tail.next(1, 0)
	assert.That(t, !ok, "the next offset is known with %d queues", fewQueues+1)
	if _, ok := newTail().next(1, 0); ok {
		t.Error("the next offset of an idle queue is known")
	}
}
