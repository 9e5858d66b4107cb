package interop

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
)

// callers is the number of goroutines that send, and that handle messages.
const callers = 64

var (
	benchMessages  = flag.Int("bench.messages", 20_000, "messages of each program in a round of a benchmark")
	memoryMessages = flag.Int("memory.messages", 1_000_000, "messages of BenchmarkMemory")
)

// BenchmarkSend sends messages of 1 KiB from 64 goroutines, one message a call, with the producer
// and with go-amqp alone, in turns to the same server.
func BenchmarkSend(b *testing.B) {
	s := benchServer(b)
	ours := producerOn(b, s)
	compare(b, s, program{send: true,
		ours: func(topic string, n int) func() {
			inTurn(b, n, func() error {
				_, err := ours.Send(b.Context(), &tidegate.Message{Topic: topic, Body: payload()})
				return err
			})
			return func() {}
		},
		bare: func(topic string, n int) func() { return bareSend(b, s.Address(), topic, n) },
	})
}

// BenchmarkConsume receives and acknowledges messages of 1 KiB with 64 workers and an empty
// handler, with the push consumer and with go-amqp alone, in turns from the same server. Both may
// hold 1024 messages.
func BenchmarkConsume(b *testing.B) {
	s := benchServer(b)
	compare(b, s, program{
		ours: func(topic string, n int) func() { return pushConsume(b, s.Address(), topic, n) },
		bare: func(topic string, n int) func() { return bareConsume(b, s.Address(), topic, n) },
	})
}

// benchServer starts a server whose addresses are never full.
func benchServer(b *testing.B) *artemis.Server {
	b.Helper()
	return start(b, artemis.Options{Properties: map[string]string{
		`addressSettings."#".autoCreateAddresses`: "true", `addressSettings."#".maxSizeBytes`: "-1", "globalMaxSize": "-1",
	}})
}

func producerOn(b *testing.B, s *artemis.Server) *producer.Producer {
	b.Helper()
	return sends(b, clientOf(b, s.Address()), producer.Options{})
}

// A program is a benchmark of two programs that process n messages of a topic. Each returns the
// function that ends it.
type program struct {
	ours, bare func(topic string, n int) (end func())
	send       bool // the programs send; otherwise they receive the messages of the topic
}

// compare runs both programs in each round, and after each round in the opposite order. It reports
// the median of the rate, and of its ratio to that of go-amqp in the same round (go-amqp/ratio). On
// a busy machine the ratio of the CPU times of client and server together (cpu/ratio) is steadier.
func compare(b *testing.B, s *artemis.Server, p program) {
	a := assert.Value(connect(b.Context(), s.Address()))(b)
	filler := producerOn(b, s)
	topics := 0
	type side struct{ rate, cpu, server float64 } // messages a second, microseconds for each message
	measure := func(run func(string, int) func()) side {
		topics++
		topic := fmt.Sprintf("bench-%d", topics)
		assert.Must(b, a.createGroup(b.Context(), topic, "billing"))
		if !p.send {
			for range *benchMessages {
				assert.Must(b, filler.SendAsync(b.Context(), &tidegate.Message{Topic: topic, Body: payload()}, func(_ tidegate.Receipt, err error) {
					assert.That(b, err == nil, "%v", err)
				}))
			}
			err := filler.Flush(b.Context())
			assert.MustThat(b, err == nil && !b.Failed(), "%v", err)
		}
		runtime.GC()
		begin, used, served := time.Now(), ownCPU(b), serverCPU(b, s)
		end := run(topic, *benchMessages)
		took := time.Since(begin).Seconds()
		used, served = ownCPU(b)-used, serverCPU(b, s)-served
		end()
		want := "[0]"
		if p.send {
			want = fmt.Sprintf("[%d]", *benchMessages)
		}
		left := count(b, a, topic, want)
		assert.MustThat(b, left == want, "the queue has %s messages after a run, want %s", left, want)
		assert.Must(b, assert.Err(a.do(b.Context(), "queue."+topic+".billing", "removeAllMessages")))
		n := float64(*benchMessages)
		return side{n / took, used.Seconds() * 1e6 / n, served.Seconds() * 1e6 / n}
	}
	type round struct{ ours, bare side }
	var rounds []round
	both := func(first bool) (r round) {
		if first {
			r.ours = measure(p.ours)
		}
		r.bare = measure(p.bare)
		if !first {
			r.ours = measure(p.ours)
		}
		return r
	}
	for range 2 { // the server compiles its code while it runs
		both(true)
	}
	for b.Loop() {
		r := both(len(rounds)%2 == 0)
		rounds = append(rounds, r)
		b.Logf("round %d: %.0f/s, go-amqp %.0f/s, ratio %.2f; CPU of client and server %.1f + %.1f us/msg, go-amqp %.1f + %.1f",
			len(rounds), r.ours.rate, r.bare.rate, r.ours.rate/r.bare.rate, r.ours.cpu, r.ours.server, r.bare.cpu, r.bare.server)
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
	b.ReportMetric(median(func(r round) float64 { return r.ours.rate / r.bare.rate }), "go-amqp/ratio")
	b.ReportMetric(median(func(r round) float64 { return (r.bare.cpu + r.bare.server) / (r.ours.cpu + r.ours.server) }), "cpu/ratio")
	b.ReportMetric(median(func(r round) float64 { return r.ours.cpu }), "cpu-us/msg")
	b.ReportMetric(0, "ns/op") // of a round: means nothing
}

// count returns the number of messages of the group's queue, once it is want or after 20 s: the
// server reads acknowledgements after the client has written them.
func count(b *testing.B, a *admin, topic, want string) string {
	b.Helper()
	for begin := time.Now(); ; wait(b, 10*time.Millisecond) {
		n := assert.Value(a.do(b.Context(), "queue."+topic+".billing", "countMessages"))(b)
		if n == want || time.Since(begin) > 20*time.Second {
			return n
		}
	}
}

func payload() []byte { return make([]byte, 1024) }

// ownCPU returns the CPU time of this process.
func ownCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	assert.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// serverCPU returns the CPU time of the server, to 10 ms.
func serverCPU(b *testing.B, s *artemis.Server) time.Duration {
	b.Helper()
	stat := assert.Value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID())))(b)
	_, rest, _ := strings.Cut(string(stat), ") ") // the name of the program can have spaces
	fields := strings.Fields(rest)
	ticks := 0
	for _, f := range fields[11:13] { // utime and stime
		n := assert.Value(strconv.Atoi(f))(b)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // 100 ticks a second, in every Linux
}

