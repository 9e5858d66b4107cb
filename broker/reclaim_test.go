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
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// The space of single messages that were kept and then removed can be returned.
func TestDiskOfKeptMessagesIsReclaimed(t *testing.T) {
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
		nearReclaim(b, 200)
		if err := b.Ack(t.Context(), d)[0]; err != nil {
			t.Fatal(err)
		}
		elapse(5 * time.Second)
		if n := freed(b).Bytes(); n != 0 {
			t.Errorf("%d bytes are left to be reclaimed", n)
		}
	})
}

// The disk space of half messages that a purge removes is returned.
func TestDiskOfHalfMessagesIsReclaimed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const mb = 1 << 20
		dir := t.TempDir()
		b := open(t, broker.Options{Dir: dir}.MemTable(1<<20))
		nearReclaim(b, 8*mb)
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
		if before < 10*mb || after > 2*mb || freed(b).Bytes() != 0 {
			t.Errorf("%d bytes on disk before, %d after", before, after)
		}
	})
}

// Disk space that becomes free while other space is returned is returned after it.
func TestReclaimContinuesWithLaterRemovals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := &stallingFS{FS: vfs.NewMem()}
		b := open(t, broker.Options{Dir: "data", Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs))
		fs.hold(true)
		for _, name := range []string{"a", "b"} {
			putTopic(t, b, name, settings.Topic{Queues: 1})
			sendN(t, b, name, 2, 100)
			nearReclaim(b, 0)
			if err := b.DeleteTopic(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			elapse(time.Second)
			if n := freed(b).Bytes(); (n == 0) != (name == "a") { // the first reclaim has not ended
				t.Fatalf("after topic %s, %d bytes wait", name, n)
			}
		}
		fs.hold(false)
		elapse(time.Second)
		if n := freed(b).Bytes(); n != 0 {
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
		nearReclaim(b, 0)
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
			freed(b).AddDeleted(1<<31+i, 0, true, 0)
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
			if ranges, topics := freed(b).Remembered(); ranges > 0 || topics > retention.ReclaimTopics {
				t.Fatalf("%d ranges and %d topics are remembered", ranges, topics)
			}
		}
		if _, topics := freed(b).Remembered(); topics != 5 || freed(b).Bytes() > 1000 {
			t.Errorf("%d topics with %d bytes are remembered, want the last 5", topics, freed(b).Bytes())
		}
	})
}
