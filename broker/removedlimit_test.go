package broker_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A limit that was removed is forgotten: a new one rejects sends from its own mark on, also if the
// limits were not read meanwhile.
func TestRemovedBacklogLimitIsForgotten(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"topic", "group", "broker"} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			putGroup(t, b, "g", settings.Group{})
			receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
			limit := func(n int64) {
				t.Helper()
				switch l := (settings.Limit{Messages: n}); of {
				case "topic":
					putTopic(t, b, "t", settings.Topic{Queues: 1, MaxBacklog: l})
				case "group":
					putGroup(t, b, "g", settings.Group{MaxBacklog: l})
				default:
					if err := b.SetLimits(t.Context(), settings.Limits{MaxBacklog: l}); err != nil {
						t.Fatal(err)
					}
				}
			}
			send := func(n int) (err error) {
				for range n {
					err = errors.Join(err, send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0].Err)
				}
				return err
			}
			limit(100)
			if err := send(100); err != nil {
				t.Fatal(err)
			}
			if err := send(1); !errors.Is(err, tidegate.ErrThrottled) {
				t.Fatalf("of %s: at the limit: %v", of, err)
			}
			limit(0)
			time.Sleep(time.Second)
			if err := send(800); err != nil {
				t.Fatalf("of %s: without a limit: %v", of, err)
			}
			limit(1000)
			if err := send(100); err != nil {
				t.Errorf("of %s: with 900 of 1000: %v", of, err)
			}
			now := time.Now()
			send(1)
			if d, err := b.Topic("t"); err != nil || d.Throttle == nil || !d.Throttle.Since.Equal(now) {
				t.Errorf("of %s: at the new limit: %+v, %v", of, d.Throttle, err)
			}
		})
	}
}

// The same holds for a limit of cold reads.
func TestRemovedColdLimitIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 1000
		b := open(t, broker.Options{MinInvisibleDuration: 1, Pressure: settings.Pressure{ColdDistance: 100 * size}})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		send := func() error {
			return send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, size)})[0].Err
		}
		limit := func(messages int64) {
			t.Helper()
			if err := b.SetLimits(t.Context(), settings.Limits{Pressure: settings.Pressure{MaxColdReads: messages * size, ColdDistance: 100 * size}}); err != nil {
				t.Fatal(err)
			}
		}
		for range 3000 {
			if err := send(); err != nil {
				t.Fatal(err)
			}
		}
		limit(50)
		for range 1000 / 32 {
			receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Hour})
		}
		if err := send(); !errors.Is(err, tidegate.ErrThrottled) {
			t.Fatalf("a thousand at once: %v", err)
		}
		limit(0)
		if err := send(); err != nil {
			t.Fatalf("without a limit: %v", err)
		}
		// The recent reads are within the new limit, but above the end of a throttle.
		_, rate := subscriptions(b)[0].Cold.Rate(time.Now())
		limit(int64(rate)/size*10/9 + 1)
		if err := send(); err != nil {
			t.Errorf("with a limit that was not reached: %v", err)
		}
	})
}

// A topic reports that it rejects sends while it would do so, also if there are no sends.
func TestTopicReportsFreeSpace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const gib = 1 << 30
		fs := vfs.NewMem()
		free := func(n uint64) {
			fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: n, TotalBytes: 100 * gib, UsedBytes: 100*gib - n})
		}
		free(gib / 2)
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		says := func() string {
			t.Helper()
			d, err := b.Topic("t")
			if err != nil {
				t.Fatal(err)
			}
			s := serve(b).Stats().Topics[0].Throttle
			if (d.Throttle == nil) != (s == nil) {
				t.Errorf("the topic reports %v, the statistics %v", d.Throttle, s)
			}
			if d.Throttle == nil {
				return ""
			}
			return d.Throttle.Limit
		}
		time.Sleep(time.Second)
		if l := says(); l != "free disk" {
			t.Errorf("with half a GiB free: %q", l)
		}
		free(2 * gib)
		time.Sleep(time.Second)
		if l := says(); l != "" {
			t.Errorf("with 2 GiB free: %q", l)
		}
	})
}
