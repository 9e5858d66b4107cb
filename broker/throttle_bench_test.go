package broker_test

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// limited returns the limits of a broker, and a topic with a group that have every limit. The one
// that is reached is a backlog of most messages.
func limited(tb testing.TB, most int64) (*engine.Limits, *engine.Topic) {
	b := open(tb, broker.Options{Pressure: settings.Pressure{MaxColdReads: 1 << 40}})
	all := settings.Limit{Messages: most, Bytes: 1 << 40, Age: settings.Duration(time.Hour)}
	putTopic(tb, b, "t", settings.Topic{MaxBacklog: all, MaxRate: settings.Rate{MessagesPerSecond: 1e9, BytesPerSecond: 1e12}})
	putGroup(tb, b, "g", settings.Group{MaxBacklog: settings.Limit{Messages: 1 << 40, Bytes: 1 << 40, Age: settings.Duration(time.Hour)}})
	if _, err := b.Receive(tb.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute}); err != nil {
		tb.Fatal(err)
	}
	mustSend(tb, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
	return b.Engine().Parts().Limits, topicOf(tb, b, "t")
}

// The decision on an accepted message allocates no memory, for any number of limits.
func TestThrottlingAllocatesNothing(t *testing.T) {
	l, topic := limited(t, 1000)
	if n := testing.AllocsPerRun(100, func() {
		now := time.Now()
		l.Observe(topic, now)
		if th := l.Check(topic, now, &engine.Sender{Client: "client", Size: 100}); th != nil {
			t.Fatalf("rejected by %v", th)
		}
	}); n != 0 {
		t.Errorf("%g allocations, want 0", n)
	}
}

// BenchmarkThrottle decides on single messages: taken without a limit, taken
// with all limits, and rejected.
func BenchmarkThrottle(b *testing.B) {
	free := open(b, broker.Options{})
	putTopic(b, free, "t", settings.Topic{})
	run := func(name string, l *engine.Limits, t *engine.Topic, rejected bool) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				now := time.Now()
				l.Observe(t, now)
				if th := l.Check(t, now, &engine.Sender{Client: "client", Size: 100}); (th != nil) != rejected {
					b.Fatalf("%+v", th)
				}
			}
		})
	}
	run("no limits", free.Engine().Parts().Limits, topicOf(b, free, "t"), false)
	l, t := limited(b, 1000)
	run("limits", l, t, false)
	l, t = limited(b, 1)
	run("rejected", l, t, true)
}
