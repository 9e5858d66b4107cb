package broker_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// A slowGroupsFS takes an hour for an fsync of the groups' log while it is slow.
type slowGroupsFS struct {
	vfs.FS
	slow atomic.Bool
}

func (fs *slowGroupsFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	if err != nil || !strings.HasPrefix(name, "data/groups/") || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return slowGroupsFile{f, fs}, nil
}

type slowGroupsFile struct {
	vfs.File
	fs *slowGroupsFS
}

func (f slowGroupsFile) SyncData() error {
	if f.fs.slow.Load() {
		<-time.After(time.Hour)
	}
	return f.File.SyncData()
}

// A dead letter is written once the lease of its message is on disk. Otherwise a power failure in
// between would leave the dead letter of a message that was never delivered.
func TestDeadLetterWaitsForTheLeasesFsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &slowGroupsFS{FS: vfs.NewMem()}
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		letters := protocol.DeadLetterPrefix + "g"
		putTopic(t, b, letters, settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}) // the group is on disk
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("y")})
		<-time.After(time.Second)
		fs.slow.Store(true)
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 2 * time.Hour})
		if len(ds) != 1 {
			t.Fatalf("received %d messages", len(ds))
		}
		done := make(chan error)
		go func() { done <- second(b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter})) }()
		stored := func() int64 {
			info, err := b.Topic(letters)
			if err != nil {
				t.Fatal(err)
			}
			return info.StoredMessages
		}
		<-time.After(time.Minute)
		if n := stored(); n != 0 {
			t.Errorf("%d dead letters before the lease is on disk", n)
		}
		fs.slow.Store(false)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if n := stored(); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
	})
}
