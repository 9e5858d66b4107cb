package broker_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// BenchmarkAppend stores messages of 1 KiB on disk, without a network.
func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			br := open(b, broker.Options{Dir: b.TempDir()})
			putTopic(b, br, "t", settings.Topic{})
			body := make([]byte, 1024)
			b.ReportAllocs()
			var wg sync.WaitGroup
			per := b.N/callers + 1
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for range per {
						if r := br.Send(b.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "t", Body: body}}); r[0].Err != nil {
							b.Error(r[0].Err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkConsume receives and acknowledges 32 messages at a time, without a network.
func BenchmarkConsume(b *testing.B) {
	br := open(b, broker.Options{Dir: b.TempDir()})
	putTopic(b, br, "t", settings.Topic{})
	body := make([]byte, 1024)
	n := max(b.N, 1000)
	for done := 0; done < n; done += 1000 {
		batch := make([]*tidegate.Message, 1000)
		for i := range batch {
			batch[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: body}
		}
		mustSend(b, br, batch...)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for got := 0; got < b.N; {
		ds := receive(b, br, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Minute})
		for _, err := range br.Ack(b.Context(), ds) {
			if err != nil {
				b.Fatal(err)
			}
		}
		got += len(ds)
	}
}

// BenchmarkSettle receives and acknowledges 32 messages at a time, on disk, by
// several consumers at once. The messages are stored beforehand.
func BenchmarkSettle(b *testing.B) {
	for _, consumers := range []int{1, 16} {
		b.Run(fmt.Sprintf("consumers=%d", consumers), func(b *testing.B) {
			br := open(b, broker.Options{Dir: b.TempDir()})
			putTopic(b, br, "t", settings.Topic{})
			for left := b.N; left > 0; left -= 1000 {
				batch := make([]*tidegate.Message, min(left, 1000))
				for i := range batch {
					batch[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: make([]byte, 1024)}
				}
				mustSend(b, br, batch...)
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			var wg sync.WaitGroup
			for range consumers {
				wg.Go(func() {
					for left.Load() > 0 {
						ds, err := br.Receive(b.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Minute, Push: true})
						if err != nil {
							b.Error(err)
							return
						}
						for _, err := range br.Ack(b.Context(), ds) {
							if err != nil {
								b.Error(err)
								return
							}
						}
						left.Add(int64(-len(ds)))
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
		})
	}
}
