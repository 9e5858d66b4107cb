package broker_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
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
	br := assert.Value(broker.Open(broker.Options{Dir: dir}))(b)
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
		assert.MustThat(b, len(ds) != 0, "the backlog is consumed")
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
	assert.Must(b, err)
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

var openPercent = flag.Int("open.percent", 1, "the contents of BenchmarkOpenFilled, in percent of 10 million messages, 10 000 topics, 100 000 groups and 1 million leases")

// BenchmarkOpenFilled opens a directory with many messages, topics, groups or leases, that was
// closed in order. p50-ms is the median of the opening times, heap-MiB the memory that the open
// broker has, and tenth/ratio the median divided by that of a directory with a tenth of the
// contents. OPERATORS.md has its figures.
func BenchmarkOpenFilled(b *testing.B) {
	for _, c := range []struct {
		name string
		most int
		fill func(b *testing.B, br *broker.Broker, n int)
	}{
		{"messages", 10_000_000, storeMany}, {"topics", 10_000, createTopics}, {"groups", 100_000, createGroups}, {"leases", 1_000_000, leaseMany},
	} {
		n := c.most * *openPercent / 100
		b.Run(fmt.Sprintf("%s=%d", c.name, n), func(b *testing.B) {
			var dirs [2]string
			for i, n := range []int{n, n / 10} {
				dirs[i] = b.TempDir()
				br := open(b, broker.Options{Dir: dirs[i], MaxAutoGroups: max(n, 1)}.On(unsyncedFS{vfs.Default}))
				c.fill(b, br, n)
				if err := br.Close(); err != nil {
					b.Fatal(err)
				}
			}
			var took [2][]float64
			var heap float64
			for b.Loop() {
				for i, dir := range dirs {
					d, grown := timeOpen(b, dir)
					took[i] = append(took[i], d.Seconds()*1000)
					if i == 0 {
						heap = grown
					}
				}
			}
			p50 := median(took[0])
			b.ReportMetric(p50, "p50-ms")
			b.ReportMetric(heap, "heap-MiB")
			b.ReportMetric(p50/median(took[1]), "tenth/ratio")
			b.ReportMetric(0, "ns/op") // with the memory's measurement and the tenth
		})
	}
}

// An unsyncedFS leaves the writing to the operating system. Filling a directory needs no fsync for
// each topic or group, and the broker reads the same files afterwards.
type unsyncedFS struct{ vfs.FS }

func (fs unsyncedFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return unsynced(fs.FS.Create(name, c))
}

func (fs unsyncedFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return unsynced(fs.FS.OpenReadWrite(name, c, opts...))
}

func (fs unsyncedFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return unsynced(fs.FS.ReuseForWrite(from, to, c))
}

func (fs unsyncedFS) OpenDir(name string) (vfs.File, error) { return unsynced(fs.FS.OpenDir(name)) }

type unsyncedFile struct{ vfs.File }

func unsynced(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return unsyncedFile{f}, nil
}

func (unsyncedFile) Sync() error                { return nil }
func (unsyncedFile) SyncData() error            { return nil }
func (unsyncedFile) SyncTo(int64) (bool, error) { return false, nil }

// timeOpen opens a directory and closes it. It returns the time of opening and the memory that the
// broker took.
func timeOpen(b *testing.B, dir string) (time.Duration, float64) {
	before := heap()
	start := time.Now()
	br := assert.Value(broker.Open(broker.Options{Dir: dir}))(b)
	took := time.Since(start)
	grown := heap() - before
	assert.Must(b, br.Close())
	return took, grown
}

// heap returns the memory in use in MiB, after a garbage collection.
func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// storeMany stores n messages of 100 bytes in a topic.
func storeMany(b *testing.B, br *broker.Broker, n int) {
	putTopic(b, br, "t", settings.Topic{})
	body := make([]byte, 100)
	inParallel(4, (n+999)/1000, func(int) {
		batch := make([]*tidegate.Message, 1000)
		for i := range batch {
			batch[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: body}
		}
		mustSend(b, br, batch...)
	})
}

func createTopics(b *testing.B, br *broker.Broker, n int) {
	inParallel(64, n, func(i int) { putTopic(b, br, fmt.Sprintf("t%d", i), settings.Topic{}) })
}

// createGroups creates n groups, which subscribe to 100 topics in turn.
func createGroups(b *testing.B, br *broker.Broker, n int) {
	createTopics(b, br, 100)
	inParallel(64, n, func(i int) {
		receive(b, br, transport.ReceiveRequest{Group: fmt.Sprintf("g%d", i), Topic: fmt.Sprintf("t%d", i%100), Max: 1})
	})
}

// leaseMany has n messages in flight, in one group.
func leaseMany(b *testing.B, br *broker.Broker, n int) {
	storeMany(b, br, n)
	for left := n; left > 0; {
		ds := receive(b, br, transport.ReceiveRequest{Group: "g", Topic: "t", Max: min(left, 1000), InvisibleDuration: 12 * time.Hour})
		assert.MustThat(b, len(ds) != 0, "%d messages are missing", left)
		left -= len(ds)
	}
}

// inParallel calls f with 0 to n-1 from so many goroutines.
func inParallel(goroutines, n int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}
