package broker_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/catalog"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// freedBytes returns the removed bytes whose disk space was not returned yet.
func freedBytes(b *broker.Broker) int64 {
	return b.Parts().Retention.Freed().Bytes()
}

// The space of single messages that were kept and then removed can be returned.
func TestDiskOfKeptMessagesIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Minute)}})
		sendN(t, b, "t", 2, 100)
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 1, InvisibleDuration: time.Hour})
		elapse(2 * time.Minute)
		if n := stored(t, b, "t"); n != 1 {
			t.Fatalf("%d messages are kept", n)
		}
		b.Parts().Retention.Freed().Add(store.Range{Topic: 9, Queue: 0, From: 0, To: 1}, retention.ReclaimBytes-200)
		if err := b.Ack(t.Context(), d)[0]; err != nil {
			t.Fatal(err)
		}
		elapse(5 * time.Second)
		if n := freedBytes(b); n != 0 {
			t.Errorf("%d bytes are left to be reclaimed", n)
		}
	})
}

// An automatic queue that is about to be deleted is created explicitly: it stays.
func TestPutKeepsAnAutomaticQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		tp, err := b.Parts().Catalog.OwnTopic(t.Context(), "DLQ.t", settings.Topic{Queues: 1}, true)
		if err != nil {
			t.Fatal(err)
		}
		sendN(t, b, "DLQ.t", 2, 100)
		ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "DLQ.t", Max: 2}))
		if err := b.Parts().Catalog.LockAdmin(t.Context()); err != nil {
			t.Fatal(err)
		}
		elapse(catalog.AutoDeleteDelay)
		// The broker has found that the queue is not in use.
		if _, err := b.Parts().Catalog.PutTopicLocked("DLQ.t", settings.Topic{}, false); err != nil {
			t.Fatal(err)
		}
		b.Parts().Catalog.UnlockAdmin()
		synctest.Wait()
		if got, err := b.Parts().Catalog.Topic("DLQ.t"); got != tp || err != nil {
			t.Fatalf("the queue is gone: %v", err)
		}
		tp.SetAutomatic(true)
		if deleted, err := b.Parts().Catalog.DeleteUnused(tp); !deleted || err != nil {
			t.Errorf("a message that does not exist: %t, %v", deleted, err)
		}
		if n := freedBytes(b); n != 200 {
			t.Errorf("%d bytes can be reclaimed once it is deleted, want 200", n)
		}
	})
}

// The disk space of half messages that a purge removes is returned.
func TestDiskOfHalfMessagesIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const mb = 1 << 20
		dir := t.TempDir()
		b := open(t, broker.Options{Dir: dir}.MemTable(1<<20))
		b.Parts().Retention.Freed().Add(store.Range{Topic: 9, Queue: 0, From: 0, To: 1}, retention.ReclaimBytes-8*mb) // as if so much had been removed before
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		noise := rand.NewChaCha8([32]byte{}) // the written data is compressed
		for i := range 12 {
			body := make([]byte, mb)
			_, _ = noise.Read(body)
			if r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: body}, time.Hour); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		before := sizeOf(t, dir)
		if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed.Bytes != 12*mb {
			t.Errorf("removed %+v, %v", removed, err)
		}
		elapse(time.Minute)
		after := sizeOf(t, dir)
		t.Logf("%d KiB before, %d after", before>>10, after>>10)
		if before < 10*mb || after > 2*mb || freedBytes(b) != 0 {
			t.Errorf("%d bytes on disk before, %d after", before, after)
		}
	})
}

// Disk space that becomes free while other space is returned is returned after it.
func TestReclaimGoesOnWithWhatCameMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := &stallingFS{FS: vfs.NewMem()}
		b := open(t, broker.Options{Dir: "data", Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs))
		fs.hold(true)
		for _, name := range []string{"a", "b"} {
			putTopic(t, b, name, settings.Topic{Queues: 1})
			sendN(t, b, name, 2, 100)
			b.Parts().Retention.Freed().Add(store.Range{Topic: 9, Queue: 0, From: 0, To: 1}, retention.ReclaimBytes)
			if err := b.DeleteTopic(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			elapse(time.Second)
			if n := freedBytes(b); (n == 0) != (name == "a") { // the first reclaim has not ended
				t.Fatalf("after topic %s, %d bytes wait", name, n)
			}
		}
		fs.hold(false)
		elapse(time.Second)
		if n := freedBytes(b); n != 0 {
			t.Errorf("%d bytes are left to be reclaimed", n)
		}
	})
}

// A delayed message is on time while the return of disk space takes an hour.
func TestReclaimDelaysNoDueMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := &stallingFS{FS: vfs.NewMem()}
		b := open(t, broker.Options{Dir: "data", Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs))
		putTopic(t, b, "d", settings.Topic{Type: settings.TopicDelay, Queues: 1})
		mustSend(t, b, &tidegate.Message{ID: "a", Topic: "d", Body: []byte("x"), DeliverAt: time.Now().Add(time.Minute)})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		sendN(t, b, "t", 2, 100)
		fs.hold(true)
		b.Parts().Retention.Freed().Add(store.Range{Topic: 9, Queue: 0, From: 0, To: 1}, retention.ReclaimBytes)
		if err := b.DeleteTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		elapse(time.Minute)
		if n := stored(t, b, "d"); n != 1 {
			t.Errorf("%d messages are delivered after a minute, want 1", n)
		}
		fs.hold(false)
	})
}

// Topics that are created and deleted repeatedly leave little behind: an empty topic leaves no
// record, any other topic its number, until there are many.
func TestDeletedTopicsLeaveLittle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		for i := range uint32(retention.ReclaimTopics - 5) {
			b.Parts().Retention.Freed().AddDeleted(1<<31+i, 0, true, 0)
		}
		for i := range 20 {
			putTopic(t, b, "t", settings.Topic{Queues: 16, DuplicateWindow: -1})
			if i%2 == 0 {
				sendN(t, b, "t", 3, 10)
			}
			if i%4 == 0 {
				if _, err := b.PurgeTopic(t.Context(), "t"); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.DeleteTopic(t.Context(), "t"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if ranges, topics := b.Parts().Retention.Freed().Remembered(); ranges > 0 || topics > retention.ReclaimTopics {
				t.Fatalf("%d ranges and %d topics are remembered", ranges, topics)
			}
		}
		if _, topics := b.Parts().Retention.Freed().Remembered(); topics != 5 || freedBytes(b) > 1000 {
			t.Errorf("%d topics with %d bytes are remembered, want the last 5", topics, freedBytes(b))
		}
	})
}
