package servertest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

const (
	// Group is the consumer group of all benchmarks.
	Group = "billing"

	// Callers is the number of goroutines that send, and that handle messages.
	Callers = 64
)

var (
	benchMessages  = flag.Int("bench.messages", 20_000, "messages of each program in a round of a benchmark")
	memoryMessages = flag.Int("memory.messages", 1_000_000, "messages of BenchmarkMemory")
)

// A Bench compares the producer and the push consumer with a bare program: one that uses the
// system's client alone. Both use the same server in turns.
type Bench struct {
	PID     int                                           // of the server
	Peer    string                                        // name of the client, for the metrics
	Connect func() transport.Transport                    // the Bench closes it
	Create  func(ctx context.Context, topic string) error // creates a topic with the Group
	// Count returns the number of messages of a topic, or 0 once the Group has acknowledged all.
	Count  func(ctx context.Context, topic string) (int, error)
	Remove func(ctx context.Context, topic string) error // removes the messages of a topic
}

// A Program sends n messages to a topic, or consumes n messages of it. It returns the function that
// ends it, whose time does not count.
type Program func(topic string, n int) (end func())

// Payload returns the body of a message.
func Payload() []byte { return make([]byte, 1024) }

// Send compares sends of 1 KiB, one message a call, from all Callers.
func (s Bench) Send(b *testing.B, bare Program) {
	p := s.producer(b, s.connect(b))
	s.compare(b, true, bare, func(topic string, n int) func() {
		InTurn(b, n, func() error {
			return assert.Err(p.Send(b.Context(), &tidegate.Message{Topic: topic, Body: Payload()}))
		})
		return func() {}
	})
}

// SendAsync compares sends of 1 KiB from one goroutine, which do not wait for their responses.
func (s Bench) SendAsync(b *testing.B, bare Program) {
	p := s.producer(b, s.connect(b))
	s.compare(b, true, bare, func(topic string, n int) func() {
		sendAll(b, p, topic, n)
		return func() {}
	})
}

// Consume compares the receipt and acknowledgement of messages of 1 KiB by all Callers, with an
// empty handler. It ends once each acknowledgement has ended.
func (s Bench) Consume(b *testing.B, bare Program) {
	s.compare(b, false, bare, func(topic string, n int) func() {
		c := s.Connect()
		var settled atomic.Int64
		done := make(chan struct{})
		stop := consume(b, c, topic, func(_ context.Context, d *tidegate.Delivery) error {
			assert.Equal(b, "a body of bytes", len(d.Body), len(Payload()))
			return nil
		}, func(o consumer.Outcome) {
			assert.That(b, o.Disposition == consumer.Acked, "%+v", o)
			if settled.Add(1) == int64(n) {
				close(done)
			}
		})
		<-done
		return func() {
			stop()
			assert.NoError(b, c.Close())
		}
	})
}

// connect returns a transport that ends with the benchmark.
func (s Bench) connect(b *testing.B) transport.Transport {
	b.Helper()
	c := s.Connect()
	b.Cleanup(func() { assert.NoError(b, c.Close()) })
	return c
}

func (s Bench) producer(b *testing.B, c transport.Transport) *producer.Producer {
	b.Helper()
	p := assert.Value(producer.New(c, producer.Options{}))(b)
	b.Cleanup(func() { assert.NoError(b, p.Close()) })
	return p
}

func sendAll(b *testing.B, p *producer.Producer, topic string, n int) {
	b.Helper()
	for range n {
		assert.Must(b, p.SendAsync(b.Context(), &tidegate.Message{Topic: topic, Body: Payload()}, func(_ tidegate.Receipt, err error) {
			assert.NoError(b, err)
		}))
	}
	err := p.Flush(b.Context())
	assert.MustThat(b, err == nil && !b.Failed(), "%v", err)
}

// consume runs a push consumer with all Callers until stop.
func consume(b *testing.B, c transport.Transport, topic string, h consumer.Handler, outcome func(consumer.Outcome)) (stop func()) {
	b.Helper()
	p := assert.Value(consumer.NewPush(c, consumer.Subscription{Group: Group, Topic: topic}, h, consumer.PushOptions{
		Concurrency: Callers, LongPolling: time.Second, OnDelivery: outcome,
	}))(b)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	return func() {
		cancel()
		assert.NoError(b, <-done, "Run")
	}
}

