package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// BenchmarkBenchSend compares the rate that "bench send" prints with that of the loops of
// BenchmarkSendSDK: Send of 1 KiB from as many goroutines. They run in turns, for the same time, on
// one broker with a disk, and each is the first of a pair as often as the other. The ratio is that
// of "bench send" to the loops: the median of all pairs with the quartiles.
func BenchmarkBenchSend(b *testing.B) {
	const pairs, measured = 40, 300 * time.Millisecond // short, so that another load meets both of a pair
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			tl := newTool(b, "--data", b.TempDir(), "--topic", "orders")
			loops := sdkLoops(b, tl.grpc, callers, measured)
			command := func() float64 { return printedRate(b, tl, callers, measured) }
			loops() // connects
			var rates, ratios []float64
			for b.Loop() {
				for i := range pairs {
					var ours, theirs float64
					if i%2 == 0 {
						ours, theirs = command(), loops()
					} else {
						theirs, ours = loops(), command()
					}
					rates, ratios = append(rates, ours), append(ratios, ours/theirs)
				}
			}
			slices.Sort(rates)
			slices.Sort(ratios)
			b.ReportMetric(rates[len(rates)/2], "msg/s")
			b.ReportMetric((ratios[(len(ratios)-1)/2]+ratios[len(ratios)/2])/2, "sdk/ratio")
			b.ReportMetric(ratios[len(ratios)/4], "sdk-low/ratio")
			b.ReportMetric(ratios[3*len(ratios)/4], "sdk-high/ratio")
			b.ReportMetric(0, "ns/op") // of all pairs: means nothing
		})
	}
}

// printedRate is the rate that bench send prints.
func printedRate(b *testing.B, tl *tool, callers int, measured time.Duration) float64 {
	b.Helper()
	r := tl.must("bench", "send", "--callers", fmt.Sprint(callers), "--duration", measured.String(), "--rounds", "1", "--warmup", "200ms", "-o", "json")
	var result struct {
		Rounds []struct {
			Achieved float64
			Failed   map[string]int64
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &result); err != nil || len(result.Rounds) != 1 || len(result.Rounds[0].Failed) > 0 {
		b.Fatalf("%v, %s", err, r.stdout)
	}
	return result.Rounds[0].Achieved
}

// sdkLoops returns a function that sends from so many goroutines for a time, and returns the rate.
func sdkLoops(b *testing.B, grpc string, callers int, measured time.Duration) func() float64 {
	b.Helper()
	t, err := rocketmq.New(grpc, rocketmq.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = t.Close() })
	p, err := producer.New(t, producer.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	body := make([]byte, 1024)
	return func() float64 {
		var sent atomic.Int64
		var loops sync.WaitGroup
		began := time.Now()
		for range callers {
			loops.Go(func() {
				for time.Since(began) < measured {
					if _, err := p.Send(b.Context(), &tidegate.Message{Topic: "orders", Body: body}); err != nil {
						b.Error(err)
						return
					}
					sent.Add(1)
				}
			})
		}
		loops.Wait()
		return float64(sent.Load()) / time.Since(began).Seconds()
	}
}
