package broker_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
)

var (
	modelSeed      = flag.Uint64("model.seed", 0, "run one sequence of the model test, the one with this seed")
	modelSequences = flag.Int("model.sequences", 6, "how many sequences the model test runs")
)

func TestModel(t *testing.T) {
	runSequences(t, "model", *modelSeed, *modelSequences, runModel)
}

// runSequences runs n random sequences, each in a bubble of its own, on all cores, or the one of a
// seed that is not 0. It logs the seed of a failed one.
func runSequences(t *testing.T, flags string, seed uint64, n int, run func(*testing.T, uint64)) {
	if seed != 0 {
		n = 1
	}
	workers := min(runtime.GOMAXPROCS(0), n)
	for w := range workers {
		t.Run(fmt.Sprint("worker", w), func(t *testing.T) {
			t.Parallel()
			seed := seed
			if seed == 0 {
				seed = rand.Uint64()
			}
			defer func() {
				if t.Failed() {
					t.Logf("run it again with -%s.seed %d", flags, seed)
				}
			}()
			for i := w; i < n; i += workers {
				synctest.Test(t, func(t *testing.T) { run(t, seed) })
				if t.Failed() {
					return
				}
				seed = rand.Uint64()
			}
		})
	}
}

func (m *model) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

func (m *model) failf(format string, args ...any) {
	m.t.Helper()
	for _, l := range m.log[max(0, len(m.log)-40):] {
		m.t.Log(l)
	}
	m.t.Fatalf(format, args...)
}

func (m *model) open() {
	b, err := broker.Open(broker.Options{Dir: "data", MinInvisibleDuration: 1, MaxInvisibleDuration: modelMaxInvisible}.On(m.fs).MemTable(256 << 10))
	if err != nil {
		m.failf("opening: %v", err)
	}
	m.b = b
}

func runModel(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	m := &model{t: t, rnd: rnd, fs: vfs.NewMem(), fifo: rnd.IntN(2) == 0, dead: map[string]int{}}
	m.open()
	defer func() { m.b.Close() }()
	topicType := settings.TopicNormal
	if m.fifo {
		topicType = settings.TopicFIFO
	}
	putTopic(t, m.b, "t", settings.Topic{Type: topicType, Queues: 1 + rnd.IntN(3)})
	for i := range 1 + rnd.IntN(2) {
		g := &modelGroup{name: fmt.Sprint("g", i), leases: map[string]*modelLease{}}
		g.config = settings.Group{FIFO: m.fifo && rnd.IntN(3) > 0, MaxAttempts: 1 + rnd.IntN(4), FIFORetryInterval: settings.Duration(2 * time.Second)}.WithDefaults()
		if rnd.IntN(3) == 0 {
			g.filter = "a"
		}
		putGroup(t, m.b, g.name, g.config)
		m.groups = append(m.groups, g)
	}
	for range 60 + rnd.IntN(60) {
		switch n := rnd.IntN(20); {
		case n < 4:
			m.send()
		case n < 10:
			m.receive()
		case n < 16:
			m.answer()
		case n < 19:
			time.Sleep(time.Duration(rnd.IntN(15000)) * time.Millisecond)
			synctest.Wait()
		case rnd.IntN(4) == 0:
			m.deleteGroup()
		default:
			if err := m.b.Close(); err != nil {
				m.failf("closing: %v", err)
			}
			m.open()
			m.note("reopened")
			synctest.Wait()
		}
		synctest.Wait() // a retry that is due at once needs its timer
		for _, g := range m.groups {
			g.settle(time.Now(), m.dead)
		}
	}
	time.Sleep(time.Millisecond)
	synctest.Wait()
	for _, g := range m.groups {
		g.settle(time.Now(), m.dead)
	}
	m.check()
}
