// Package latency compares the time from a send to its handler: of the SDK and of a bare gRPC client
// on a broker, of NATS JetStream, and of a floor that does only what must be done. It is a module of
// its own, because NATS is a dependency of nothing else.
package latency

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tidegate/tidegate/internal/assert"
)

var (
	length  = flag.Duration("latency.length", 2*time.Second, "how long each system gets messages in each round")
	systems = flag.String("latency.systems", "", "the only systems to measure, separated by commas")
)

// A system carries messages from senders to handlers. Goroutines call send at the same time; it
// returns when the message is on disk, except for the floor.
type system struct {
	name   string
	send   func(ctx context.Context, sequence int, body []byte) error
	server *process
}

// BenchmarkEndToEndSDK sends messages of 1 KiB at fixed rates, each at its own due time, however
// long the others take, from 64 callers. It measures the time from the due time of a message to the
// begin of its handler: of the SDK and of a bare gRPC client with four consumers, without message
// groups and with 1 000 of them, of NATS JetStream that syncs each message (nats-always) or none
// (nats-default), and of a floor: a gRPC stream to a server, one fdatasync for all that wait, and a
// stream back. All systems take turns in each round, with a server in a process of its own.
//
// A metric is the median of the rounds. floor/ratio is the p50 of the floor divided by the time of
// an fdatasync and a bare request, both made at the pace of the messages while nothing else runs:
// the floor counts if it is at most 1.5. sdk/ratio and bare/ratio are the p50 divided by that of
// the floor. late-p99-ms is how late the
// generator was, in the worst system. cpu-µs is the CPU time of the server for a message.
func BenchmarkEndToEndSDK(b *testing.B) {
	for _, rate := range []int{500, 2000, 5000} {
		b.Run(fmt.Sprintf("rate=%d", rate), func(b *testing.B) { endToEnd(b, rate) })
	}
}

// Each system carries all messages of a round.
func TestSystems(t *testing.T) {
	run := &run{}
	for _, s := range run.systems(t) {
		before := s.server.cpu(t)
		times, late := run.measure(t, s, 200, 100*time.Millisecond)
		assert.That(t, len(times) == 20 && len(late) == 20 && !slices.Contains(times, 0), "%s: times %v, lateness %v", s.name, times, late)
		assert.That(t, s.server.cpu(t) > before, "%s: the server has used no CPU time", s.name)
	}
}

func endToEnd(b *testing.B, rate int) {
	run := &run{}
	all := run.systems(b)
	if *systems != "" {
		chosen := strings.Split(*systems, ",")
		all = slices.DeleteFunc(all, func(s *system) bool { return !slices.Contains(chosen, s.name) })
	}
	figures := map[string][]float64{}
	note := func(name string, v float64) { figures[name] = append(figures[name], v) }
	quantiles := func(name string, of []time.Duration) (p50 float64) {
		slices.Sort(of)
		at := func(q float64) float64 { return of[int(q*float64(len(of)))].Seconds() * 1e3 }
		note(name+"-p50-ms", at(.5))
		note(name+"-p99-ms", at(.99))
		return at(.5)
	}
	for _, s := range all { // connects, and fills the caches
		run.measure(b, s, rate, *length/4)
	}
	pace := time.Second / time.Duration(rate)
	fsync, trip := syncTime(b, pace), bareTrip(b, pace)
	for i := 0; b.Loop(); i++ {
		least := fsync() + trip()
		p50, worst := map[string]float64{}, 0.
		for j := range all {
			s := all[(i+j)%len(all)]
			before := s.server.cpu(b)
			times, late := run.measure(b, s, rate, *length)
			note(s.name+"-cpu-µs", float64(s.server.cpu(b)-before)/1e3/float64(len(times)))
			p50[s.name] = quantiles(s.name, times)
			slices.Sort(late)
			worst = max(worst, late[len(late)*99/100].Seconds()*1e3)
		}
		note("late-p99-ms", worst)
		if floor := p50["floor"]; floor > 0 {
			note("floor/ratio", floor/least)
			for name, v := range p50 {
				if name != "floor" {
					note(name+"/ratio", v/floor)
				}
			}
		}
	}
	for name, values := range figures {
		slices.Sort(values)
		b.ReportMetric(values[len(values)/2], name)
	}
	b.ReportMetric(0, "ns/op")
}

