package broker_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// Groups that are behind get every message once and in the order of its queue, with any sizes of
// receives, and nothing stays in memory.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	const n, aheadBytes = 1500, 256 << 10
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Queues: 2})
	sizes := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < n; i += 50 {
		batch := make([]*tidegate.Message, 50)
		for j := range batch {
			tag := "odd"
			if (i+j)%2 == 0 {
				tag = "even"
			}
			batch[j] = &tidegate.Message{ID: fmt.Sprint(i + j), Topic: "t", Tag: tag, Body: make([]byte, 1+sizes.IntN(4000))}
		}
		mustSend(t, b, batch...)
	}
	for _, c := range []struct {
		group, filter string
		want          int
	}{{"all", "*", n}, {"half", "even", n / 2}} {
		var mu sync.Mutex
		seen := map[string]bool{}
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(3, uint64(i)))
				last := map[int]int64{}
				for {
					ds, err := b.Receive(t.Context(), transport.ReceiveRequest{
						Group: c.group, Topic: "t", Queue: transport.AnyQueue, Max: 1 + r.IntN(128), InvisibleDuration: time.Minute,
						Filter: tidegate.Filter{Expression: c.filter}, Wait: 50 * time.Millisecond,
					})
					if err != nil || len(ds) == 0 {
						if err != nil {
							t.Error(err)
						}
						return
					}
					for _, err := range b.Ack(t.Context(), ds) {
						if err != nil {
							t.Error(err)
						}
					}
					mu.Lock()
					for _, d := range ds {
						if before, ok := last[d.Queue]; ok && d.Offset <= before || seen[d.ID] || c.filter == "even" && d.Tag != "even" {
							t.Errorf("group %s: message %s, tag %s, queue %d, offset %d after %d; seen %v", c.group, d.ID, d.Tag, d.Queue, d.Offset, before, seen[d.ID])
						}
						seen[d.ID], last[d.Queue] = true, d.Offset
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if len(seen) != c.want {
			t.Errorf("group %s got %d of %d messages", c.group, len(seen), c.want)
		}
		if left := readAheadBytes(b); left != 0 {
			t.Errorf("group %s: %d bytes are kept of a queue that is consumed", c.group, left)
		}
	}
	receive(t, b, transport.ReceiveRequest{Group: "slow", Topic: "t", Max: 1, InvisibleDuration: time.Minute})
	if ahead := readAheadBytes(b); ahead <= 0 || ahead > 2*(aheadBytes+4000) {
		t.Errorf("%d bytes are read ahead; want some, at most %d for each queue", ahead, aheadBytes)
	}
	reads := b.Engine().Parts().Env.Reads
	reads.Add(8 << 20)
	before := readAheadBytes(b)
	receive(t, b, transport.ReceiveRequest{Group: "late", Topic: "t", Max: 1, InvisibleDuration: time.Minute})
	if readAheadBytes(b) != before {
		t.Error("it is read ahead beyond the bound of the whole broker")
	}
	reads.Add(-(8 << 20))
	if err := b.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if left := readAheadBytes(b); left != 0 {
		t.Errorf("%d bytes are kept of a topic that is deleted", left)
	}
}
