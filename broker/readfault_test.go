package broker_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
)

// A readFaultFS fails a number of reads of tables.
type readFaultFS struct {
	vfs.FS
	left, failed atomic.Int64
}

func (fs *readFaultFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.Open(name, opts...)
	if err != nil || !strings.HasSuffix(name, ".sst") {
		return f, err
	}
	return readFaultFile{f, fs}, nil
}

type readFaultFile struct {
	vfs.File
	fs *readFaultFS
}

func (f readFaultFile) ReadAt(p []byte, off int64) (int, error) {
	if f.fs.left.Add(-1) >= 0 {
		f.fs.failed.Add(1)
		return 0, syscall.EIO
	}
	return f.File.ReadAt(p, off)
}

// A read that fails once, behind delayed messages that are moved, delays the other messages by a
// second at most.
func TestReadErrorAmongDelayedMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := &readFaultFS{FS: vfs.NewMem()}
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, DuplicateWindow: -1})
		const n = 250 // in several blocks of a table, and one look
		at := time.Now().Add(time.Hour)
		for i := range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: fmt.Appendf(nil, "%0120d", i), DeliverAt: at.Add(time.Duration(i))})
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, broker.Options{Dir: "data"}.On(fs)) // which reads the first block
		fs.left.Store(1)
		<-time.After(time.Hour + 2*time.Second)
		synctest.Wait()
		if fs.failed.Load() != 1 {
			t.Fatalf("%d reads failed, want 1", fs.failed.Load())
		}
		if got := len(receiveAll(t, b, "t")); got != n {
			t.Errorf("%d of %d messages arrived", got, n)
		}
	})
}