// A run receives the messages of one round at a time.
type run struct {
	mu    sync.Mutex
	round uint64          // guarded by mu
	times []time.Duration // guarded by mu: by sequence number; 0 for messages that have not arrived
	left  int             // guarded by mu
	done  chan struct{}   // guarded by mu: closed when all messages of the round have arrived
}

// seen notes the arrival of a message.
func (r *run) seen(body []byte) {
	now := time.Now().UnixNano()
	round, sequence := binary.BigEndian.Uint64(body), binary.BigEndian.Uint64(body[8:])
	due := int64(binary.BigEndian.Uint64(body[16:]))
	r.mu.Lock()
	defer r.mu.Unlock()
	if round != r.round || r.times[sequence] != 0 {
		return
	}
	r.times[sequence] = max(1, time.Duration(now-due))
	if r.left--; r.left == 0 {
		close(r.done)
	}
}

// measure sends messages to a system for some time. It returns how long each took, and how late
// the generator was with each.
func (r *run) measure(b testing.TB, s *system, rate int, length time.Duration) (times, late []time.Duration) {
	b.Helper()
	const callers = 64
	n := max(10, int(length.Seconds()*float64(rate)))
	late = make([]time.Duration, n)
	r.mu.Lock()
	r.round++
	round, done := r.round, make(chan struct{})
	r.times, r.left, r.done = make([]time.Duration, n), n, done
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(b.Context(), length+20*time.Second)
	defer cancel()
	start := time.Now().Add(20 * time.Millisecond)
	due := func(i int) time.Time { return start.Add(time.Duration(i) * time.Second / time.Duration(rate)) }
	messages := make(chan int, n)
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := range messages {
				body := make([]byte, 1024)
				binary.BigEndian.PutUint64(body, round)
				binary.BigEndian.PutUint64(body[8:], uint64(i))
				binary.BigEndian.PutUint64(body[16:], uint64(due(i).UnixNano()))
				if err := s.send(ctx, i, body); err != nil {
					failed.CompareAndSwap(nil, &err)
					cancel()
				}
			}
		})
	}
	clock := newClock(b)
	for i := range n {
		clock.until(b, due(i))
		late[i] = time.Since(due(i))
		messages <- i
	}
	close(messages)
	wg.Wait()
	select {
	case <-done:
	case <-ctx.Done():
		if err := failed.Load(); err != nil {
			b.Fatalf("%s: send: %v", s.name, *err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		b.Fatalf("%s: %d of %d messages have not arrived", s.name, r.left, n)
	}
	return r.times, late
}

// A clock wakes the generator by a timer of the kernel: the timers of an idle Go program are up to a
// millisecond late.
type clock struct{ file *os.File }

func newClock(b testing.TB) clock {
	b.Helper()
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	assert.Must(b, err)
	c := clock{os.NewFile(uintptr(fd), "timer")}
	b.Cleanup(func() { c.file.Close() })
	return c
}

func (c clock) until(b testing.TB, t time.Time) {
	b.Helper()
	wait := time.Until(t)
	if wait <= 0 {
		return
	}
	raw := assert.Value(c.file.SyscallConn())(b)
	assert.Must(b, raw.Control(func(fd uintptr) {
		err := unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(wait))}, nil)
		assert.NoError(b, err)
	}))
	var expirations [8]byte
	assert.Must(b, assert.Err(c.file.Read(expirations[:])))
}

// syncTime returns a function that returns the median time of an append of 1 KiB and its fdatasync,
// in milliseconds.
func syncTime(b testing.TB, pace time.Duration) func() float64 {
	b.Helper()
	f := assert.Value(os.Create(filepath.Join(b.TempDir(), "sync")))(b)
	b.Cleanup(func() { f.Close() })
	return paced(b, pace, func() {
		assert.Must(b, assert.Err(f.Write(make([]byte, 1024))))
		assert.Must(b, unix.Fdatasync(int(f.Fd())))
	})
}

// paced returns a function that makes calls at a pace and returns their median time, in
// milliseconds. At a slower pace the processor sleeps between the calls, and its wake-ups count.
func paced(b testing.TB, pace time.Duration, call func()) func() float64 {
	clock := newClock(b)
	return func() float64 {
		var times []float64
		for start := time.Now(); len(times) < 200; {
			clock.until(b, start.Add(time.Duration(len(times))*pace))
			begin := time.Now()
			call()
			times = append(times, time.Since(begin).Seconds()*1e3)
		}
		slices.Sort(times)
		return times[len(times)/2]
	}
}
