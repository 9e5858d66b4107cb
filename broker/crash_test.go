package broker

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A file system that forgets what was not synced, at a random moment of a
// load of sends, receives and acknowledgements: every answered message is
// there, once.
// Seed 000: "You can ensure the correct message status when an exception, such as power failure, occurs"
func TestPowerLossKeepsWhatWasAnswered(t *testing.T) {
	for round := range 20 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 0))
		fs := vfs.NewCrashableMem()
		b, err := Open(Options{Dir: "data", MinInvisibleDuration: 1, fs: fs})
		if err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "t", TopicConfig{Queues: 3})
		putGroup(t, b, "g", GroupConfig{MaxAttempts: -1})
		var mu sync.Mutex
		answered := map[string]bool{}
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for c := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					id := fmt.Sprintf("%d-%d", c, i)
					r := b.Send(t.Context(), []*tidegate.Message{{ID: id, Topic: "t", Body: []byte(id)}})
					if r[0].Err == nil {
						mu.Lock()
						answered[id] = true
						mu.Unlock()
					}
					if c == 0 {
						for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 8}) {
							if i%2 == 0 {
								b.Ack(t.Context(), []*tidegate.Delivery{d})
							}
						}
					}
				}
			})
		}
		<-time.After(time.Duration(1+rnd.IntN(20)) * time.Millisecond)
		mu.Lock()
		known := make([]string, 0, len(answered))
		for id := range answered {
			known = append(known, id)
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rnd})
		mu.Unlock()
		close(stop)
		wg.Wait()
		b.Close()

		b, err = Open(Options{Dir: "data", MinInvisibleDuration: 1, fs: crashed})
		if err != nil {
			t.Fatalf("round %d, seed %d: %v", round, seed, err)
		}
		seen := map[string]int{}
		for _, d := range receiveAll(t, b, "t") {
			seen[d.ID]++
			if string(d.Body) != d.ID {
				t.Errorf("the body of %s is %q", d.ID, d.Body)
			}
		}
		for _, id := range known {
			if seen[id] != 1 {
				t.Errorf("round %d, seed %d: %s was answered and is there %d times", round, seed, id, seen[id])
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
