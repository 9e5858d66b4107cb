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
	"github.com/tidegate/tidegate/cmd/internal/bench"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// BenchmarkBenchSend compares the rate that "bench send" prints with that of the loops of
// BenchmarkSendSDK: Send of 1 KiB from as many goroutines, with a client of their own, the same
// warm-up and the same topic. They run in turns on one broker with a disk, and each is the first of
// a pair as often as the other. The ratios are those of "bench send" to the loops: the medians of
// all pairs. That of the rates has its quartiles beside it. That of the CPU time a message, which
// has client and broker, varies less.
func BenchmarkBenchSend(b *testing.B) {
	const pairs = 40
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			tl := newTool(b, "--data", b.TempDir(), "--topic", "orders")
			command := func() pace { return printedPace(b, tl, callers) }
			loops := func() pace { return sdkLoops(b, tl.grpc, callers) }
			var rates, ratios, costs []float64
			for b.Loop() {
				for i := range pairs {
					var ours, theirs pace
					if i%2 == 0 {
						ours, theirs = command(), loops()
					} else {
						theirs, ours = loops(), command()
					}
					rates, ratios, costs = append(rates, ours.rate), append(ratios, ours.rate/theirs.rate), append(costs, ours.cpu/theirs.cpu)
				}
			}
			for _, all := range [][]float64{rates, ratios, costs} {
				slices.Sort(all)
			}
			median := func(all []float64) float64 { return (all[(len(all)-1)/2] + all[len(all)/2]) / 2 }
			b.ReportMetric(median(rates), "msg/s")
			b.ReportMetric(median(ratios), "sdk/ratio")
			b.ReportMetric(ratios[len(ratios)/4], "sdk-low/ratio")
			b.ReportMetric(ratios[3*len(ratios)/4], "sdk-high/ratio")
			if processorTime() > 0 {
				b.ReportMetric(median(costs), "cpu/ratio")
			}
			b.ReportMetric(0, "ns/op") // of all pairs: means nothing
		})
	}
}

// The times of a measurement: short, so that another load of the machine meets both of a pair.
const warmup, measured = 200 * time.Millisecond, 300 * time.Millisecond

// A pace is the messages a second, and the CPU time a message of this process in seconds.
type pace struct{ rate, cpu float64 }

// printedPace is the pace that bench send prints.
func printedPace(b *testing.B, tl *tool, callers int) pace {
	b.Helper()
	r := tl.must("bench", "send", "--topic", "orders", "--into-existing", "--callers", fmt.Sprint(callers), "--duration", measured.String(), "--rounds", "1", "--warmup", warmup.String(), "-o", "json")
	var result bench.Result
	if err := json.Unmarshal([]byte(r.stdout), &result); err != nil || len(result.Rounds) != 1 || len(result.Rounds[0].Failed) > 0 {
		b.Fatalf("%v, %s", err, r.stdout)
	}
	round := result.Rounds[0]
	return pace{round.Achieved, round.Client.CPU / float64(round.Done)}
}

// sdkLoops sends from so many goroutines, with a new client.
func sdkLoops(b *testing.B, grpc string, callers int) pace {
	b.Helper()
	t := assert.Value(rocketmq.New(grpc, rocketmq.Options{}))(b)
	defer t.Close()
	p := assert.Value(producer.New(t, producer.Options{}))(b)
	defer p.Close()
	body := make([]byte, 1024)
	loops := func(length time.Duration) pace {
		var sent atomic.Int64
		var under sync.WaitGroup
		before, began := processorTime(), time.Now()
		for range callers {
			under.Go(func() {
				for time.Since(began) < length {
					if _, err := p.Send(b.Context(), &tidegate.Message{Topic: "orders", Body: body}); err != nil {
						b.Error(err)
						return
					}
					sent.Add(1)
				}
			})
		}
		under.Wait()
		took, cpu := time.Since(began), processorTime()-before
		return pace{float64(sent.Load()) / took.Seconds(), cpu.Seconds() / float64(sent.Load())}
	}
	loops(warmup)
	return loops(measured)
}
