package interop

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
)

// BenchmarkMemory sends messages of 100 bytes with the producer and receives them with the push
// consumer, in one process with one transport. It reports the heap after a garbage collection and
// the resident memory of this process after a tenth, a half and all of the messages, and fails if
// the heap grows with their number.
func BenchmarkMemory(b *testing.B) {
	const ahead = 10_000 // messages at the server at most
	s := benchServer(b)
	a := assert.Value(connect(b.Context(), s.Address()))(b)
	c := clientOf(b, s.Address())
	p := producerOn(b, s)
	topics := 0
	for b.Loop() {
		topics++
		topic := fmt.Sprintf("memory-%d", topics)
		assert.Must(b, a.createGroup(b.Context(), topic, "billing"))
		places := make(chan struct{}, ahead)
		consumed := make(chan struct{}, ahead)
		failed := make(chan struct{})
		stop := consume(b, c, consumer.Subscription{Group: "billing", Topic: topic}, func(context.Context, *tidegate.Delivery) error {
			<-places
			consumed <- struct{}{}
			return nil
		}, consumer.PushOptions{Concurrency: callers})
		go func() {
			for range *memoryMessages {
				places <- struct{}{}
				if err := p.SendAsync(b.Context(), &tidegate.Message{Topic: topic, Body: make([]byte, 100)}, func(_ tidegate.Receipt, err error) {
					assert.NoError(b, err)
				}); err != nil {
					b.Error(err)
					close(failed)
					return
				}
			}
		}()
		var heaps []float64
		n := 0
		for _, part := range []int{10, 50, 100} {
			for ; n < *memoryMessages*part/100; n++ {
				select {
				case <-consumed:
				case <-failed:
					b.FailNow()
				}
			}
			heap, rss := memory(b)
			heaps = append(heaps, heap)
			b.ReportMetric(heap, fmt.Sprintf("heap-%d%%-MiB", part))
			b.ReportMetric(rss, fmt.Sprintf("rss-%d%%-MiB", part))
		}
		stop()
		assert.That(b, heaps[2] <= heaps[0]+8, "the heap has grown from %.1f MiB to %.1f MiB", heaps[0], heaps[2])
	}
}

// memory returns the heap and the resident memory of this process in MiB, after a garbage
// collection.
func memory(b *testing.B) (heap, rss float64) {
	b.Helper()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	status := assert.Value(os.ReadFile("/proc/self/status"))(b)
	_, line, _ := strings.Cut(string(status), "VmRSS:")
	var kib float64
	assert.Must(b, assert.Err(fmt.Sscanf(line, "%f kB", &kib)))
	return float64(m.HeapAlloc) / (1 << 20), kib / 1024
}
