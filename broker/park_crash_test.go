package broker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Whenever the power fails while message groups are parked, sent on and
// rewound: afterwards each message group goes on somewhere, in order and
// without a gap, to its end.
func TestParkingAcrossPowerLoss(t *testing.T) {
	t.Parallel()
	for round := range 15 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 0))
		fs := vfs.NewCrashableMem()
		b, err := Open(Options{Dir: "data", MinInvisibleDuration: 1, fs: fs})
		if err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "t", TopicConfig{Type: TopicFIFO, Queues: 2})
		putGroup(t, b, "g", GroupConfig{FIFO: true, MaxAttempts: 1, OnExhausted: OnExhaustedPark})
		const groups, each = 3, 40
		var ms []*tidegate.Message
		for i := range each {
			for g := range groups {
				ms = append(ms, &tidegate.Message{ID: fmt.Sprint(g, ":", i), Topic: "t", MessageGroup: fmt.Sprint(g), Body: []byte("x")})
			}
		}
		mustSend(t, b, ms...)
		request := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 8, InvisibleDuration: time.Hour}
		acked := map[string]int{} // how many of a message group, in all
		for range rnd.IntN(60) {
			for _, d := range receive(t, b, request) {
				if rnd.IntN(4) == 0 {
					_, err = b.Retry(t.Context(), d, 0, "")
				} else if err = b.Ack(t.Context(), []*tidegate.Delivery{d})[0]; err == nil {
					acked[d.MessageGroup]++
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if rnd.IntN(3) == 0 {
				if _, err := b.RedriveParked(t.Context(), "g", ParkedSelection{}); err != nil {
					t.Fatal(err)
				}
			}
			if rnd.IntN(30) == 0 {
				if _, err := b.Rewind(t.Context(), "g", "t", Position{Earliest: true}); err != nil {
					t.Fatal(err)
				}
				clear(acked)
			}
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rnd})
		b.Close()
		if b, err = Open(Options{Dir: "data", MinInvisibleDuration: 1, fs: crashed}); err != nil {
			t.Fatalf("round %d, seed %d: %v", round, seed, err)
		}
		if _, err := b.RedriveParked(t.Context(), "g", ParkedSelection{}); err != nil {
			t.Fatal(err)
		}
		last := map[string]int{}
		request.Wait = 100 * time.Millisecond // some is read back meanwhile
		for {
			ds := receive(t, b, request)
			if len(ds) == 0 {
				break
			}
			for _, d := range ds {
				var g, n int
				if _, err := fmt.Sscanf(d.ID, "%d:%d", &g, &n); err != nil {
					t.Fatal(err)
				}
				if before, ok := last[d.MessageGroup]; ok && n != before+1 {
					t.Errorf("round %d, seed %d: %s follows %d", round, seed, d.ID, before)
				}
				last[d.MessageGroup] = n
			}
			ackDeliveriesNow(t, b, ds)
		}
		g, err := b.Group("g")
		if err != nil || len(g.Topics) != 1 {
			t.Fatalf("%+v, %v", g, err)
		}
		s := g.Topics[0]
		for i := range groups {
			if n, ok := last[fmt.Sprint(i)]; ok && n != each-1 {
				t.Errorf("round %d, seed %d: message group %d ends at %d", round, seed, i, n)
			}
		}
		// What is in flight for an hour was in the consumer's hands when the power failed.
		if s.Backlog.Messages != s.Ready+s.Inflight || s.Inflight > groups || s.Parked != 0 || s.Inflight == 0 && s.Ready > 0 {
			t.Errorf("round %d, seed %d: the group is left with %+v", round, seed, s)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
