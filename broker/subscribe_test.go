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
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A retry that is stored before the group looks at its retry topic is not skipped.
func TestStartLatestKeepsRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{Start: settings.StartLatest})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
		mustSend(t, b, &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
		putGroup(t, b, "g", settings.Group{Start: settings.StartLatest, RetryTopic: settings.RetryTopic{Enabled: true}})
		if _, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second}); err != nil {
			t.Fatal(err)
		}
		elapse(time.Minute) // it is in the retry topic, from which no receive has come
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Second})
		if len(ds) != 1 || string(ds[0].Body) != "x" {
			t.Errorf("the retry is not delivered: %+v", ds)
		}
	})
}

// RocketMQ: sending retry and throttling: "a consumer group starts consuming messages from the
// maximum offset of the queue" With Start latest; also if the power fails right after, and not
// among the dead letters.
func TestStartLatest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 3})
		putTopic(t, b, "%DLQ%h", settings.Topic{Queues: 1})
		for i := range 10 {
			mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("x")}, &tidegate.Message{Topic: "%DLQ%h", Body: []byte("x")})
		}
		putGroup(t, b, "g", settings.Group{Start: settings.StartLatest})
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}); len(ds) != 0 {
			t.Errorf("received %d messages that were there before", len(ds))
		}
		if s := subscriptionOf(t, b, "g"); s.Backlog != (status.Backlog{}) || s.Ready != 0 {
			t.Errorf("the group begins with %+v", s)
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: rand.New(rand.NewPCG(1, 2))})
		b = open(t, broker.Options{Dir: "data"}.On(crashed))
		mustSend(t, b, &tidegate.Message{ID: "next", Topic: "t", Body: []byte("x")})
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second})
		if len(ds) != 1 || ds[0].ID != "next" {
			t.Errorf("after the power failure it receives %d messages: %+v", len(ds), ds)
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "%DLQ%h", Max: 32}); len(ds) != 10 {
			t.Errorf("%d dead letters, want 10", len(ds))
		}
	})
}
