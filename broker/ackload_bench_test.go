package broker_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// BenchmarkAckUnderLoad measures for 5 s how long receives and acknowledgements of 32 messages take
// while four senders send 64 messages of 1 KiB at a time in a loop.
func BenchmarkAckUnderLoad(b *testing.B) {
	const load = 5 * time.Second
	br := open(b, broker.Options{Dir: b.TempDir()})
	putTopic(b, br, "t", settings.Topic{})
	putGroup(b, br, "g", settings.Group{})
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	var sent int64
	var mu sync.Mutex
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				batch := make([]*tidegate.Message, 64)
				for i := range batch {
					batch[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: make([]byte, 1024)}
				}
				ok := int64(0)
				for _, r := range br.Send(ctx, batch) {
					if r.Err == nil {
						ok++
					}
				}
				mu.Lock()
				sent += ok
				mu.Unlock()
			}
		})
	}
	var acks, receives []time.Duration
	b.ResetTimer()
	start := time.Now()
	for time.Since(start) < load {
		t0 := time.Now()
		ds, err := br.Receive(ctx, transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Minute, Push: true, Wait: time.Second})
		if err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		for _, err := range br.Ack(ctx, ds) {
			if err != nil {
				b.Fatal(err)
			}
		}
		receives = append(receives, t1.Sub(t0))
		acks = append(acks, time.Since(t1))
	}
	b.StopTimer()
	cancel()
	wg.Wait()
	q := func(ds []time.Duration, p float64) float64 {
		slices.Sort(ds)
		return float64(ds[int(p*float64(len(ds)-1))]) / 1e6
	}
	b.ReportMetric(q(acks, .5), "ack-p50-ms")
	b.ReportMetric(q(acks, .99), "ack-p99-ms")
	b.ReportMetric(q(acks, 1), "ack-max-ms")
	b.ReportMetric(q(receives, .99), "recv-p99-ms")
	b.ReportMetric(q(receives, 1), "recv-max-ms")
	b.ReportMetric(float64(sent)/load.Seconds(), "sent/s")
	b.ReportMetric(float64(len(acks)*32)/load.Seconds(), "acked/s")
	b.ReportMetric(0, "ns/op")
}
