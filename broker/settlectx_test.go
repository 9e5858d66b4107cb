package broker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A standingFS blocks each fsync of a log while it is held.
type standingFS struct {
	vfs.FS
	mu    sync.Mutex
	stand chan struct{} // guarded by mu; nil: it goes
}

func (fs *standingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return standingFile{f, fs}, nil
}

type standingFile struct {
	vfs.File
	fs *standingFS
}

func (f standingFile) wait() {
	f.fs.mu.Lock()
	stand := f.fs.stand
	f.fs.mu.Unlock()
	if stand != nil {
		<-stand
	}
}

func (f standingFile) Sync() error {
	f.wait()
	return f.File.Sync()
}

func (f standingFile) SyncData() error {
	f.wait()
	return f.File.SyncData()
}

func (f standingFile) SyncTo(n int64) (bool, error) {
	f.wait()
	return f.File.SyncTo(n)
}

var errImpatient = errors.New("impatient")

// The contract of Transport: a call ends with its ctx, although the disk does not respond. Its
// effect happens later, as MaybeStored announces.
func TestSettlementsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	settles := map[string]func(*broker.Broker, context.Context, *tidegate.Delivery) error{
		"Ack": func(b *broker.Broker, ctx context.Context, d *tidegate.Delivery) error {
			return b.Ack(ctx, []*tidegate.Delivery{d})[0]
		},
		"Extend": func(b *broker.Broker, ctx context.Context, d *tidegate.Delivery) error {
			h, err := b.Extend(ctx, d, time.Hour, false)
			if err != nil && h != "" {
				return errors.New("a handle beside an error")
			}
			return err
		},
	}
	for _, k := range []transport.VerdictKind{transport.Release, transport.Retry, transport.DeadLetter, transport.Snooze, transport.RetryTopic, transport.NegativeAck} {
		settles[k.String()] = func(b *broker.Broker, ctx context.Context, d *tidegate.Delivery) error {
			v := transport.Verdict{Kind: k, Delay: time.Hour}
			if k == transport.Release || k == transport.DeadLetter {
				v.Delay = 0
			}
			return second(b.Settle(ctx, d, v))
		}
	}
	for name, settle := range settles {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := &standingFS{FS: vfs.NewMem()}
				b := open(t, broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs))
				putTopic(t, b, "t", settings.Topic{Queues: 1})
				putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: name == transport.RetryTopic.String()}})
				mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
				ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Minute})
				if err != nil || len(ds) != 1 {
					t.Fatal(ds, err)
				}

				dead, cancel := context.WithCancelCause(t.Context())
				cancel(errImpatient)
				var e *tidegate.Error
				if err := settle(b, dead, ds[0]); !errors.Is(err, errImpatient) || !errors.As(err, &e) || e.MaybeStored {
					t.Errorf("with a dead context: %v, want its cause, and that nothing is done", err)
				}

				fs.mu.Lock()
				fs.stand = make(chan struct{})
				fs.mu.Unlock()
				start := time.Now()
				ctx, cancelLate := context.WithTimeoutCause(t.Context(), 3*time.Second, errImpatient)
				defer cancelLate()
				err = settle(b, ctx, ds[0])
				if d := time.Since(start); d != 3*time.Second {
					t.Errorf("returned after %v, want 3s", d)
				}
				if !errors.Is(err, errImpatient) || !errors.As(err, &e) || !e.MaybeStored {
					t.Errorf("%v, want the cause of the context, and that it may be done", err)
				}
				close(fs.stand)
				fs.mu.Lock()
				fs.stand = nil
				fs.mu.Unlock()
				synctest.Wait()
				if err := b.Ack(t.Context(), ds)[0]; !errors.Is(err, tidegate.ErrInvalidHandle) {
					t.Errorf("acknowledged afterwards: %v, want ErrInvalidHandle: it was settled", err)
				}
				if retries := sent(t, b, "t-g-RETRY"); (retries == 1) != (name == "ReconsumeLater") { // it is due by now
					t.Errorf("%d retries", retries)
				}
				if letters := sent(t, b, tidegate.DeadLetterTopic("g")); (letters == 1) != (name == "DeadLetter") {
					t.Errorf("%d dead letters", letters)
				}
			})
		})
	}
}
