package retention

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/tidegate/tidegate/broker/internal/store"
)

const (
	// ReclaimBytes is the number of removed bytes after which their disk space is reclaimed. The
	// disk space of fewer bytes becomes free later, by the compactions of the store.
	ReclaimBytes = 32 << 20

	// ReclaimTopics is the number of deleted topics after which disk space is reclaimed.
	ReclaimTopics = 1024
)

// Freed collects the removed messages until their disk space is reclaimed. Goroutines may share a
// Freed, but only one may call Reclaim at a time. The zero value is ready for use.
type Freed struct {
	mu      sync.Mutex
	bytes   int64               // guarded by mu
	pending store.PendingKind   // guarded by mu: removed messages that were in no queue yet
	ranges  map[queueID]extent  // guarded by mu: in existing topics
	topics  map[uint32]struct{} // guarded by mu: deleted topics that had messages
}

type queueID struct {
	topic uint32
	queue uint16
}

type extent struct{ from, to int64 }

// Add records that messages of a range were removed. The range must not be empty.
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

// AddDeleted records that a queue was deleted with its topic. used is true if the queue ever had
// messages; bytes is the size of its messages.
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

// AddPending records that messages were removed that were in no queue yet.
func (f *Freed) AddPending(kind store.PendingKind, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes += bytes
	f.pending |= kind
}

// Bytes returns the number of removed bytes whose disk space was not reclaimed.
func (f *Freed) Bytes() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes
}

// Remembered returns the numbers of ranges and of deleted topics that wait for Reclaim.
func (f *Freed) Remembered() (ranges, topics int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ranges), len(f.topics)
}

// Enough reports whether enough was removed to call Reclaim.
func (f *Freed) Enough() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes >= ReclaimBytes || len(f.topics) >= ReclaimTopics
}

// Reclaim calls reclaim with all removed messages, and forgets them. If reclaim fails, Reclaim
// keeps them and returns the error. Callers pass [store.Store.Reclaim], which blocks until the disk
// space is free or ctx ends.
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
