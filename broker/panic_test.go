package broker_test

import (
	"bytes"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A panicFS panics in reads of tables and of the files of values, once it is on and only within
// panics: a panic in the broker's own goroutines would end the process.
type panicFS struct {
	vfs.FS
	on atomic.Bool
}

func (fs *panicFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.Open(name, opts...)
	if err != nil || !strings.HasSuffix(name, ".sst") && !strings.HasSuffix(name, ".blob") {
		return f, err
	}
	return panicFile{f, fs}, nil
}

type panicFile struct {
	vfs.File
	fs *panicFS
}

func (f panicFile) ReadAt(p []byte, off int64) (int, error) {
	if f.fs.on.Load() && bytes.Contains(debug.Stack(), []byte("broker_test.panics(")) {
		panic("a bug")
	}
	return f.File.ReadAt(p, off)
}

// panics calls f and returns the value of its panic, as a caller that recovers does.
func panics(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

// A panic in the middle of a call reaches the caller unchanged. A caller that recovers finds a
// broker that rejects all calls with the reason, ends the waiting receives, and closes.
func TestPanicBreaksTheBroker(t *testing.T) {
	for _, call := range []string{"receive", "rewind"} {
		t.Run(call, func(t *testing.T) {
			fs := &panicFS{FS: vfs.NewMem()}
			o := broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs)
			b, err := broker.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			putTopic(t, b, "empty", settings.Topic{Queues: 1})
			putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
			for range 10 {
				mustSend(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 40_000)})
			}
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, InvisibleDuration: time.Hour})
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			if b, err = broker.Open(o); err != nil {
				t.Fatal(err)
			}
			poll := func(topic string, wait time.Duration) error {
				_, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: topic, Queue: -1, InvisibleDuration: time.Minute, Wait: wait})
				return err
			}
			waiting := make(chan error)
			go func() { waiting <- poll("empty", time.Hour) }()
			fs.on.Store(true)
			v := panics(func() {
				switch call {
				case "receive":
					_ = poll("t", 0)
				case "rewind":
					_, _ = b.Rewind(t.Context(), "g", "t", status.Position{Time: time.Now()})
				}
			})
			if v != "a bug" {
				t.Errorf("the caller got %v", v)
			}
			for name, err := range map[string]error{
				"waiting receive": <-waiting,
				"receive":         poll("t", 0),
				"send":            b.Send(t.Context(), []*tidegate.Message{{ID: "m", Topic: "t", Body: []byte("x")}})[0].Err,
				"ack":             b.Ack(t.Context(), ds)[0],
				"topic":           b.DeleteTopic(t.Context(), "t"),
				"health":          b.Healthy(),
				"close":           b.Close(),
			} {
				if err == nil || !strings.Contains(err.Error(), "a panic in the broker: a bug") || !strings.Contains(err.Error(), "restart the broker") {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// unable cannot encode anything.
type unable struct{}

func (unable) Prepare([]*tidegate.Delivery) { panic("cannot be encoded") }

// A message that cannot be encoded fails its receive, and becomes a dead letter in the end.
func TestPanicInPrepare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 2})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		poll := func() error {
			_, err := serve(b).Poll(t.Context(), engine.Request{
				ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Minute},
				Encoder:        unable{},
			})
			return err
		}
		for attempt := range 2 {
			if err := poll(); err == nil || !strings.Contains(err.Error(), "cannot be encoded") {
				t.Errorf("attempt %d: %v", attempt+1, err)
			}
			if err := b.Healthy(); err != nil {
				t.Fatal(err)
			}
			<-time.After(2 * time.Minute)
		}
		if err := poll(); err != nil {
			t.Errorf("the receive afterwards: %v", err)
		}
		if n := len(receiveAll(t, b, "%DLQ%g")); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
	})
}

// Closing waits for no function that hands checks to producers, and ends within one.
func TestCloseBesideABlockedCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := broker.Open(broker.Options{})
		if err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		asked, over := make(chan struct{}), make(chan struct{})
		onCheck(b, func(engine.TransactionCheck) bool {
			close(asked)
			<-over
			return true
		})
		if r := serve(b).Append(t.Context(), []engine.Incoming{{Message: &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x")}, Half: true}})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
		<-asked
		start := time.Now()
		if err := b.Close(); err != nil || time.Since(start) > time.Second {
			t.Errorf("closing: %v after %v", err, time.Since(start))
		}
		close(over)
	})
}
