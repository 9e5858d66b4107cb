package broker_test

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// sizeOf returns the bytes of all files in a directory but write-ahead logs,
// which are used again and have a size of their own.
func sizeOf(tb testing.TB, dir string) (size int64) {
	tb.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) == ".log" {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // Pebble removes unneeded files in the background
		}
		if err != nil {
			return err
		}
		size += info.Size()
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
	return size
}

// fill sends n times 16 messages of 32 KiB to each of the topics in turn.
func fillTopic(tb testing.TB, b *broker.Broker, n int, topics ...string) {
	tb.Helper()
	noise := rand.NewChaCha8([32]byte{}) // the written data is compressed
	for range n {
		for _, topic := range topics {
			msgs := make([]*tidegate.Message, 16)
			for j := range msgs {
				body := make([]byte, 32<<10)
				_, _ = noise.Read(body)
				msgs[j] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: topic, Body: body}
			}
			mustSend(tb, b, msgs...)
		}
	}
}

// Messages of two topics share files. Once those of one are gone, the files are written again
// without them.
func TestSharedDiskIsReclaimed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const mb = 1 << 20
		dir := t.TempDir()
		b := open(t, broker.Options{Dir: dir}.MemTable(1<<20))
		putTopic(t, b, "t", settings.Topic{})
		putTopic(t, b, "other", settings.Topic{})
		fillTopic(t, b, 10, "t", "t", "other") // 10 and 5 MiB
		nearReclaim(b, 8*mb)
		before := sizeOf(t, dir)
		if _, err := b.PurgeTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		elapse(time.Minute)
		after := sizeOf(t, dir)
		t.Logf("%d KiB before, %d after", before>>10, after>>10)
		if before < 10*mb || after > 5*mb*8/5 {
			t.Errorf("%d bytes on disk before, %d after", before, after)
		}
		if n := len(receiveAll(t, b, "other")); n != 10*16 {
			t.Errorf("%d messages of the other topic, want %d", n, 10*16)
		}
	})
}

// Each removal of messages returns disk space. Messages that share files with removed ones stay.
func TestDiskIsReclaimed(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	for name, remove := range map[string]func(*testing.T, *broker.Broker){
		"consumed": func(t *testing.T, b *broker.Broker) {
			putTopic(t, b, "t", settings.Topic{DuplicateWindow: -1, Retention: settings.Retention{Consumed: true}})
			for {
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32})
				if len(ds) == 0 {
					break
				}
				b.Ack(t.Context(), ds)
			}
		},
		"time": func(t *testing.T, b *broker.Broker) {
			putTopic(t, b, "t", settings.Topic{DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(30 * time.Second)}})
		},
		"bytes": func(t *testing.T, b *broker.Broker) {
			putTopic(t, b, "t", settings.Topic{DuplicateWindow: -1, Retention: settings.Retention{Bytes: 1 << 20}})
		},
		"purge": func(t *testing.T, b *broker.Broker) {
			if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed != (status.Backlog{Messages: 320, Bytes: 10 * mb}) {
				t.Errorf("removed %+v, %v", removed, err)
			}
		},
		"deletion": func(t *testing.T, b *broker.Broker) {
			if err := b.DeleteTopic(t.Context(), "t"); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				b := open(t, broker.Options{Dir: dir}.MemTable(1<<20))
				putTopic(t, b, "t", settings.Topic{})
				putTopic(t, b, "other", settings.Topic{Retention: settings.Retention{Time: -1}})
				fillTopic(t, b, 16, "t")
				fillTopic(t, b, 4, "t", "other")
				if name == "purge" { // exactly the settings above
					if _, err := b.PurgeTopic(t.Context(), "other"); err != nil {
						t.Fatal(err)
					}
					fillTopic(t, b, 4, "other")
				}
				nearReclaim(b, 8*mb)
				before := sizeOf(t, dir)
				remove(t, b)
				elapse(time.Minute)
				after, st := sizeOf(t, dir), serve(b).Stats().MessageStore
				t.Logf("%d KiB before, %d after; with the logs %d", before>>10, after>>10, st.Disk>>10)
				if before < 8*mb || after > 5*mb || st.Disk > 12*mb {
					t.Errorf("%d bytes on disk before, %d after; Pebble reports %d", before, after, st.Disk)
				}
				if n := len(receiveAll(t, b, "other")); n != 64 {
					t.Errorf("%d messages of another topic, want 64", n)
				}
			})
		})
	}
}
