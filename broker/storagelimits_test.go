package broker_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
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

// Sends are rejected before the disk is full. Stored messages can still be consumed, and once there
// is space sends are accepted without a restart.
//
// RocketMQ: sending retry and throttling: "When the system capacity usage exceeds the threshold, a
// Apache RocketMQ broker rejects requests and returns an error to avoid over-burdening the
// underlying resources"
func TestFreeDiskThrottlesSends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const gib = 1 << 30
		fs := vfs.NewMem()
		free := func(n uint64) {
			fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: n, TotalBytes: 100 * gib, UsedBytes: 100*gib - n})
		}
		free(2 * gib)
		b := open(t, broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, protocol.DeadLetterPrefix+"x", settings.Topic{Queues: 1})
		send := func(topic string) error {
			return send(t, b, &tidegate.Message{Topic: topic, Body: []byte("x")})[0].Err
		}
		for range 10 {
			if err := send("t"); err != nil {
				t.Fatal(err)
			}
		}
		free(gib / 2)
		time.Sleep(time.Second)
		for _, topic := range []string{"t", protocol.DeadLetterPrefix + "x"} {
			err := send(topic)
			if !errors.Is(err, tidegate.ErrThrottled) {
				t.Fatalf("with half a GiB free: %v", err)
			}
			for _, w := range []string{"530 TOO_MANY_REQUESTS", "free disk is 536870912", "the limit is 1073741824", "again at 1342177280", "no restart"} {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the text does not contain %q: %v", w, err)
				}
			}
		}
		if d, err := b.Topic("t"); err != nil || d.Throttle == nil || d.Throttle.Limit != "free disk" {
			t.Errorf("the topic reports %+v, %v", d.Throttle, err)
		}
		if n := serve(b).Stats().Throttled["free disk"]; n != 2 {
			t.Errorf("%d are counted", n)
		}
		// All of consumption works.
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 10, InvisibleDuration: time.Minute, Push: true})
		if len(ds) != 10 {
			t.Fatalf("%d received", len(ds))
		}
		_, err := b.Settle(t.Context(), ds[1], transport.Verdict{Kind: transport.Retry, Delay: time.Second})
		if err := errors.Join(err, second(b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "no"})), errors.Join(b.Ack(t.Context(), ds[2:])...)); err != nil {
			t.Error(err)
		}
		free(5 * gib / 4)
		time.Sleep(time.Second)
		if err := send("t"); err != nil {
			t.Errorf("once there is space: %v", err)
		}
		// It is changed while in use, and looked at when much is written.
		free(3 * gib)
		l := b.Limits()
		l.Pressure.MinFreeDisk = 4 * gib
		if err := b.SetLimits(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		if err := send("t"); !errors.Is(err, tidegate.ErrThrottled) {
			t.Errorf("with a limit of 4 GiB: %v", err)
		}
		l.Pressure.MinFreeDisk = -1
		if err := b.SetLimits(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		if err := send("t"); err != nil {
			t.Errorf("without a limit: %v", err)
		}
		l.Pressure.MinFreeDisk = gib
		if err := b.SetLimits(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		free(0)
		refused := false
		for range 40 { // no time passes
			refused = refused || send0(t, b, 1<<20) != nil
		}
		if !refused {
			t.Error("40 MiB are written at once without a look at the disk")
		}
	})
}

func send0(t *testing.T, b *broker.Broker, size int) error {
	return send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, size)})[0].Err
}

// A stallingFS does not get tables written while it is held.
type stallingFS struct {
	vfs.FS
	mu   sync.Mutex
	held chan struct{} // guarded by mu; nil: it does not hold
}

func (fs *stallingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	fs.mu.Lock()
	held := fs.held
	fs.mu.Unlock()
	if held != nil && (strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")) {
		<-held
	}
	return fs.FS.Create(name, c)
}

func (fs *stallingFS) hold(on bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.held != nil {
		close(fs.held)
		fs.held = nil
	}
	if on {
		fs.held = make(chan struct{})
	}
}

// A store that cannot flush blocks writes. The broker rejects sends after a while instead of
// letting them wait, and accepts sends again once the store flushes.
//
// RocketMQ: sending retry and throttling: "When the system capacity usage exceeds the threshold, a
// Apache RocketMQ broker rejects requests and returns an error to avoid over-burdening the
// underlying resources"
func TestWriteStallThrottlesSends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := &stallingFS{FS: vfs.NewMem()}
		b := open(t, broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}) // a group's first receive is written to the message log
		fs.hold(true)
		done := make(chan error, 1000)
		sent := 0
		for ; !stalled(b) && sent < 500; sent++ {
			go func() { done <- send0(t, b, 1<<20) }()
			synctest.Wait()
		}
		if sent == 500 {
			t.Fatal("500 MiB do not stall it")
		}
		time.Sleep(2 * time.Second)
		err := send0(t, b, 1)
		if !errors.Is(err, tidegate.ErrThrottled) || !strings.Contains(err.Error(), "write stall is 2s, the limit is 1s") {
			t.Errorf("after 2 s: %v", err)
		}
		ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, Max: 1, InvisibleDuration: time.Minute})
		if err != nil || len(ds) != 1 {
			t.Errorf("receiving: %d, %v", len(ds), err)
		}
		fs.hold(false)
		for range sent {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(20 * time.Millisecond)
		if err := send0(t, b, 1); err != nil {
			t.Errorf("once the store continues: %v", err)
		}
	})
}

// A broker in memory has no limits of the disk.
func TestNoPressureInMemory(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{Pressure: settings.Pressure{MinFreeDisk: 1 << 60}})
	putTopic(t, b, "t", settings.Topic{})
	mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
	if ths := b.Throttles(); len(ths) != 0 {
		t.Errorf("limits: %+v", ths)
	}
}

// A disk of 200 MB with the default settings accepts sends. If less than an eighth of it is free,
// the log at the start names the limit and the setting.
func TestSmallDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		free := func(n uint64) {
			fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: n, TotalBytes: 200e6, UsedBytes: 200e6 - n})
		}
		free(120e6)
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}

		free(24e6)
		var log strings.Builder
		b = open(t, broker.Options{Dir: "data", Logger: slog.New(slog.NewTextHandler(&log, nil))}.On(fs))
		for _, w := range []string{"all sends throttled", "free disk", "value=24000000", "mark=25000000", "min_free_disk_bytes"} {
			if !strings.Contains(log.String(), w) {
				t.Errorf("the log does not contain %q: %s", w, log.String())
			}
		}
		if err := send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0].Err; !errors.Is(err, tidegate.ErrThrottled) {
			t.Errorf("with 24 MB free: %v", err)
		}
		free(40e6)
		time.Sleep(time.Second)
		if err := send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0].Err; err != nil {
			t.Errorf("with 40 MB free: %v", err)
		}
	})
}
