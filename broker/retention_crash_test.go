package broker_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// The power fails at a random moment while consumed messages are removed. A group still gets its
// unacknowledged messages, offsets continue, and removed messages stay removed.
func TestPowerLossWithRetention(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(3), runPowerLoss)
}

func runPowerLoss(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	p := newPowerCut(vfs.NewCrashableMem(), rnd, 400)
	b := open(t, broker.Options{Dir: "data"}.On(p.fs))
	config := settings.Topic{Queues: 1 + rnd.IntN(3), DuplicateWindow: -1, Retention: settings.Retention{Time: -1, Consumed: true}}
	putTopic(t, b, "t", config)
	groups := []string{"g0", "g1"}
	for _, g := range groups { // one counts from its first receive on
		receive(t, b, transport.ReceiveRequest{Group: g, Topic: "t"})
	}
	answered, acked, next := map[string]bool{}, map[string]bool{}, map[int]int64{}
	for round := range 3 {
		own := rand.New(rand.NewPCG(seed, uint64(round)))
		for i, failed := 0, false; !failed; i++ {
			select {
			case <-p.failed:
				failed = true
				continue
			case <-time.After(time.Duration(own.IntN(30)) * time.Millisecond):
			}
			if own.IntN(3) == 0 {
				for j := range 1 + own.IntN(10) {
					id := fmt.Sprintf("%d-%d-%d", round, i, j)
					r := send(t, b, &tidegate.Message{ID: id, Topic: "t", Body: make([]byte, 1+own.IntN(2000))})[0]
					p.responded(func() {
						if r.Err != nil || r.Receipt.Offset < next[r.Receipt.Queue] {
							t.Errorf("%s went to %+v, %v; the next offset is %d", id, r.Receipt, r.Err, next[r.Receipt.Queue])
						}
						answered[id], next[r.Receipt.Queue] = true, r.Receipt.Offset+1
					})
				}
				continue
			}
			g := groups[own.IntN(2)]
			for _, d := range receive(t, b, transport.ReceiveRequest{Group: g, Topic: "t", Max: 16, InvisibleDuration: time.Second}) {
				if own.IntN(10) > 0 { // it may be removed before the response
					p.responded(func() { acked[g+d.ID] = true })
					b.Ack(t.Context(), []*tidegate.Delivery{d})
				}
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		p = newPowerCut(p.over(t), rnd, 400)
		b = open(t, broker.Options{Dir: "data"}.On(p.fs))
	}
	for _, g := range groups {
		seen := map[string]bool{}
		for empty := 0; empty < 3; {
			ds := receive(t, b, transport.ReceiveRequest{Group: g, Topic: "t", Max: 32, InvisibleDuration: time.Second})
			for _, d := range ds {
				seen[d.ID] = true
			}
			for _, err := range b.Ack(t.Context(), ds) {
				if err != nil {
					t.Error(err)
				}
			}
			if empty++; len(ds) > 0 {
				empty = 0
			}
			elapse(time.Second)
		}
		for id := range answered {
			if !seen[id] && !acked[g+id] {
				t.Errorf("%s was confirmed, and %s never received it", id, g)
			}
		}
		if s := subscriptionOf(t, b, g); s.Backlog != (status.Backlog{}) || s.Overtaken != 0 {
			t.Errorf("%s is left with %+v", g, s)
		}
	}
	elapse(2 * time.Second)
	if n := stored(t, b, "t"); n != 0 {
		t.Errorf("%d messages are left, although all are consumed", n)
	}
	sum := int64(0)
	for q := range config.Queues {
		sum += next[q]
	}
	queues, err := serve(b).QueuesPage("t", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	got := int64(0)
	for _, q := range queues.Queues {
		got += q.End
	}
	if got < sum {
		t.Errorf("offsets continue at %d in all, want %d or more", got, sum)
	}
}
