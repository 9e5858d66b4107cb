package endtoend

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
)

// topicsMessages is the number of messages of a round of BenchmarkTopicsSDK and BenchmarkSecureSDK.
// A round takes seconds, so each contains collections of garbage and compactions of the broker.
const topicsMessages = 100_000

// BenchmarkTopicsSDK sends messages of 1 KiB to 100 and to 1 000 topics in turn, with SendAsync
// from one goroutine and with Send from 256, to a broker on disk. one/ratio is the rate divided by
// that of one topic in the same run.
func BenchmarkTopicsSDK(b *testing.B) {
	for _, topics := range []int{100, 1000} {
		for name, send := range map[string]func(*testing.B, *producer.Producer, int) round{"async": asyncTo, "callers=256": callersTo256} {
			b.Run(fmt.Sprintf("topics=%d/%s", topics, name), func(b *testing.B) {
				p := benchProducer(b, serveTopics(b, topics))
				alternate(b, send(b, p, topics), map[string]round{"one": send(b, p, 1)})
			})
		}
	}
}

// BenchmarkPushTopicsSDK consumes messages of 1 KiB of 100 and of 1 000 topics with one push
// consumer, 64 workers and a handler that does nothing, from a broker on disk, until every
// acknowledgement is on disk. one/ratio is the rate divided by that of one topic in the same run;
// the rates count from the first acknowledgement. start-ms is the time until then.
func BenchmarkPushTopicsSDK(b *testing.B) {
	for _, topics := range []int{100, 1000} {
		b.Run(fmt.Sprintf("topics=%d", topics), func(b *testing.B) {
			const messages, workers = 128 << 10, 64
			address := serveTopics(b, topics+1)
			loads := map[string][]string{"all": names(topics), "one": {fmt.Sprintf("t%d", topics)}}
			took, begin := map[string]time.Duration{}, map[string]time.Duration{}
			var receives int64
			for b.Loop() {
				for name, to := range loads {
					c := newCountingClient(b, address)
					c.fill(b, messages, to, 0)
					d, steady := c.consume(b, messages, workers, consumer.Subscription{Group: "g-" + name, Topics: all(to)})
					if name == "all" {
						receives += c.receives.Load()
					}
					took[name], begin[name] = took[name]+steady, begin[name]+d-steady
				}
			}
			b.ReportMetric(float64(b.N*messages)/took["all"].Seconds(), "msg/s")
			b.ReportMetric(took["one"].Seconds()/took["all"].Seconds(), "one/ratio")
			b.ReportMetric(float64(b.N*messages)/float64(receives), "msg/receive")
			b.ReportMetric(float64(begin["all"].Milliseconds())/float64(b.N), "start-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// all is a subscription to topics without filters.
func all(topics []string) map[string]tidegate.Filter {
	m := map[string]tidegate.Filter{}
	for _, t := range topics {
		m[t] = tidegate.Filter{}
	}
	return m
}

// serveTopics serves a broker on disk with the topics t0, t1 and so on.
func serveTopics(b *testing.B, n int) string {
	engine := assert.Value(broker.Open(broker.Options{Dir: b.TempDir()}))(b)
	b.Cleanup(func() { engine.Close() })
	for i := range n {
		assert.Must(b, assert.Err(engine.PutTopic(b.Context(), fmt.Sprintf("t%d", i), settings.Topic{})))
	}
	lis := listenTCP(b)
	s := assert.Value(server.New(engine, server.Options{Advertise: lis.Addr().String()}))(b)
	go s.Serve(lis)
	b.Cleanup(func() { s.Close() })
	return lis.Addr().String()
}

func names(topics int) []string {
	list := make([]string, topics)
	for i := range list {
		list[i] = fmt.Sprintf("t%d", i)
	}
	return list
}

func asyncTo(b *testing.B, p *producer.Producer, topics int) round {
	const n = topicsMessages
	to, body := names(topics), make([]byte, 1024)
	return func() (int, time.Duration) {
		start := time.Now()
		for i := range n {
			assert.Must(b, p.SendAsync(b.Context(), &tidegate.Message{Topic: to[i%topics], Body: body}, func(_ tidegate.Receipt, err error) {
				assert.NoError(b, err)
			}))
		}
		assert.Must(b, p.Flush(b.Context()))
		return n, time.Since(start)
	}
}

func callersTo256(b *testing.B, p *producer.Producer, topics int) round {
	return callersTo(b, p, 256, topics)
}

func callersTo(b *testing.B, p *producer.Producer, callers, topics int) round {
	const n = topicsMessages
	to, body := names(topics), make([]byte, 1024)
	var next atomic.Int64
	return func() (int, time.Duration) {
		return n, closedLoops(b, callers, n, func() error {
			_, err := p.Send(b.Context(), &tidegate.Message{Topic: to[int(next.Add(1))%topics], Body: body})
			return err
		})
	}
}
