package endtoend

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// BenchmarkIdleSDK prints the share of a core, in percent, that idle clients cost their process and
// the broker's, and the resident memory of both processes: a push consumer of one topic and of
// 1 000 topics, one of 1 000 lite topics, 1 000 consumers of one topic, each of a group of its own, a producer that has sent
// one message to each of 10 000 topics, and 10 000 clients with connections of their own, of which
// half have sent a message and half are push consumers of one group. With failed-receives, the
// machine was too busy for the clients. Each op is 20 s, after 30 s of rest: the clients have begun
// before.
func BenchmarkIdleSDK(b *testing.B) {
	consumers := func(groups int) func(*testing.B, string, []string) {
		return func(b *testing.B, address string, topics []string) {
			t := connect(b, address, rocketmq.Options{})
			for g := range groups {
				group := fmt.Sprintf("g%d", g)
				throughputRun(b, t, consumer.Subscription{Group: group, Topics: all(topics)}, func() {})
				assert.Must(b, until(b, func(ctx context.Context) error {
					_, err := t.ConsumerSettings(ctx, group, topics[0])
					return err
				}))
			}
		}
	}
	for _, c := range []struct {
		name   string
		topics int
		begin  func(b *testing.B, address string, topics []string)
	}{
		{"topics=1/groups=1", 1, consumers(1)},
		{"topics=1000/groups=1", 1000, consumers(1)},
		{"lite-topics=1000", 0, consumeLite},
		{"topics=1/groups=1000", 1, consumers(1000)},
		{"sent-topics=10000", 10_000, func(b *testing.B, address string, topics []string) {
			sendOnce(b, produce(b, connect(b, address, rocketmq.Options{})), topics)
		}},
		{"clients=10000", 2, idleClients},
	} {
		b.Run(c.name, func(b *testing.B) {
			server := serveApart(b, c.topics)
			c.begin(b, server.address, names(c.topics))
			time.Sleep(30 * time.Second)
			client, broker := server.spent(b)
			failed, start := failedReceives.Load(), time.Now()
			for b.Loop() {
				time.Sleep(20 * time.Second)
			}
			took := time.Since(start)
			client2, broker2 := server.spent(b)
			b.ReportMetric(100*(client2-client).Seconds()/took.Seconds(), "client-%")
			b.ReportMetric(100*(broker2-broker).Seconds()/took.Seconds(), "broker-%")
			b.ReportMetric(float64(failedReceives.Load()-failed), "failed-receives")
			clientMemory, brokerMemory := server.resident(b)
			b.ReportMetric(float64(clientMemory)/(1<<20), "client-MiB")
			b.ReportMetric(float64(brokerMemory)/(1<<20), "broker-MiB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// consumeLite begins a push consumer of 1 000 lite topics.
func consumeLite(b *testing.B, address string, _ []string) {
	p := throughputRun(b, connect(b, address, rocketmq.Options{}), consumer.Subscription{Group: "g", Topic: "lite", Lite: true}, func() {})
	for i := range 1000 {
		assert.Must(b, p.Subscribe(b.Context(), fmt.Sprintf("session-%d", i), transport.LiteStart{}))
	}
}

// sendOnce sends one message to each topic.
func sendOnce(b *testing.B, p *producer.Producer, topics []string) {
	var next atomic.Int64
	closedLoops(b, min(64, len(topics)), len(topics), func() error {
		_, err := p.Send(b.Context(), &tidegate.Message{Topic: topics[next.Add(1)-1], Body: []byte("once")})
		return err
	})
}

// idleClients begins 5 000 producers, each with a message to the first topic, and 5 000 consumers
// of the second topic. Few begin and end at the same time, and none has to in a certain time, so
// that they do on a busy machine.
func idleClients(b *testing.B, address string, topics []string) {
	const half = 5000
	ctx, stop := context.WithCancel(context.Background())
	var clients [2 * half]*rocketmq.Client
	var producers [half]*producer.Producer
	var consumers sync.WaitGroup
	b.Cleanup(func() {
		stop()
		consumers.Wait()
		eachOf(b, half, func(i int) error { return producers[i].Close() })
		eachOf(b, 2*half, func(i int) error { return clients[i].Close() })
	})
	for i := range clients {
		var err error
		if clients[i], err = rocketmq.New(address, rocketmq.Options{}); err != nil {
			b.Fatal(err)
		}
	}
	for i := range producers {
		var err error
		if producers[i], err = producer.New(clients[i], producer.Options{}); err != nil {
			b.Fatal(err)
		}
	}
	eachOf(b, half, func(i int) error {
		return until(b, func(ctx context.Context) error {
			_, err := producers[i].Send(ctx, &tidegate.Message{Topic: topics[0], Body: []byte("once")})
			return err
		})
	})
	eachOf(b, half, func(i int) error {
		c := clients[half+i]
		p, err := newPush(c, consumer.Subscription{Group: "g", Topic: topics[1]}, func() {})
		if err != nil {
			return err
		}
		consumers.Go(func() { assert.NoError(b, p.Run(ctx)) })
		return until(b, func(ctx context.Context) error {
			_, err := c.ConsumerSettings(ctx, "g", topics[1])
			return err
		})
	})
}

// eachOf calls f with 0 to n-1, few at a time.
func eachOf(b *testing.B, n int, f func(i int) error) {
	const atOnce = 16
	var next atomic.Int64
	closedLoops(b, atOnce, n, func() error { return f(int(next.Add(1)) - 1) })
}

// until repeats f until it succeeds: on a busy machine a call can take longer than its timeouts.
func until(b *testing.B, f func(context.Context) error) error {
	for {
		if err := f(b.Context()); err == nil || b.Context().Err() != nil {
			return err
		}
	}
}

// BenchmarkPacedSDK sends 1 000 messages of 1 KiB a second and consumes them with a push consumer:
// to 1 000 topics, and in turns within the same run to one. cpu-µs/msg is the CPU time of client
// and broker for each message; one/ratio: that divided by the one of a single topic.
func BenchmarkPacedSDK(b *testing.B) {
	const topics = 1000
	loads := map[string]func() time.Duration{"one": paced(b, 1), "all": paced(b, topics)}
	spent := map[string]time.Duration{}
	for b.Loop() {
		for name, load := range loads {
			spent[name] += load()
		}
	}
	b.ReportMetric(float64(spent["all"].Microseconds())/float64(b.N*pacedMessages), "cpu-µs/msg")
	b.ReportMetric(spent["all"].Seconds()/spent["one"].Seconds(), "one/ratio")
	b.ReportMetric(0, "ns/op")
}

const pacedMessages = 5000 // of a round of BenchmarkPacedSDK, in 5 s

// paced starts a broker and a consumer of topics. The result sends a round and returns its CPU
// time.
func paced(b *testing.B, n int) func() time.Duration {
	server, topics := serveApart(b, n), names(n)
	t := connect(b, server.address, rocketmq.Options{})
	p := produce(b, t)
	var handled atomic.Int64
	consumed := make(chan struct{}, 1)
	throughputRun(b, t, consumer.Subscription{Group: "g", Topics: all(topics)}, func() {
		if handled.Add(1)%pacedMessages == 0 {
			consumed <- struct{}{}
		}
	})
	body := make([]byte, 1024)
	return func() time.Duration {
		client, broker := server.spent(b)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := range pacedMessages {
			<-tick.C
			assert.Must(b, p.SendAsync(b.Context(), &tidegate.Message{Topic: topics[i%len(topics)], Body: body}, func(_ tidegate.Receipt, err error) {
				assert.NoError(b, err)
			}))
		}
		<-consumed
		client2, broker2 := server.spent(b)
		return client2 - client + broker2 - broker
	}
}

// BenchmarkCompressedSDK sends 1 KiB of JSON with Send from 256 goroutines to a broker in a process
// of its own, with and without gzip in turns. client-µs/msg and plain-µs/msg are the CPU time of
// the client's process for each message; plain/ratio: the first divided by the second.
func BenchmarkCompressedSDK(b *testing.B) {
	const callers, n = 256, 20_000
	server := serveApart(b, 1)
	body := orders(1024)
	sender := func(compression int) func() time.Duration {
		p := produce(b, connect(b, server.address, rocketmq.Options{Compression: compression}))
		return func() time.Duration {
			before, _ := server.spent(b)
			closedLoops(b, callers, n, func() error {
				_, err := p.Send(b.Context(), &tidegate.Message{Topic: "t0", Body: body})
				return err
			})
			after, _ := server.spent(b)
			return after - before
		}
	}
	packed, plain := sender(512), sender(0)
	var spent [2]time.Duration
	for b.Loop() {
		spent[0] += packed()
		spent[1] += plain()
	}
	b.ReportMetric(float64(spent[0].Microseconds())/float64(b.N*n), "client-µs/msg")
	b.ReportMetric(float64(spent[1].Microseconds())/float64(b.N*n), "plain-µs/msg")
	b.ReportMetric(spent[0].Seconds()/spent[1].Seconds(), "plain/ratio")
	b.ReportMetric(0, "ns/op")
}

// orders returns n bytes of JSON.
func orders(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	var s strings.Builder
	for s.Len() < n {
		fmt.Fprintf(&s, `{"order":%d,"customer":"c-%d","amount":%d.%02d,"currency":"EUR","note":"%x"},`,
			r.IntN(1e9), r.IntN(1e5), r.IntN(1e4), r.IntN(100), r.Uint32())
	}
	return []byte(s.String()[:n])
}

func connect(b *testing.B, address string, opts rocketmq.Options) *rocketmq.Client {
	b.Helper()
	c := assert.Value(rocketmq.New(address, opts))(b)
	b.Cleanup(func() { c.Close() })
	return c
}

func produce(b *testing.B, c *rocketmq.Client) *producer.Producer {
	b.Helper()
	p := assert.Value(producer.New(c, producer.Options{}))(b)
	b.Cleanup(func() { p.Close() })
	return p
}

func newPush(t consumer.Transport, sub consumer.Subscription, handled func()) (*consumer.Push, error) {
	return consumer.NewPush(t, sub, func(context.Context, *tidegate.Delivery) error {
		handled()
		return nil
	}, consumer.PushOptions{Concurrency: 64, OnReceiveFailure: func(consumer.ReceiveFailure) { failedReceives.Add(1) }})
}

// failedReceives counts the receives of run that failed.
var failedReceives atomic.Int64

// throughputRun runs a push consumer, whose handler calls handled, until the benchmark ends.
func throughputRun(b *testing.B, t consumer.Transport, sub consumer.Subscription, handled func()) *consumer.Push {
	b.Helper()
	p := assert.Value(newPush(t, sub, handled))(b)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		assert.NoError(b, <-ended)
	})
	return p
}
