package broker

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// BenchmarkAppend stores messages of 1 KiB on disk, without a network.
func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			br := open(b, Options{Dir: b.TempDir()})
			putTopic(b, br, "t", TopicConfig{})
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
	br := open(b, Options{Dir: b.TempDir()})
	putTopic(b, br, "t", TopicConfig{})
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
