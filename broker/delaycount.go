package broker

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// delayCounters are a topic's, of what waits for its delivery time. They
// change only within the message log's Add, with the record of them.
type delayCounters struct{ messages, bytes atomic.Int64 }

func (c *delayCounters) waiting() Backlog { return Backlog{c.messages.Load(), c.bytes.Load()} }

// delayed counts messages that begin to wait for their delivery time, or do so
// no longer. Only called within the message log's Add.
func (t *topic) delayed(w *store.Batch, messages, bytes int64) {
	c := &t.delays
	n := store.Waiting{Messages: max(0, c.messages.Load()+messages), Bytes: max(0, c.bytes.Load()+bytes)}
	if n.Messages == 0 {
		n.Bytes = 0 // the size of one that was damaged is not known any more
	}
	c.messages.Store(n.Messages)
	c.bytes.Store(n.Bytes)
	if !t.deleted.Load() {
		w.PutWaiting(t.id, n)
	}
}

// dueCounts count messages that were delayed and are in their queues now.
type dueCounts map[*topic]Backlog

func (m dueCounts) add(t *topic, bytes int) {
	n := m[t]
	m[t] = Backlog{n.Messages + 1, n.Bytes + int64(bytes)}
}

func (m dueCounts) count(w *store.Batch) {
	for _, t := range slices.SortedFunc(maps.Keys(m), func(x, y *topic) int { return int(x.id) - int(y.id) }) {
		t.delayed(w, -m[t].Messages, -m[t].Bytes)
	}
}

// recoverDelayed brings back how many wait.
func (b *Broker) recoverDelayed(topics map[uint32]*topic) error {
	return b.store.Waiting(func(id uint32, n store.Waiting) error {
		if t := topics[id]; t != nil {
			t.delays.messages.Store(n.Messages)
			t.delays.bytes.Store(n.Bytes)
		}
		return nil
	})
}
