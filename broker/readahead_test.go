package broker

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/transport"
)

func TestReadAheadSkip(t *testing.T) {
	t.Parallel()
	offsets := []int64{10, 11, 14, 15}
	for _, c := range []struct {
		from  int64
		ok    bool
		first int64
	}{
		{9, false, 0}, // before what was read: something may be there
		{10, true, 10}, {11, true, 11}, {12, true, 14}, {14, true, 14}, {15, true, 15},
		{16, false, 0},
	} {
		a := readAhead{from: 10, messages: make([]store.Message, len(offsets)), offsets: offsets}
		if ok := a.skip(c.from); ok != c.ok || ok && (a.offsets[0] != c.first || len(a.messages) != len(a.offsets)) {
			t.Errorf("skip(%d) = %v, leaves %v", c.from, ok, a.offsets)
		}
	}
}

// What a receive is given is bounded as store.Read bounds it.
func TestReadAheadFirst(t *testing.T) {
	t.Parallel()
	body := func(n int) store.Message { return store.Message{Message: tidegate.Message{Body: make([]byte, n)}} }
	a := readAhead{messages: []store.Message{body(5), body(5), body(0), body(5)}}
	for _, c := range []struct {
		limit    int
		maxBytes int64
		want     int
	}{{9, 100, 4}, {2, 100, 2}, {9, 0, 1}, {9, 5, 1}, {9, 6, 2}, {9, 10, 2}, {9, 11, 4}} {
		if got := a.first(c.limit, c.maxBytes); got != c.want {
			t.Errorf("first(%d, %d) = %d, want %d", c.limit, c.maxBytes, got, c.want)
		}
	}
}

// Groups that are behind get every message once and in the order of its queue,
// whatever the sizes of receives, and nothing stays in memory.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	const n = 1500
	b := open(t, Options{})
	putTopic(t, b, "t", TopicConfig{Queues: 2})
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
						Group: c.group, Topic: "t", Queue: transport.AnyQueue, Max: 1 + r.IntN(maxReceive), InvisibleDuration: time.Minute,
						Filter: transport.Filter{Expression: c.filter}, Wait: 50 * time.Millisecond,
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
		if left := b.readAhead.Load(); left != 0 {
			t.Errorf("group %s: %d bytes are kept of a queue that is consumed", c.group, left)
		}
	}
	receive(t, b, transport.ReceiveRequest{Group: "slow", Topic: "t", Max: 1, InvisibleDuration: time.Minute})
	if kept := b.readAhead.Load(); kept <= 0 || kept > 2*(aheadBytes+4000) {
		t.Errorf("%d bytes are read ahead; want some, at most %d for each queue", kept, aheadBytes)
	}
	b.readAhead.Add(maxAheadBytes)
	before := b.readAhead.Load()
	receive(t, b, transport.ReceiveRequest{Group: "late", Topic: "t", Max: 1, InvisibleDuration: time.Minute})
	if b.readAhead.Load() != before {
		t.Error("it is read ahead beyond the bound of the whole broker")
	}
	b.readAhead.Add(-maxAheadBytes)
	if err := b.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if left := b.readAhead.Load(); left != 0 {
		t.Errorf("%d bytes are kept of a topic that is deleted", left)
	}
}
