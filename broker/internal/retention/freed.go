package retention

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/tidegate/tidegate/broker/internal/store"
)

const (
	// ReclaimBytes is how many bytes are removed before their disk is given back. The store gives
	// back less by and by.
	ReclaimBytes = 32 << 20

	// ReclaimTopics is how many deleted topics are remembered until then.
	ReclaimTopics = 1024
)

// Freed collects what was removed until its disk is given back. Its methods can be called by
// several goroutines at once, Reclaim by one. The zero value is ready for use.
type Freed struct {
	mu      sync.Mutex
	bytes   int64               // guarded by mu
	pending store.PendingKind   // guarded by mu: messages that were in no queue yet
	ranges  map[queueID]extent  // guarded by mu: in topics that are there
	topics  map[uint32]struct{} // guarded by mu: topics that were deleted, and had messages
}

type queueID struct {
	topic uint32
	queue uint16
}

type extent struct{ from, to int64 }

// Add notes that messages of a range were removed. The range is not empty.
func (f *Freed) Add(r store.Range, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes += bytes
	f.join(queueID{r.Topic, r.Queue}, extent{r.From, r.To})
}

// join adds a range. mu is held.
func (f *Freed) join(k queueID, at extent) {
	if was, ok := f.ranges[k]; ok {
		at = extent{min(at.from, was.from), max(at.to, was.to)}
	}
	if f.ranges == nil {
		f.ranges = map[queueID]extent{}
	}
	f.ranges[k] = at
}

// AddDeleted notes that a topic was deleted with a queue: used says that the queue ever had
// messages, and it had bytes.
func (f *Freed) AddDeleted(topic uint32, queue uint16, used bool, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ranges, queueID{topic, queue})
	if used {
		f.bytes += bytes
		f.joinTopic(topic)
	}
}

func (f *Freed) joinTopic(topic uint32) {
	if f.topics == nil {
		f.topics = map[uint32]struct{}{}
	}
	f.topics[topic] = struct{}{}
}

// AddPending notes that messages were removed that were in no queue yet.
func (f *Freed) AddPending(kind store.PendingKind, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes += bytes
	f.pending |= kind
}

// Bytes returns how many bytes were removed whose disk was not given back.
func (f *Freed) Bytes() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes
}

// Remembered returns how many ranges and deleted topics are remembered.
func (f *Freed) Remembered() (ranges, topics int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ranges), len(f.topics)
}

// Enough reports whether so much was removed that the disk is to be given back.
func (f *Freed) Enough() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes >= ReclaimBytes || len(f.topics) >= ReclaimTopics
}

// Reclaim calls reclaim, which is that of store.Store, with all that was removed, and forgets it
// unless that fails.
func (f *Freed) Reclaim(ctx context.Context, reclaim func(context.Context, []store.Range, []uint32, store.PendingKind) error) error {
	f.mu.Lock()
	bytes, pending, removed, topics := f.bytes, f.pending, f.ranges, f.topics
	f.bytes, f.pending, f.ranges, f.topics = 0, 0, nil, nil
	f.mu.Unlock()
	var ranges []store.Range
	for k, at := range removed {
		ranges = append(ranges, store.Range{Topic: k.topic, Queue: k.queue, From: at.from, To: at.to})
	}
	err := reclaim(ctx, ranges, slices.Collect(maps.Keys(topics)), pending)
	if err == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes += bytes
	f.pending |= pending
	for k, at := range removed {
		f.join(k, at)
	}
	for t := range topics {
		f.joinTopic(t)
	}
	return err
}
