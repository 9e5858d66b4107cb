package store

import (
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// After a crash, Open fails for one wrong bit anywhere in the synced part of the message log,
// except in the last blocks, which have no later chunk to check them.
func TestWrongBitInTheSyncedLogIsRejected(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s, err := Open(Options{Dir: "data", FS: fs, Logger: slog.New(slog.DiscardHandler), CacheBytes: 1 << 20, MemTableBytes: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(30) { // each of several blocks, with one fsync
		m := sampleMessage()
		m.Body = make([]byte, 100_000)
		if err := s.Messages.Add(func(b *Batch) { b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &m) }, nil).Wait(); err != nil {
			t.Fatal(err)
		}
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	log := ""
	var data []byte
	for _, name := range list(t, crashed, "data/messages") {
		if !strings.HasSuffix(name, ".log") {
			continue
		}
		d, err := crashed.UnsafeGetFileDataBuffer("data/messages/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if len(d) > len(data) {
			log, data = name, d
		}
	}
	const batch = 110_000 // the last one, which nothing was written after
	if len(data) < 1_000_000 {
		t.Fatalf("the log has %d bytes", len(data))
	}
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
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
