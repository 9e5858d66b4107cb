package broker_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A file system forgets its unsynced data at a random moment of a load of sends, receives and
// acknowledgements. Every acknowledged send is stored once, and no acknowledged delivery is
// repeated. RocketMQ: consumption retry: "You can ensure the correct message status when an
// exception, such as power failure, occurs"
func TestPowerLossKeepsAcknowledgedData(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(8), loseMessages)
}

func loseMessages(t *testing.T, seed uint64) {
	answered, acked := map[string]bool{}, map[string]bool{}
	b := losePower(t, rand.New(rand.NewPCG(seed, 0)), 100, func(b *broker.Broker, p *powerCut) {
		putTopic(t, b, "t", settings.Topic{Queues: 3})
		putGroup(t, b, "g", settings.Group{MaxAttempts: -1})
		var wg sync.WaitGroup
		for c := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-p.failed:
						return
					default:
					}
					id := fmt.Sprintf("%d-%d", c, i)
					if r := b.Send(t.Context(), []*tidegate.Message{{ID: id, Topic: "t", Body: []byte(id)}}); r[0].Err == nil {
						p.responded(func() { answered[id] = true })
					}
					if c > 0 {
						continue
					}
					for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 8}) {
						if i%2 == 0 && b.Ack(t.Context(), []*tidegate.Delivery{d})[0] == nil {
							p.responded(func() { acked[d.ID] = true })
						}
					}
				}
			})
		}
		wg.Wait()
	})
	seen := map[string]int{}
	for _, d := range receiveAll(t, b, "t") {
		seen[d.ID]++
		if string(d.Body) != d.ID {
			t.Errorf("the body of %s is %q", d.ID, d.Body)
		}
	}
	for id := range answered {
		if seen[id] != 1 {
			t.Errorf("%s was confirmed and is stored %d times", id, seen[id])
		}
	}
	for ds := []*tidegate.Delivery{nil}; len(ds) > 0; {
		ds = receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32})
		for _, d := range ds {
			if acked[d.ID] {
				t.Errorf("%s was acknowledged and is delivered again", d.ID)
			}
		}
	}
}

var (
	crashEvery = flag.Bool("crash.every", false, "crash a recorded run at every index of its file system operations, not at a sample")
	crashSeed  = flag.Uint64("crash.seed", 0, "record the run with this seed; 0 for another one each time")
	crashSteps = flag.Int("crash.steps", 150, "how many operations the recorded run has")
	crashIndex = flag.Int("crash.index", -1, "crash the recorded run at this index only")
)

// crashSample is about how many moments of a run are looked at if not every one is, as .ci/run does
// without the race detector.
const crashSample = 6

// A recorded run of all operations that change stored data loses its power at each of its writes,
// syncs, renames and so on, with none or a part of the unsynced data. The power fails again while
// the data is opened. Acknowledged results hold.
func TestPowerLossAtEveryIndex(t *testing.T) {
	t.Parallel()
	seed := *crashSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-crash.seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	stride, operations := 1, 0
	var crashes []*crash
	record := func() {
		synctest.Test(t, func(t *testing.T) {
			r := &recorder{t: t, rnd: rand.New(rand.NewPCG(seed, 2))}
			fs := &crashFS{MemFS: vfs.NewCrashableMem()}
			first := rnd.IntN(stride)
			fs.before = func(i int) {
				operations = i + 1
				if stride > 1 && i%stride != first || *crashIndex >= 0 && i != *crashIndex {
					return
				}
				facts := r.sofar()
				for _, percent := range []int{0, 1 + rnd.IntN(100)} {
					crashes = append(crashes, &crash{fmt.Sprintf("index %d with %d%%", i, percent), fs.clone(percent, seed+uint64(i)), time.Now(), facts})
				}
			}
			r.fs = fs
			r.run(*crashSteps)
		})
	}
	if !*crashEvery && *crashIndex < 0 {
		stride = 1 << 30
		record() // only counts
		stride, crashes = max(1, operations/soak(crashSample)), nil
	}
	record()
	t.Logf("%d operations, %d crashes", operations, len(crashes))
	for i, c := range crashes {
		again := c.crashWhileOpening(t, rnd)
		c.check(t)
		if again != nil {
			again.check(t)
		}
		if crashes[i] = nil; t.Failed() {
			t.Fatalf("run it again with -run TestPowerLossAtEveryIndex -crash.seed %d -crash.every", seed)
		}
	}
}

// crashWhileOpening returns the content after a second power failure, at a random moment of opening
// the content of the first.
func (c *crash) crashWhileOpening(t *testing.T, rnd *rand.Rand) (again *crash) {
	at, percent, seed := rnd.IntN(100), rnd.IntN(101), rnd.Uint64()
	synctest.Test(t, func(*testing.T) {
		time.Sleep(time.Until(c.at))
		fs := &crashFS{MemFS: c.fs.CrashClone(vfs.CrashCloneCfg{})}
		fs.before = func(i int) {
			if i == at {
				again = &crash{fmt.Sprintf("%s, then index %d of opening with %d%%", c.what, i, percent), fs.clone(percent, seed), c.at, c.facts}
			}
		}
		if b, err := broker.Open(crashOptions(fs)); err == nil { // or else check reports it
			_ = b.Close()
		}
	})
	return again
}
