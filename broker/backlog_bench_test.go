package broker_test

import (
	"flag"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

var backlogMessages = flag.Int("backlog.messages", 100_000, "the backlog of BenchmarkBacklog, in messages of 1 KiB")

// BenchmarkBacklog compares the cost of a message at a large backlog with that at one of 10 000, in
// turns within the same run: send/ratio and consume/ratio are large/small, 1 is equal. IDs are
// remembered as by default. rss-MiB is the process with both brokers, reopen-s how long opening the
// large one takes.
func BenchmarkBacklog(b *testing.B) {
	small, _ := filled(b, 10_000)
	large, dir := filled(b, *backlogMessages)
	for b.Loop() {
		var sends, consumes [2][]float64
		for range 9 {
			for i, br := range []*broker.Broker{small, large} {
				sends[i] = append(sends[i], perMessage(2000, func() { sendMany(b, br, 64, 2000) }))
				consumes[i] = append(consumes[i], perMessage(2000, func() { consumeMany(b, br, 2000) }))
			}
		}
		b.ReportMetric(median(sends[1])/median(sends[0]), "send/ratio")
		b.ReportMetric(median(consumes[1])/median(consumes[0]), "consume/ratio")
	}
	b.ReportMetric(rss(b), "rss-MiB")
	if err := large.Close(); err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	again, err := broker.Open(broker.Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(start).Seconds(), "reopen-s")
	if t, err := again.Topic("t"); err != nil || t.StoredMessages < int64(*backlogMessages) {
		b.Errorf("reopened with %+v, %v", t, err)
	}
	if err := again.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(0, "ns/op") // an operation here is the whole comparison
}

// filled returns a broker on disk with n messages, whose group is at their beginning.
func filled(b *testing.B, n int) (*broker.Broker, string) {
	dir := b.TempDir()
	br, err := broker.Open(broker.Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { br.Close() })
	putTopic(b, br, "t", settings.Topic{})
	putGroup(b, br, "g", settings.Group{})
	body := make([]byte, 1024)
	for done := 0; done < n; done += 1000 {
		batch := make([]*tidegate.Message, 1000)
		for i := range batch {
			batch[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: body}
		}
		mustSend(b, br, batch...)
	}
	return br, dir
}

func sendMany(b *testing.B, br *broker.Broker, callers, n int) {
	body := make([]byte, 1024)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range n / callers {
				if r := br.Send(b.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "t", Body: body}}); r[0].Err != nil {
					b.Error(r[0].Err)
				}
			}
		})
	}
	wg.Wait()
}

func consumeMany(b *testing.B, br *broker.Broker, n int) {
	for n > 0 {
		ds := receive(b, br, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Minute})
		if len(ds) == 0 {
			b.Fatal("the backlog is consumed")
		}
		br.Ack(b.Context(), ds)
		n -= len(ds)
	}
}

func perMessage(n int, f func()) float64 {
	start := time.Now()
	f()
	return float64(time.Since(start)) / float64(n)
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// rss returns the resident memory of the process in MiB, after a garbage collection.
func rss(b *testing.B) float64 {
	runtime.GC()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Logf("no figure for memory: %v", err)
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		b.Fatal(err)
	}
	return float64(kib) / 1024
}

// BenchmarkDueRetry has 100 000 messages wait for a retry that is far off, and
// measures how long after its due time a retry reaches a waiting consumer.
func BenchmarkDueRetry(b *testing.B) {
	br := open(b, broker.Options{Dir: b.TempDir()})
	putTopic(b, br, "t", settings.Topic{DuplicateWindow: -1})
	fail := func(n int, after func(i int) time.Duration) {
		for done := 0; done < n; done += 32 {
			batch := make([]*tidegate.Message, 32)
			for i := range batch {
				batch[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: []byte("x")}
			}
			mustSend(b, br, batch...)
			var wg sync.WaitGroup
			for i, d := range receive(b, br, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Push: true}) {
				wg.Go(func() {
					if _, err := br.Settle(b.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: after(done + i)}); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
		}
	}
	fail(100_000, func(int) time.Duration { return time.Hour })
	const retries = 960
	for b.Loop() {
		due := time.Now().Add(time.Second)
		dueOf := make([]time.Time, retries) // by the order of delivery, which is that of due times
		for i := range dueOf {
			dueOf[i] = due.Add(time.Duration(i) * 2 * time.Millisecond)
		}
		fail(retries, func(i int) time.Duration { return time.Until(dueOf[i]) })
		var late []float64
		for i := 0; i < retries; {
			ds := receive(b, br, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Minute})
			now := time.Now()
			for range ds {
				late = append(late, now.Sub(dueOf[i]).Seconds()*1000)
				i++
			}
			br.Ack(b.Context(), ds)
		}
		slices.Sort(late)
		if late[0] < 0 {
			b.Errorf("a retry came %v ms early", -late[0])
		}
		b.ReportMetric(late[len(late)/2], "p50-ms")
		b.ReportMetric(late[len(late)*99/100], "p99-ms")
	}
	b.ReportMetric(0, "ns/op")
}