// inTurn makes n calls from all callers.
func inTurn(b *testing.B, n int, call func() error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range callers {
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

// bareSend sends durable messages with duplicate detection, as the producer does.
func bareSend(b *testing.B, address, topic string, n int) (end func()) {
	session, end := dial(b, address)
	s := assert.Value(session.NewSender(b.Context(), topic, &goamqp.SenderOptions{SettlementMode: goamqp.SenderSettleModeUnsettled.Ptr()}))(b)
	inTurn(b, n, func() error {
		m := goamqp.NewMessage(payload())
		m.Header = &goamqp.MessageHeader{Durable: true}
		id := tidegate.NewMessageID()
		m.Properties = &goamqp.MessageProperties{MessageID: id}
		m.ApplicationProperties = map[string]any{"_AMQ_DUPL_ID": id}
		return s.Send(b.Context(), m, nil)
	})
	return end
}

// bareConsume receives with one goroutine and acknowledges with 64.
func bareConsume(b *testing.B, address, topic string, n int) (end func()) {
	session, end := dial(b, address)
	r, err := session.NewReceiver(b.Context(), topic+"::"+topic+".billing", &goamqp.ReceiverOptions{
		Credit: 1024, SourceCapabilities: []string{"topic"},
	})
	assert.Must(b, err)
	messages := make(chan *goamqp.Message)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for m := range messages {
				assert.Equal(b, "a body of bytes", len(m.GetData()), 1024)
				assert.NoError(b, r.AcceptMessage(b.Context(), m))
			}
		})
	}
	for range n {
		m := assert.Value(r.Receive(b.Context(), nil))(b)
		messages <- m
	}
	close(messages)
	wg.Wait()
	return end
}

// pushConsume ends once the acknowledgement of each message is written.
func pushConsume(b *testing.B, address, topic string, n int) (end func()) {
	c := client(b, address, amqp.Options{})
	var settled atomic.Int64
	done := make(chan struct{})
	stop := consume(b, c, consumer.Subscription{Group: "billing", Topic: topic}, func(_ context.Context, d *tidegate.Delivery) error {
		assert.Equal(b, "a body of bytes", len(d.Body), 1024)
		return nil
	}, consumer.PushOptions{Concurrency: callers, OnDelivery: func(o consumer.Outcome) {
		assert.That(b, o.Disposition == consumer.Acked, "%+v", o)
		if settled.Add(1) == int64(n) {
			close(done)
		}
	}})
	<-done
	return func() {
		stop()
		c.Close()
	}
}
