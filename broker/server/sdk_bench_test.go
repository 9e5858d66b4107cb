package server_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// BenchmarkConsumeSDK receives 32 messages of 1 KiB and acknowledges them by our SDK's transport,
// whose deliveries are packed. It compares this with the official protocol (raw), in turns within
// the same run, each on a broker with a disk. raw/ratio is the SDK's rate divided by the other;
// allocs/msg counts client and server.
func BenchmarkConsumeSDK(b *testing.B) {
	for _, consumers := range []int{1, 16} {
		b.Run(fmt.Sprintf("consumers=%d", consumers), func(b *testing.B) {
			const messages = 64 * 256
			addresses := [2]string{serveBroker(b), serveBroker(b)}
			raw := newConsumers(b, addresses[0], consumers)
			c, err := rocketmq.New(addresses[1], rocketmq.Options{})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { c.Close() })
			fillers := [2]*load{newLoad(b, addresses[0], 8, 64), newLoad(b, addresses[1], 8, 64)}
			var took [2]time.Duration
			var allocs uint64
			n := 0
			for b.Loop() {
				for i, f := range fillers {
					f.send(b, messages/64+consumers) // more than is received: no receive waits
					if i == 0 {
						took[0] += raw.consume(b, messages)
						continue
					}
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					took[1] += consumeSDK(b, c, consumers, messages)
					runtime.ReadMemStats(&after)
					allocs += after.Mallocs - before.Mallocs
				}
				n += messages
			}
			b.ReportMetric(float64(n)/took[1].Seconds(), "msg/s")
			b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "raw/ratio")
			b.ReportMetric(float64(allocs)/float64(n), "allocs/msg")
			b.ReportMetric(0, "ns/op") // of a round of filling and both: means nothing
		})
	}
}

// consumeSDK receives and acknowledges n messages in closed loops.
func consumeSDK(b *testing.B, c *rocketmq.Client, consumers, n int) time.Duration {
	r := transport.ReceiveRequest{
		Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Minute, Wait: time.Second,
	}
	var got atomic.Int64
	start := time.Now()
	var wg sync.WaitGroup
	for range consumers {
		wg.Go(func() {
			for got.Load() < int64(n) && !b.Failed() {
				ds, err := c.Receive(b.Context(), r)
				if err != nil {
					b.Error(err)
					return
				}
				for _, err := range c.Ack(b.Context(), ds) {
					if err != nil {
						b.Error(err)
						return
					}
				}
				got.Add(int64(len(ds)))
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}