// InTurn makes n calls from all Callers.
func InTurn(b *testing.B, n int, call func() error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range Callers {
		wg.Go(func() {
			for next.Add(1) <= int64(n) {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A cost is the cost of a program: messages a second, and CPU time in microseconds a message.
type cost struct{ rate, own, server float64 }

// compare runs both programs in each round, and after each round in the opposite order. It reports
// the median of the rate, and of its ratio to that of the bare program in the same round. On a busy
// machine the ratio of the CPU times of client and server together (cpu/ratio) is steadier.
func (s Bench) compare(b *testing.B, send bool, bare, ours Program) {
	var filler *producer.Producer
	if !send {
		filler = s.producer(b, s.connect(b))
	}
	topics := 0
	measure := func(run Program) cost {
		topics++
		topic := fmt.Sprintf("bench-%d", topics)
		assert.Must(b, s.Create(b.Context(), topic))
		n, left := *benchMessages, 0
		if send {
			left = n
		} else {
			sendAll(b, filler, topic, n)
		}
		runtime.GC()
		begin, own, server := time.Now(), ownCPU(b), s.cpu(b)
		end := run(topic, n)
		took := time.Since(begin).Seconds()
		own, server = ownCPU(b)-own, s.cpu(b)-server
		end()
		have := s.await(b, topic, left)
		assert.MustThat(b, have == left && !b.Failed(), "the topic has %d messages after a run, want %d", have, left)
		assert.Must(b, s.Remove(b.Context(), topic))
		micros := func(d time.Duration) float64 { return d.Seconds() * 1e6 / float64(n) }
		return cost{float64(n) / took, micros(own), micros(server)}
	}
	type round struct{ ours, bare cost }
	var rounds []round
	both := func(first bool) (r round) {
		if first {
			r.ours = measure(ours)
		}
		r.bare = measure(bare)
		if !first {
			r.ours = measure(ours)
		}
		return r
	}
	for range 2 { // the server compiles its code while it runs
		both(true)
	}
	for b.Loop() {
		r := both(len(rounds)%2 == 0)
		rounds = append(rounds, r)
		b.Logf("round %d: %.0f/s, %s %.0f/s, ratio %.2f; CPU of client and server %.1f + %.1f us/msg, %s %.1f + %.1f", len(rounds),
			r.ours.rate, s.Peer, r.bare.rate, r.ours.rate/r.bare.rate, r.ours.own, r.ours.server, s.Peer, r.bare.own, r.bare.server)
	}
	median := func(of func(round) float64) float64 {
		var all []float64
		for _, r := range rounds {
			all = append(all, of(r))
		}
		slices.Sort(all)
		return (all[len(all)/2] + all[(len(all)-1)/2]) / 2
	}
	b.ReportMetric(median(func(r round) float64 { return r.ours.rate }), "msg/s")
	b.ReportMetric(median(func(r round) float64 { return r.ours.rate / r.bare.rate }), s.Peer+"/ratio")
	b.ReportMetric(median(func(r round) float64 { return (r.bare.own + r.bare.server) / (r.ours.own + r.ours.server) }), "cpu/ratio")
	b.ReportMetric(median(func(r round) float64 { return r.ours.own }), "cpu-us/msg")
	b.ReportMetric(0, "ns/op") // of a round: means nothing
}

// await returns the number of messages of a topic, once it is want or after 20 s: a server can
// process acknowledgements after the client has written them.
func (s Bench) await(b *testing.B, topic string, want int) int {
	b.Helper()
	for begin := time.Now(); ; {
		n := assert.Value(s.Count(b.Context(), topic))(b)
		if n == want || time.Since(begin) > 20*time.Second {
			return n
		}
		wait(b, 10*time.Millisecond)
	}
}

// ownCPU returns the CPU time of this process.
func ownCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	assert.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpu returns the CPU time of the server, to 10 ms.
func (s Bench) cpu(b *testing.B) time.Duration {
	b.Helper()
	stat := assert.Value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID)))(b)
	_, rest, _ := strings.Cut(string(stat), ") ") // the name of the program can have spaces
	fields := strings.Fields(rest)
	ticks := 0
	for _, f := range fields[11:13] { // utime and stime
		n := assert.Value(strconv.Atoi(f))(b)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // 100 ticks a second, in every Linux
}

// Memory sends messages of 100 bytes with the producer and receives them with the push consumer, in
// one process with one transport. It reports the heap after a garbage collection and the resident
// memory of this process after a tenth, a half and all of the messages, and fails if the heap grows
// with their number.
func (s Bench) Memory(b *testing.B) {
	const ahead = 10_000 // messages at the server at most
	c := s.connect(b)
	p := s.producer(b, c)
	topics := 0
	for b.Loop() {
		topics++
		topic := fmt.Sprintf("memory-%d", topics)
		assert.Must(b, s.Create(b.Context(), topic))
		places := make(chan struct{}, ahead)
		consumed := make(chan struct{}, ahead)
		failed := make(chan struct{})
		stop := consume(b, c, topic, func(context.Context, *tidegate.Delivery) error {
			<-places
			consumed <- struct{}{}
			return nil
		}, nil)
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
