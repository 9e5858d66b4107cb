package broker_test

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

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
	br, err := broker.Open(broker.Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	took := time.Since(start)
	grown := heap() - before
	if err := br.Close(); err != nil {
		b.Fatal(err)
	}
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
		if len(ds) == 0 {
			b.Fatalf("%d messages are missing", left)
		}
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
