package broker_test

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// limited returns a broker with a topic and group that have every limit, of
// which a backlog of most messages is the one that is reached.
func limited(tb testing.TB, most int64) (*broker.Broker, *topic.Topic) {
	b := open(tb, broker.Options{Pressure: settings.Pressure{MaxColdReads: 1 << 40}})
	all := settings.Limit{Messages: most, Bytes: 1 << 40, Age: settings.Duration(time.Hour)}
	putTopic(tb, b, "t", settings.Topic{MaxBacklog: all, MaxRate: settings.Rate{MessagesPerSecond: 1e9, BytesPerSecond: 1e12}})
	putGroup(tb, b, "g", settings.Group{MaxBacklog: settings.Limit{Messages: 1 << 40, Bytes: 1 << 40, Age: settings.Duration(time.Hour)}})
	if _, err := b.Receive(tb.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute}); err != nil {
		tb.Fatal(err)
	}
	mustSend(tb, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
	return b, b.Parts().Catalog.FindTopic("t")
}

// The decision on an accepted message allocates no memory, for any number of limits.
func TestThrottlingAllocatesNothing(t *testing.T) {
	b, topic := limited(t, 1000)
	if n := testing.AllocsPerRun(100, func() {
		now := time.Now()
		b.Parts().Limits.Observe(topic, now)
		if th := b.Parts().Limits.Check(topic, now, &limits.Sender{Client: "client", Size: 100}); th != nil {
			t.Fatalf("refused by %v", th)
		}
	}); n != 0 {
		t.Errorf("%g allocations, want 0", n)
	}
}

// BenchmarkThrottle decides on single messages: taken without a limit, taken
// with all limits, and refused.
func BenchmarkThrottle(b *testing.B) {
	free := open(b, broker.Options{})
	putTopic(b, free, "t", settings.Topic{})
	run := func(name string, br *broker.Broker, t *topic.Topic, refused bool) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				now := time.Now()
				br.Parts().Limits.Observe(t, now)
				if th := br.Parts().Limits.Check(t, now, &limits.Sender{Client: "client", Size: 100}); (th != nil) != refused {
					b.Fatalf("%+v", th)
				}
			}
		})
	}
	run("no limits", free, free.Parts().Catalog.FindTopic("t"), false)
	br, t := limited(b, 1000)
	run("limits", br, t, false)
	br, t = limited(b, 1)
	run("refused", br, t, true)
}
